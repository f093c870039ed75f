"""Values from nothing, joins, pads, copies and conversions."""

from __future__ import annotations

import math

import pytest
import torch

import braze
from braze.loops.ir import ExternCall
from braze.pipeline import lower_graph
from tests.aot.cuda_fakes import CTX, partition_on_gpu
from tests.lower.conftest import check

FACTORIES = {
    "zeros": lambda x: torch.zeros(2, 3),
    "ones": lambda x: torch.ones(2, 3, dtype=torch.int32),
    "full": lambda x: torch.full((2, 3), 2.5),
    "full_bool": lambda x: torch.full((2,), True),
    "zeros_like": lambda x: torch.zeros_like(x) + x,
    "ones_like": lambda x: torch.ones_like(x, dtype=torch.bfloat16),
    "full_like": lambda x: torch.full_like(x, -math.inf),
    "new_zeros": lambda x: x.new_zeros(3),
    "new_ones": lambda x: x.new_ones((2, 2)),
    "new_full": lambda x: x.new_full((2, 2), 7),
    "arange": lambda x: torch.arange(7),
    "arange_from": lambda x: torch.arange(3, 17, 4),
    "arange_down": lambda x: torch.arange(5, -5, -3),
    "arange_float": lambda x: torch.arange(0.0, 1.0, 0.1),
    "arange_float_type": lambda x: torch.arange(10, dtype=torch.float32) / 3,
    "causal": lambda x: torch.arange(4)[None, :] <= torch.arange(4)[:, None],
    "tril": lambda x: torch.tril(x.expand(2, 3, 4)),
    "triu": lambda x: torch.triu(x, 1),
    "tril_below": lambda x: torch.tril(x, -1),
    "tril_mask": lambda x: torch.tril(torch.ones(4, 4, dtype=torch.bool)),
    "scalar_tensor": lambda x: torch.where(x > 0, torch.scalar_tensor(1.0), 0.5),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name: str) -> None:
    check(FACTORIES[name], torch.randn(3, 4), exact=True)


def test_cat() -> None:
    a, b = torch.randn(2, 3), torch.randn(2, 5)
    check(lambda x, y: torch.cat([x, y], 1), a, b, exact=True)
    check(lambda x, y: torch.cat([x, y * 2, x.sum(1, keepdim=True)], -1), a, b)
    check(lambda x, y: torch.cat([x, y], 1) * 2, a, b.to(torch.bfloat16), exact=True)
    check(lambda x: torch.cat([torch.empty(0), x]), a, allow=["aten.empty.memory_format"], exact=True)
    check(lambda x, y: torch.cat([x.int(), y.long()], 1), a, b, exact=True)


def test_rotate_half() -> None:
    """The rotary embedding's cat of two halves."""
    check(lambda x: torch.cat([-x[..., 3:], x[..., :3]], -1) * 0.5 + x, torch.randn(2, 4, 6), exact=True)


def test_stack() -> None:
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    check(lambda x, y: torch.stack([x, y]), a, b, exact=True)
    check(lambda x, y: torch.stack([x, y + 1], -1).flatten(-2), a, b, exact=True)


@pytest.mark.parametrize(("of", "calls"), [((), 0), ((32,), 0), ((33,), 1)])
def test_many_numbers_or_few_each_are_one_loop_on_a_gpu(of: tuple[int, ...], calls: int) -> None:
    """Norms of a list of gradients, stacked; what has more in each part is ATen's."""
    program = lower_graph(partition_on_gpu(lambda *parts: torch.stack(parts) * 2, [torch.ones(of)] * 12), CTX)
    assert sum(isinstance(step, ExternCall) for step in program.steps) == calls


@pytest.mark.parametrize("pad", [(1, 2), (0, 1, 2, 0), (-1, 1), (-1, -2, 1, 1), (0, 0, 0, 0)])
def test_constant_pad(pad: tuple[int, ...]) -> None:
    check(lambda v: torch.nn.functional.pad(v, pad, value=1.5), torch.randn(3, 5), exact=True)
    check(lambda v: torch.nn.functional.pad(v + 1, pad) * 2, torch.randn(3, 5), exact=True)


