"""Convolutions of channels that lie beside each other: products of rows, sums for depthwise windows, ATen's else."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from braze.loops.ir import ExternCall, TemplateCall
from braze.target import cpu_target
from tests.lower.conftest import check, lowered

LAST = torch.channels_last
FORWARD, BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
AMD, INTEL = (dataclasses.replace(cpu_target(), vendor=v) for v in ("AuthenticAMD", "GenuineIntel"))


def picture(*sizes):
    return torch.randn(sizes).to(memory_format=LAST)


def kinds(program):
    """How many products are the template's, and the calls of ATen."""
    templates = [s for s in program.steps if isinstance(s, TemplateCall)]
    return len(templates), [s.target for s in program.steps if isinstance(s, ExternCall)]


def backward(mask, stride=1, padding=0, dilation=1, groups=1):
    """A function of gradient, input and weight that gives the gradients asked for."""

    def f(grad, x, w):
        sizes = [w.shape[0]] if mask[2] else None
        found = torch.ops.aten.convolution_backward(
            grad, x, w, sizes, [stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], groups, mask
        )
        return tuple(found[i] for i in range(3) if mask[i])

    return f


def test_windows_of_one_pixel_are_a_product():
    x, w, b = picture(2, 20, 6, 7), torch.randn(18, 20, 1, 1), torch.randn(18)
    f = lambda x, w, b: F.conv2d(x * 2, w, b).relu()
    assert kinds(check(f, x, w, b, target=AMD)) == (1, [])
    assert kinds(lowered(f, [x, w, b], target=INTEL)) == (0, [FORWARD])
    assert kinds(lowered(f, [x, w, b], target=AMD, gemm_template=False)) == (0, [FORWARD])


@pytest.mark.parametrize("why", ["rows", "stride", "padding", "groups", "few pixels", "type"])
def test_other_convolutions_are_atens(why):
    x, w = picture(2, 20, 6, 7), torch.randn(18, 20, 1, 1)
    options = {}
    if why == "rows":
        x = x.contiguous()
    elif why == "few pixels":
        x = x[:, :, :1, :3].contiguous(memory_format=LAST)
    elif why == "type":
        x, w = x.double(), w.double()
    elif why == "groups":
        w, options = w[:, :10], {"groups": 2}
    else:
        options = {why: 2}
    f = lambda x, w: F.conv2d(x, w, **options)
    assert kinds(check(f, x, w, target=AMD, allow=[FORWARD])) == (0, [FORWARD])


def test_gradients_of_windows_of_one_pixel_are_products():
    inputs = [picture(2, 70, 6, 7), picture(2, 72, 6, 7), torch.randn(70, 72, 1, 1)]
    for mask in ([True, True, True], [True, False, False], [False, True, False]):
        assert kinds(check(backward(mask), *inputs, target=AMD)) == (sum(mask[:2]), [])
    check(backward([False, False, True]), *inputs, allow=[BACKWARD])


def test_a_part_of_the_gradients_may_be_atens():
    """Few channels: the gradient of the weight is not worth packing."""
    inputs = [picture(2, 20, 6, 7), picture(2, 18, 6, 7), torch.randn(20, 18, 1, 1)]
    f = backward([True, True, True])
    assert kinds(check(f, *inputs, target=AMD, allow=[BACKWARD])) == (1, [BACKWARD])


@pytest.mark.parametrize(
    ("window", "stride", "padding", "dilation"), [(5, 1, 2, 1), (7, 2, 3, 1), (4, 1, 0, 1), (5, 2, 1, 2)]
)
@pytest.mark.parametrize("mask", [[True, True, True], [False, True, False], [True, True, False]])
def test_gradients_of_large_depthwise_windows_are_sums(window, stride, padding, dilation, mask):
    x, w = picture(2, 6, 13, 12), torch.randn(6, 1, window, window)
    grad = torch.randn_like(F.conv2d(x, w, None, stride, padding, dilation, 6))
    f = backward(mask, stride, padding, dilation, 6)
    check(f, grad, x, w, allow=[BACKWARD] if mask[0] else [])


def test_windows_of_few_channels_are_atens():
    """No vector is filled by the channels of a colour picture."""
    for channels, externs in ((3, [BACKWARD]), (4, [BACKWARD]), (5, [])):
        x, w = picture(2, channels, 13, 12), torch.randn(channels, 1, 5, 5)
        f = backward([False, True, False], 1, 2, 1, channels)
        assert kinds(check(f, torch.randn_like(x), x, w, allow=externs))[1] == externs


def test_windows_of_other_shapes():
    x = picture(2, 6, 13, 12)
    for shape, padding in (
        ((3, 5), (1, 2)),
        ((5, 3), (2, 1)),
        ((1, 5), (0, 2)),
        ((5, 5), (0, 2)),
        ((9, 9), (4, 4)),
    ):
        w = torch.randn(6, 1, *shape)

        def f(grad, x, w, padding=padding):
            args = (grad, x, w, None, [1, 1], padding, [1, 1], False, [0, 0], 6, [True, True, False])
            return torch.ops.aten.convolution_backward(*args)[:2]

        check(f, torch.randn_like(F.conv2d(x, w, None, 1, padding, 1, 6)), x, w, allow=[BACKWARD])
