"""Clipping of gradients: values, norms, warnings and errors are PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import braze

INF, NAN = float("inf"), float("nan")
SHAPES = [(3, 5), (), (0,), (1,), (40000,), (70, 70)]


def parameters(dtype=torch.float32, scale=1.0, order=2.0):
    g = torch.Generator().manual_seed(0)
    shapes = [s if s != (0,) or order == 2 else (2,) for s in SHAPES]
    made = [nn.Parameter(torch.zeros(s, dtype=dtype)) for s in shapes]
    for p in made:
        p.grad = (torch.randn(p.shape, generator=g) * scale).to(dtype)
    made.append(nn.Parameter(torch.zeros(2, dtype=dtype)))  # without a gradient
    return made


def grads(params):
    return [p.grad for p in params if p.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("order", [2.0, 2, INF, "inf", 1.0, 3.0])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_norm(dtype, order, max_norm):
    ours, exact = parameters(dtype, 0.1, order), parameters(dtype, 0.1, order)
    for p in exact:
        p.grad = None if p.grad is None else p.grad.clone()
        p.data, grad = p.data.double(), p.grad
        p.grad = None if grad is None else grad.double()
    truth = nn.utils.clip_grad_norm_(exact, max_norm, order)
    norm = braze.clip_grad_norm_(ours, max_norm, order)
    assert norm.dtype == dtype
    assert norm.dim() == 0
    tolerance = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 1e-6, torch.float64: 1e-12}[dtype]
    if order not in (2, INF, "inf"):
        tolerance *= 10  # PyTorch's own
    torch.testing.assert_close(norm.double(), truth, rtol=tolerance, atol=0)
    for a, b in zip(grads(ours), grads(exact)):
        torch.testing.assert_close(
            a.double(), b, rtol=2 * tolerance, atol=1e-7 if dtype != torch.float16 else 1e-5
        )


@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("order", [2.0, INF])
def test_norm_that_is_not_finite(value, order):
    ours, theirs = parameters(order=order), parameters(order=order)
    for params in (ours, theirs):
        params[5].grad[3, 4] = value
    messages = []
    for clip, params in ((braze.clip_grad_norm_, ours), (nn.utils.clip_grad_norm_, theirs)):
        with pytest.raises(RuntimeError) as error:
            clip(params, 1.0, order, error_if_nonfinite=True)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    a, b = braze.clip_grad_norm_(ours, 1.0, order), nn.utils.clip_grad_norm_(theirs, 1.0, order)
    assert torch.equal(a, b) or (a.isnan() and b.isnan())
    for x, y in zip(grads(ours), grads(theirs)):
        torch.testing.assert_close(x, y, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_value(dtype):
    ours, theirs = parameters(dtype), parameters(dtype)
    for params in (ours, theirs):
        params[0].grad.view(-1)[:5] = torch.tensor([INF, -INF, NAN, 0.0, -0.0])
    assert braze.clip_grad_value_(ours, 0.3) is None
    nn.utils.clip_grad_value_(theirs, 0.3)
    for a, b in zip(grads(ours), grads(theirs)):
        assert torch.equal(a.isnan(), b.isnan())
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def test_a_norm_below_the_limit_writes_nothing():
    params = parameters()
    before = [(g._version, g.clone()) for g in grads(params)]
    braze.clip_grad_norm_(params, 1e9)
    assert all(g._version == v and torch.equal(g, kept) for g, (v, kept) in zip(grads(params), before))
    braze.clip_grad_norm_(params, 1.0)
    assert all(g._version > v for g, (v, _) in zip(grads(params), before))


def test_what_may_be_given():
    one = nn.Parameter(torch.ones(4))
    one.grad = torch.full((4,), 2.0)
    assert braze.clip_grad_norm_(one, 1.0) == 4.0
    one.grad = torch.full((4,), 2.0)
    assert braze.clip_grad_norm_((p for p in [one]), 1.0) == 4.0
    braze.clip_grad_value_(one, 0.1)
    assert one.grad.tolist() == pytest.approx([0.1] * 4)
    assert braze.clip_grad_norm_([], 1.0) == 0
    assert braze.clip_grad_norm_([nn.Parameter(torch.ones(2))], 1.0) == 0
    with pytest.warns(UserWarning, match="empty generator"):
        braze.clip_grad_norm_((p for p in []), 1.0)


def odd(kind):
    params = [nn.Parameter(torch.zeros(4, 6)) for _ in range(2)]
    torch.manual_seed(1)
    params[0].grad = torch.randn(4, 6)
    if kind == "window":
        params[0].grad = torch.randn(8, 6)[::2]
    if kind == "expanded":
        params[0].grad = torch.randn(6).expand(4, 6).clone().t().contiguous().t()
    params[1].grad = params[0].grad if kind == "shared" else torch.randn(4, 6)
    if kind == "types":
        params[1] = nn.Parameter(torch.zeros(4, dtype=torch.float64))
        params[1].grad = torch.randn(4, dtype=torch.float64)
    if kind == "complex":
        params[1] = nn.Parameter(torch.zeros(4, dtype=torch.complex64))
        params[1].grad = torch.randn(4, dtype=torch.complex64)
    return params


@pytest.mark.parametrize("kind", ["window", "expanded", "shared", "types", "complex"])
def test_odd_gradients(kind):
    ours, theirs = odd(kind), odd(kind)
    a, b = braze.clip_grad_norm_(ours, 1.0), nn.utils.clip_grad_norm_(theirs, 1.0)
    torch.testing.assert_close(a, b)
    for x, y in zip(grads(ours), grads(theirs)):
        torch.testing.assert_close(x, y)


def test_largest_of_nothing_is_pytorchs_error():
    p = nn.Parameter(torch.zeros(0))
    p.grad = torch.zeros(0)
    with pytest.raises(RuntimeError, match="infinity norm on an empty tensor"):
        braze.clip_grad_norm_([p], 1.0, INF)


def test_under_a_default_device():
    """What the program makes new tensors on is not where its gradients are."""
    ours, theirs = parameters(), parameters()
    with torch.device("meta"):
        norms = braze.clip_grad_norm_(ours, 0.5), nn.utils.clip_grad_norm_(theirs, 0.5)
    torch.testing.assert_close(*norms)
    for a, b in zip(grads(ours), grads(theirs)):
        torch.testing.assert_close(a, b)
