"""Convolutions of half types by those of float32, where oneDNN has no others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.decomp import convolutions
from braze.decomp.families import ours

aten = torch.ops.aten
LAST = torch.channels_last

#: sizes of a picture and a weight, and stride, padding, dilation, whether transposed, output padding, groups
KINDS = {
    "one dim": ((2, 6, 11), (4, 6, 3), ([2], [1], [1], False, [0], 1)),
    "two dims": ((2, 6, 9, 8), (4, 6, 3, 3), ([1, 1], [1, 0], [2, 1], False, [0, 0], 1)),
    "three dims": ((1, 3, 5, 4, 6), (4, 3, 2, 2, 2), ([1, 1, 1], [0, 0, 0], [1, 1, 1], False, [0, 0, 0], 1)),
    "transposed": ((2, 6, 5, 5), (6, 4, 2, 2), ([2, 2], [0, 0], [1, 1], True, [0, 0], 1)),
    "a window for each channel": ((2, 6, 9, 9), (6, 1, 5, 5), ([1, 1], [2, 2], [1, 1], False, [0, 0], 6)),
    "no pictures": ((0, 6, 9, 9), (4, 6, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
}


@pytest.fixture(autouse=True)
def without_half_types(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(convolutions, "has_type", lambda dtype: False)
    yield
    braze.reset()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_are_as_exact_as_eagers(kind, dtype):
    picture, window, how = KINDS[kind]
    x, weight = torch.randn(picture).to(dtype), torch.randn(window).to(dtype)
    bias = torch.randn(window[1] if how[3] else window[0]).to(dtype)
    theirs = aten.convolution.default(x, weight, bias, *how)
    found = ours()[aten.convolution.default](x, weight, bias, *how)
    exact = aten.convolution.default(x.double(), weight.double(), bias.double(), *how)
    _assert_as_exact(found, theirs, exact)
    grad, rest = torch.randn(theirs.shape).to(dtype), ([bias.numel()], *how, [True, True, True])
    made = ours()[aten.convolution_backward.default](grad, x, weight, *rest)
    eager = aten.convolution_backward.default(grad, x, weight, *rest)
    wide = aten.convolution_backward.default(grad.double(), x.double(), weight.double(), *rest)
    for each in zip(made, eager, wide, strict=True):
        _assert_as_exact(*each)


def _assert_as_exact(found, theirs, exact):
    assert found.dtype is theirs.dtype
    assert found.shape == theirs.shape
    if exact.numel():
        error, wanted = ((v.double() - exact).abs().max() for v in (found, theirs))
        assert error <= wanted + exact.abs().max() * torch.finfo(found.dtype).eps


def test_gradients_that_nobody_wants_are_none():
    picture, window, how = KINDS["two dims"]
    x, weight = torch.randn(picture).bfloat16(), torch.randn(window).bfloat16()
    grad = aten.convolution.default(x, weight, None, *how)
    rule = ours()[aten.convolution_backward.default]
    dx, dw, db = rule(grad, x, weight, [4], *how, [False, True, False])
    assert dx is db is None
    assert dw.shape == weight.shape


def test_other_types_and_two_at_once_stay_as_they_are():
    picture, window, how = KINDS["two dims"]
    x, weight = torch.randn(picture), torch.randn(window)
    rule = ours()[aten.convolution.default]
    assert rule(x, weight, None, *how) is NotImplemented
    assert rule(x.bfloat16(), weight, None, *how) is NotImplemented
    assert rule(x.bfloat16(), weight.bfloat16(), torch.randn(4), *how) is NotImplemented


@pytest.mark.parametrize("form", [torch.contiguous_format, LAST], ids=str)
def test_a_step_keeps_operands_in_their_own_type_and_lays_results_out_as_eager_does(form):
    saved = []

    def step(x, weight):
        return F.conv2d(x, weight, padding=1)

    x = torch.randn(2, 6, 9, 8).bfloat16().contiguous(memory_format=form).requires_grad_()
    weight = torch.randn(4, 6, 3, 3).bfloat16().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.dtype) or t, lambda t: t):
        made = braze.compile(step)(x, weight)
    assert set(saved) == {torch.bfloat16}
    wanted = step(x, weight)
    assert made.stride() == wanted.stride()
    grads, eager = (torch.autograd.grad(y, [x, weight], torch.ones_like(y)) for y in (made, wanted))
    for ours_is, theirs in zip(grads, eager, strict=True):
        assert ours_is.stride() == theirs.stride()
        torch.testing.assert_close(ours_is, theirs, rtol=0.05, atol=0.1)


def test_a_weight_is_cast_and_put_in_order_once():
    weight = torch.nn.Conv2d(64, 96, 3, padding=1).bfloat16()
    x = torch.randn(1, 64, 6, 6).bfloat16()
    compiled = braze.compile(weight)
    with torch.no_grad():
        compiled(x)
        with torch.autograd.profiler.profile() as profile:
            compiled(x)
    names = [event.name for event in profile.function_events]
    assert "braze::convolution_weight" not in names
    assert "mkldnn::_convolution_pointwise" in names
