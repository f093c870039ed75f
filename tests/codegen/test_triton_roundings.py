"""Half types in Triton's kernels: what nobody sees rounded is not, and the text is shorter for it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from braze.codegen import triton as triton_code
from braze.loops.ir import DType
from tests.codegen.triton_bench import context, interpreted, planned


def chain(x, y):
    for _ in range(5):
        x = x * 1.1 + y
    return x


def softmax(x, y):
    return (x * y * 0.7).softmax(-1)


def norm(x, y):
    return F.gelu(F.layer_norm(x + y, (40,)))


def one_of_two(x, y):
    return torch.where(x > 0, x * y, x + y) * 2


def casts(plan):
    """How many roundings to float16 the kernels have."""
    return sum(text.source.count(".to(tl.float16)") for text in triton_code.generate(plan, context()))


@pytest.mark.parametrize(
    ("fn", "left", "of"), [(chain, 1, 10), (softmax, 1, 3), (norm, 1, 3), (one_of_two, 1, 3)]
)
def test_a_kernel_rounds_once(fn, left, of, tmp_path):
    x, y = (torch.randn(6, 40).half() for _ in "xy")
    exact, eager = fn(x.double(), y.double()), fn(x, y)
    plan, (ours,) = interpreted(fn, tmp_path, x, y)
    assert casts(plan) <= left
    assert (ours.double() - exact).square().mean() <= (eager.double() - exact).square().mean()
    plan, (ours,) = interpreted(fn, tmp_path, x, y, numerics="eager")
    assert casts(plan) >= of
    if fn is chain:
        assert torch.equal(ours, eager)


def test_what_is_stored_and_what_is_decided_by_is_rounded(tmp_path):
    def fn(x, y):
        h, g = x * y, x + y
        return h, h * y, g - g.floor()

    x, y = (torch.randn(6, 40).half() for _ in "xy")
    _, (h, product, fraction) = interpreted(fn, tmp_path, x, y)
    assert torch.equal(h, x * y)
    assert torch.equal(product, h * y)
    assert torch.equal(fraction, (x + y) - (x + y).floor())


def test_what_lies_inside_a_kernel_is_as_wide_as_what_it_holds():
    x, y = (torch.randn(6, 40).half() for _ in "xy")

    def inside(**options):
        plan = planned(lambda x, y: x * (x * y).sum(-1, keepdim=True), x, y, **options)
        return {plan.buffer(name).dtype for group in plan.groups for name in group.internal}

    assert inside() == {DType.F32}
    assert DType.F16 in inside(numerics="eager")
