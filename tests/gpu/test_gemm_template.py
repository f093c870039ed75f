"""The matrix product's template on a GPU: as near to float64 as eager, at every size, and a choice that is measured once."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import braze
from braze.support import trace

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("exact_products"),
]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def rms(x, w):
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def layer(x, g, w, b, r):
    """A norm before, a bias, a function and a residual after."""
    return r + F.gelu(F.linear(rms(x, g), w, b))


def numbers(*shapes, dtype, seed=0):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return [torch.randn(s, device="cuda", generator=generator).mul(0.2).to(dtype) for s in shapes]


def no_further(ours, eager, exact):
    assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride())
    theirs = (eager.double() - exact).norm()
    assert (ours.double() - exact).norm() <= 1.2 * theirs + 1e-6 * exact.norm()


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(1, 1024, 4096), (1, 1, 1), (2, 3072, 1000), (3, 100, 33), (8, 2048, 1024), (8, 257, 129), (16, 1024, 3072), (33, 513, 65), (300, 768, 1001)],
)  # fmt: skip
@pytest.mark.parametrize("wanted", [True, None])
def test_the_template_is_no_further_from_float64_than_eager(wanted, m, k, n, dtype):
    """Of few numbers the errors of one draw say little: of the same product, rounded as often, one draw in a hundred has 1.2 times eager's."""
    call = braze.compile(layer, dynamic=False, options={"matmul_template": wanted})
    found = []
    with torch.no_grad():
        for seed in range(16 if m * n < 1000 else 1):
            given = numbers((m, k), (k,), (n, k), (n,), (m, n), dtype=dtype, seed=seed)
            found.append((call(*given), layer(*given), layer(*(x.double() for x in given))))
            assert found[-1][0].stride() == found[-1][1].stride()
    no_further(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def test_a_choice_is_measured_once():
    def fn(x, w):
        return F.silu(F.linear(x, w))

    given = numbers((24, 640), (896, 640), dtype=BF16)
    with torch.no_grad():
        braze.compile(fn, dynamic=False, options={"max_autotune": True})(*given)
        before = trace.COUNTERS["products_measured"]
        call = braze.compile(fn, dynamic=False, options={"max_autotune": True})
        no_further(call(*given), fn(*given), fn(*(x.double() for x in given)))
    assert trace.COUNTERS["products_measured"] == before
