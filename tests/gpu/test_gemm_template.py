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


@pytest.mark.parametrize("bias", [False, True])
def test_logits_of_an_odd_vocabulary_take_no_memory_beside_themselves(bias):
    """They are written as they are to lie, without a padded copy."""
    x, w, b = numbers((1024, 384), (51865, 384), (51865,), dtype=BF16)
    given = (x, w, b if bias else None)
    call = braze.compile(F.linear, dynamic=False)
    with torch.no_grad():
        no_further(call(*given), F.linear(*given), F.linear(*(v if v is None else v.double() for v in given)))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call(*given)
    assert torch.cuda.max_memory_allocated() - before <= result.numel() * 2 + (1 << 20)


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


def batch(x, y, c, r):
    """A bias, a scale and a residual after a batch of products."""
    return torch.baddbmm(c, x, y) * 0.5 + r


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(
    ("b", "m", "k", "n"), [(1, 1, 1, 1), (24, 197, 64, 197), (96, 512, 64, 512), (8, 1, 128, 4096), (16, 16, 1000, 513), (3, 33, 7, 2)]
)  # fmt: skip
@pytest.mark.parametrize("wanted", [True, None])
def test_a_batch_is_no_further_from_float64_than_eager(wanted, b, m, k, n, dtype):
    call = braze.compile(batch, dynamic=False, options={"matmul_template": wanted})
    found = []
    with torch.no_grad():
        for seed in range(16 if b * m * n < 1000 else 1):
            given = numbers((b, m, k), (b, k, n), (n,), (b, m, n), dtype=dtype, seed=seed)
            found.append((call(*given), batch(*given), batch(*(x.double() for x in given))))
    no_further(*(torch.cat(parts) for parts in zip(*found, strict=True)))


@pytest.mark.parametrize("turned", [(False, True), (True, False), (True, True)])
def test_batches_of_transposes_and_of_one_matrix(turned):
    def fn(x, y):
        return torch.bmm(*(v.transpose(1, 2) if t else v for v, t in zip((x, y), turned, strict=True))).relu()

    x, y = numbers(
        (12, 72, 96) if turned[0] else (12, 96, 72), (12, 80, 72) if turned[1] else (12, 72, 80), dtype=BF16
    )
    call = braze.compile(fn, dynamic=False, options={"matmul_template": True})
    for a, b in ((x, y), (x[:1].expand_as(x), y), (x, y[:1].expand_as(y))):
        no_further(call(a, b), fn(a, b), fn(a.double(), b.double()))


def test_a_batch_computes_its_left_matrices_itself():
    def fn(q, k, mask):
        q = (q.view(4, 200, 6, 64).transpose(1, 2) * 0.125).reshape(24, 200, 64)
        return torch.bmm(q, k.transpose(1, 2)).view(4, 6, 200, 200) + mask

    given = numbers((4, 200, 384), (24, 200, 64), (4, 1, 1, 200), dtype=BF16)
    call = braze.compile(fn, dynamic=False, options={"matmul_template": True})
    with trace.collect() as events, torch.no_grad():
        ours = call(*given)
    assert [len(p.kernels) for kind, p in events if kind == "compiled"] == [1]
    no_further(ours, fn(*given), fn(*(x.double() for x in given)))


@pytest.mark.parametrize(
    ("m", "k", "n"), [(16, 14336, 1024), (64, 65536, 64), (1, 8192, 128), (33, 3072, 65)]
)
def test_sums_in_parts_are_no_further_from_float64_than_eager(m, k, n, monkeypatch):
    """Whatever a clock says of them."""
    from braze.autotune import gemm_times
    from braze.products import Way

    monkeypatch.setattr(gemm_times, "_product_key", lambda product, ctx: product)
    monkeypatch.setattr(gemm_times, "kept", lambda key: Way.PARTS.value if not hasattr(key, "digest") else "")

    def fn(x, w, r):
        return F.gelu(F.linear(x, w)) + r

    given = numbers((m, k), (n, k), (m, n), dtype=BF16)
    call = braze.compile(fn, dynamic=False)
    with trace.collect() as events, torch.no_grad():
        ours, again = call(*given), call(*given)
    kernels = [name for kind, p in events if kind == "compiled" for name in p.kernels]
    assert len(kernels) == 2, kernels
    assert torch.equal(ours, again), "parts are added in their order"
    no_further(ours, fn(*given), fn(*(x.double() for x in given)))


def test_a_batch_and_a_long_sum_are_measured_once():
    def fn(x, y, w):
        return torch.bmm(x, y).relu(), F.linear(x.reshape(24, -1), w).relu()

    given = numbers((24, 64, 96), (24, 96, 64), (72, 64 * 96), dtype=BF16)
    with torch.no_grad():
        first = braze.compile(fn, dynamic=False, options={"max_autotune": True})(*given)
        assert trace.COUNTERS["products_measured"] > 0
        braze.reset()  # which counts from 0 again
        again = braze.compile(fn, dynamic=False)(*given)
        exact = fn(*(x.double() for x in given))
    assert trace.COUNTERS["products_measured"] == 0
    for a, b, c, d in zip(first, again, fn(*given), exact, strict=True):
        assert torch.equal(a, b)
        no_further(a, c, d)
