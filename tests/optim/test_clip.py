"""Clipping of gradients: values, norms, warnings and errors are PyTorch's."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import braze
from braze.optim.c_kernels import SPAN
from braze.optim.clip import tables_of

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


def both(params, clip, *args, **kwargs):
    """What braze's function and PyTorch's give, and the gradients that they leave."""
    found = []
    for module in (braze, nn.utils):
        mine = [nn.Parameter(p.detach().clone()) for p in params]
        for p, given in zip(mine, params):
            p.grad = given.grad.clone()
        found.append((getattr(module, clip)(mine, *args, **kwargs), grads(mine)))
    return found


def of_values(*several):
    params = [nn.Parameter(torch.zeros_like(values)) for values in several]
    for p, values in zip(params, several):
        p.grad = values
    return params


@pytest.mark.parametrize("clip", ["clip_grad_norm_", "clip_grad_value_"])
@pytest.mark.parametrize("limit", [0.0, -0.5, NAN, INF])
def test_odd_limits(clip, limit):
    (a, ours), (b, theirs) = both(of_values(torch.tensor([0.0, -0.0, 2.0, -3.0])), clip, limit)
    torch.testing.assert_close(a, b)
    for x, y in zip(ours, theirs):
        torch.testing.assert_close(x, y, equal_nan=True)
        assert torch.equal(x.signbit(), y.signbit())


def test_norms_about_as_small_as_what_is_added_to_them():
    for size, limit in ((1e-6, 1e-6), (0.0, 0.0), (3e-6, 1e-6)):
        (a, ours), (b, theirs) = both(of_values(torch.tensor([size, 0.0])), "clip_grad_norm_", limit)
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("order", [2.0, INF, -INF, 0.0])
def test_orders_over_several_types(order):
    one, two = torch.tensor([3.0, -7.0]), torch.tensor([6.0, -4.0], dtype=torch.float64)
    (a, ours), (b, theirs) = both(of_values(one, two), "clip_grad_norm_", 0.5, order)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours, theirs)


def test_values_of_several_types():
    params = of_values(torch.tensor([3.0, -7.0]), torch.tensor([6.0, -4.0], dtype=torch.float64))
    braze.clip_grad_value_(params, 5.0)
    assert [g.tolist() for g in grads(params)] == [[3.0, -5.0], [5.0, -4.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("at", [0, 15, 16, 40, SPAN - 1, SPAN, 2 * SPAN, 2 * SPAN + 4, 2 * SPAN + 35])
def test_the_largest_counts_wherever_it_is(dtype, at):
    values = torch.ones(2 * SPAN + 36, dtype=dtype)
    values[at] = -5
    assert braze.clip_grad_norm_(of_values(values), 1e6, INF) == 5
    values[at] = NAN
    assert braze.clip_grad_norm_(of_values(values), 1e6, INF).isnan()


def test_the_norm_of_many_that_are_alike_is_exact():
    """Sums of many squares in float32 would be some parts in a million off."""
    values = torch.full((4 * SPAN,), 0.1)
    exact = values.double().square().sum().sqrt()
    norm = braze.clip_grad_norm_(of_values(values), 1e6)
    assert abs(norm.double() - exact) <= 1.2e-7 * exact


def test_memory_that_gradients_share_is_left_to_pytorch():
    """Tasks of one pass would write it at once."""
    memory = torch.ones(12)
    assert tables_of([memory[:8], memory[8:]]) is not None
    assert tables_of([memory[:8], memory[4:]]) is None
    assert tables_of([memory, memory]) is None


@pytest.mark.parametrize("order", [1.0, 2, "inf"])
def test_the_error_names_the_order(order):
    messages = []
    for clip in (braze.clip_grad_norm_, nn.utils.clip_grad_norm_):
        with pytest.raises(RuntimeError) as error:
            clip(of_values(torch.tensor([INF])), 1.0, order, error_if_nonfinite=True)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_what_pytorch_clips_may_come_from_a_generator():
    (one,) = of_values(torch.tensor([2.0, -2.0]))
    assert braze.clip_grad_norm_((p for p in [one]), 1.0, 1.0) == 4
    torch.testing.assert_close(one.grad, torch.tensor([0.5, -0.5]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("braze.optim.clip.tables_of", lambda grads: None)
        braze.clip_grad_value_((p for p in [one]), 0.25)
    assert one.grad.tolist() == [0.25, -0.25]


def test_pytorch_is_given_all_arguments(monkeypatch):
    given = []
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        monkeypatch.setattr(nn.utils, name, lambda *args: given.append(args[1:]))
    params = of_values(torch.tensor([1.0], dtype=torch.complex64))
    braze.clip_grad_norm_(params, 0.5, 3.0, True, False)
    braze.clip_grad_value_(params, 0.5, False)
    assert given == [(0.5, 3.0, True, False), (0.5, False)]


def test_only_an_empty_generator_is_warned_of():
    """In the caller's name; PyTorch has no answer to no gradients where it clamps them."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        braze.clip_grad_norm_([], 1.0)
        braze.clip_grad_value_([], 1.0)
        assert not told
        nn.utils.clip_grad_norm_((p for p in []), 1.0)
        braze.clip_grad_norm_((p for p in []), 1.0)
        braze.clip_grad_value_((p for p in []), 1.0)
    assert len({str(w.message) for w in told}) == 1
    assert [Path(w.filename).name for w in told[1:]] == [Path(__file__).name] * 2


def test_in_inference_mode():
    params = of_values(torch.tensor([3.0, -4.0]))
    with torch.inference_mode():
        assert braze.clip_grad_norm_(params, 1.0) == 5
    torch.testing.assert_close(params[0].grad, torch.tensor([0.6, -0.8]))
