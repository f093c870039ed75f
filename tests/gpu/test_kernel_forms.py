"""Every form of kernel on a GPU, at sizes at which it is chosen: no further from float64 than eager is, and the same each time."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import braze

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

#: name -> function, shapes of its inputs
FORMS = {
    "transpose": (lambda x, y: x + y.t(), [(1025, 2050), (2050, 1025)]),
    "transpose in a batch": (lambda x, y: x.transpose(1, 2) * y, [(7, 300, 200), (7, 200, 300)]),
    "columns": (lambda x: x.sum(0), [(65536, 1024)]),
    "odd columns": (lambda x: (x.sum(0), x.amax(0), x.mean(0)), [(65537, 1001)]),
    "few columns": (lambda x: x.sum(0), [(300001, 3)]),
    "columns of a batch": (lambda x: x.sum(1), [(5, 4097, 130)]),
    "everything": (lambda x: (x.sum(), x.amax()), [(1 << 24,)]),
    "everything, odd": (lambda x: x.mean(), [(3, 1001, 4099)]),
    "a turned input": (lambda x: x.t().sum(), [(4096, 4096)]),
    "variance": (lambda x: torch.var_mean(x + 100, (0, 2)), [(64, 33, 3137)]),
    "one long softmax": (lambda x: torch.softmax(x, 0), [(3000001,)]),
    "long rows": (lambda x: torch.logsumexp(x, 1), [(9, 500000)]),
    "short rows": (lambda x: torch.softmax(x, 1), [(70001, 33)]),
    "norm of columns": (lambda x: torch.linalg.vector_norm(x, 2, (1, 2)), [(16, 56, 56, 640)]),
}


def made(shapes, dtype):
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(s, device="cuda", generator=generator).to(dtype) for s in shapes]


def several(found):
    return list(found) if isinstance(found, (tuple, list)) else [found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", FORMS)
def test_no_further_from_float64_than_eager(name, dtype):
    fn, shapes = FORMS[name]
    inputs = made(shapes, dtype)
    exact = several(fn(*(x.double() for x in inputs)))
    eager = several(fn(*inputs))
    compiled = braze.compile(fn)
    ours, again = several(compiled(*inputs)), several(compiled(*inputs))
    for a, b, c, e in zip(ours, again, eager, exact, strict=True):
        assert torch.equal(a, b), "the same numbers each time"
        assert a.dtype is c.dtype and a.shape == c.shape
        scale = float(e.abs().max().clamp_min(1e-30))
        allowed = float((c.double() - e).abs().max()) + 4 * torch.finfo(dtype).eps * scale
        assert float((a.double() - e).abs().max()) <= allowed


def test_positions_of_long_rows():
    x = torch.zeros(3, 5000001, device="cuda")
    x[0, 4000000], x[0, 4500000] = 3, 3
    x[1, 2000000], x[1, 10] = torch.nan, 8
    fn = lambda x: (x.argmax(1), x.argmin(1), x.argmax())
    for ours, theirs in zip(braze.compile(fn)(x), fn(x)):
        assert torch.equal(ours, theirs)


def test_whole_numbers_and_tests():
    x = torch.randint(-1000, 1000, (100003, 37), device="cuda")
    fn = lambda x: (x.sum(0), x.sum(), (x > 998).any(0), (x > -1000).all(0), x.amin(0))
    for ours, theirs in zip(braze.compile(fn)(x), fn(x)):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("rows", [1, 37, 5000, 70000])
def test_sizes_that_vary(rows):
    """One program over symbolic rows serves few and many of them."""
    fn = lambda x, w: (F.layer_norm(x, (100,), w).sum(0), x.t() + 1, (x * w).sum())
    compiled = braze.compile(fn, dynamic=True)
    for n in (rows, rows + 3):
        x, w = made([(n, 100), (100,)], torch.float32)
        for a, e in zip(compiled(x, w), fn(x.double(), w.double())):
            torch.testing.assert_close(a.double(), e, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4096, 50257), (37, 128256), (3, 1000003)])
def test_losses_from_one_read(shape, dtype):
    (x,) = made([shape], dtype)
    y = torch.arange(shape[0], device="cuda") * 7919 % shape[1]
    y[1] = -100
    compiled = braze.compile(lambda x, y: F.cross_entropy(x.float(), y))
    torch.testing.assert_close(compiled(x, y).double(), F.cross_entropy(x.double(), y), rtol=1e-5, atol=1e-5)


def rms_norm(x, w):
    return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape",
    [(65536, 1024), (16384, 4096), (8191, 768), (5, 4099, 100), (70001, 33), (32763, 1025), (8190, 4097)],
)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_rows_and_columns_of_a_norms_backward(norm, shape, dtype):
    """The mixed form: gradients no further from float64 than eager's, the same each time."""
    fn = rms_norm if norm == "rms" else lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)
    inputs = made([shape, shape[-1:], shape[-1:]][: 2 if norm == "rms" else 3], dtype)
    (g,) = made([shape], dtype)

    def gradients(fn, dtype):
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        return torch.autograd.grad(fn(*leaves), leaves, g.to(dtype))

    compiled = braze.compile(fn)
    ours, again = gradients(compiled, dtype), gradients(compiled, dtype)
    for a, b, c, e in zip(ours, again, gradients(fn, dtype), gradients(fn, torch.float64), strict=True):
        assert torch.equal(a, b), "the same numbers each time"
        scale = float(e.abs().max().clamp_min(1e-30))
        allowed = 2 * float((c.double() - e).abs().max()) + 8 * torch.finfo(dtype).eps * scale
        assert float((a.double() - e).abs().max()) <= allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", ["spread", "half one", "one"])
@pytest.mark.parametrize(
    ("rows", "count", "width"),
    [
        (50304, 32768, 1024),
        (2, 16384, 768),
        (1000, 77, 33),
        (128256, 2048, 2304),
        (70001, 777, 129),
        (200, 65, 128),
    ],
)
def test_an_embeddings_gradient(rows, count, width, how, dtype):
    (w,) = made([(rows, width)], dtype)
    (g,) = made([(count, width)], dtype)
    spread = torch.arange(count, device="cuda") * 7919 % rows
    i = {"spread": spread, "half one": torch.where(spread % 2 == 0, 1, spread), "one": spread * 0 + 1}[how]
    compiled = braze.compile(lambda w, i: F.embedding(i, w, padding_idx=0))

    def gradient(fn):
        leaf = w.detach().requires_grad_()
        return torch.autograd.grad(fn(leaf, i), leaf, g)[0]

    ours, again = gradient(compiled), gradient(compiled)
    assert torch.equal(ours, again), "the same numbers each time"
    exact = torch.zeros(rows, width, device="cuda", dtype=torch.float64).index_add_(0, i, g.double())
    exact[0] = 0
    scale = float(exact.abs().max().clamp_min(1e-30))
    digits = 64 * torch.finfo(torch.float32).eps + 2 * torch.finfo(dtype).eps
    assert float((ours.double() - exact).abs().max()) <= digits * scale