def test_pad_of_a_division_does_not_leak() -> None:
    check(lambda v: torch.nn.functional.pad(1 / v, (1, 1)), torch.tensor([[0.0, 1.0]]))


def test_clones_keep_or_change_layout() -> None:
    x = torch.randn(2, 3, 4, 5)
    check(lambda v: v.permute(0, 2, 3, 1).clone(), x, exact=True)
    check(lambda v: v.permute(0, 2, 3, 1).contiguous(), x, exact=True)
    check(lambda v: v.contiguous(memory_format=torch.channels_last), x, exact=True)
    check(lambda v: v.clone(), x.expand(2, 3, 4, 5), exact=True)
    check(lambda v: v.clone(), torch.randn(1, 4).expand(3, 4), exact=True)


def test_clone_of_an_input_is_new_memory() -> None:
    x = torch.randn(3)
    program = check(lambda v: v.clone(), x)
    assert len(program.steps) == 1


CONVERSIONS = [
    (torch.float32, torch.bfloat16), (torch.float32, torch.float16), (torch.float64, torch.float32),
    (torch.float32, torch.int64), (torch.bfloat16, torch.float32), (torch.int64, torch.float32), (torch.int64, torch.int8),
    (torch.float32, torch.bool), (torch.bool, torch.float32), (torch.bool, torch.int64), (torch.int64, torch.bfloat16),
    (torch.float32, torch.uint8), (torch.float64, torch.bfloat16), (torch.float16, torch.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize(("source", "to"), CONVERSIONS)
def test_conversions(source: torch.dtype, to: torch.dtype) -> None:
    values = torch.tensor([0.0, 1.0, 2.7, 100.3, 0.5, 77.0, 1e-3])
    values = values if to is torch.uint8 else torch.cat([values, -values])
    check(lambda v: v.to(to), values.to(source), exact=True)
    check(lambda v: v.to(to) + v.to(to), values.to(source), exact=True)


def test_repeat() -> None:
    x = torch.randn(2, 3)
    check(lambda v: v.repeat(2, 2), x, exact=True)
    check(lambda v: v.repeat(3, 1, 2) + 1, x, exact=True)
    check(lambda v: v[:, None].expand(2, 4, 3).reshape(8, 3), x, exact=True)


def test_repeat_interleave_of_heads() -> None:
    """Grouped-query attention repeats its keys through expand and reshape."""
    x = torch.randn(2, 2, 5, 3)
    check(lambda k: k[:, :, None].expand(2, 2, 3, 5, 3).reshape(2, 6, 5, 3), x, exact=True)


def test_outputs_that_are_inputs_numbers_and_duplicates() -> None:
    x = torch.randn(3)
    program = check(lambda v: (v, v + 1, v), x)
    assert program.outputs[0] == program.outputs[2]


def test_a_copy_asked_for_in_the_same_type_is_one() -> None:
    """In memory of its own, with the strides that it asks for."""
    x = torch.randn(3, 4)
    copy = torch.ops.aten._to_copy.default
    for v in (x, x.t()):
        program = check(lambda t: copy(t, dtype=torch.float32), v, exact=True)
        assert len(program.steps) == 1
    check(lambda t: copy(t + 1, dtype=torch.float64), x)
    check(lambda t: copy(t, memory_format=torch.contiguous_format), x.t(), exact=True)


def test_numbers_from_a_size_that_varies_in_steps_of_a_half_are_eagers():
    def program(x, n):
        return torch.arange(n, n + 2, 0.5) + x

    compiled = braze.compile(program, dynamic=True, options={"verify": 2})
    for n in (3, 5, -4):
        assert torch.equal(compiled(torch.ones(4), n), program(torch.ones(4), n))
