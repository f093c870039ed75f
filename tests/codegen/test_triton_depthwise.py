"""Depthwise convolutions by our own kernels, in Triton's interpreter: what becomes one kernel, and its numbers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.codegen.triton.depthwise import depthwise_of
from braze.codegen.triton.depthwise_tiles import Strips, strips_of
from braze.loops.ir import TemplateCall
from tests.codegen.test_triton import offline
from tests.codegen.test_triton_gemm import no_further, numbers
from tests.codegen.triton_bench import context, planned, run
from tests.loops.interpret import interpret

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
LAST = torch.channels_last


def kinds(plan):
    return [g.kind.value for g in plan.groups]


def ours(fn, *inputs):
    """The schedule of a function by the template. Recorded calls have their one convolution in channels-last, too."""
    last = inputs[0].stride(1) == 1
    return planned(
        fn, *inputs, depthwise_template=True, channels_last=None if last else False, cudagraphs=True
    )


def check(fn, folder, *inputs, strips=(Strips(3, 4, 4, 4),)):
    """The function's kernels, its template in the rule's cut and others, against eager; its loops, interpreted, as well."""
    plan = ours(fn, *inputs)
    no_further(run(plan, folder, *inputs), fn, inputs)
    if not any(x.dtype is BF16 for x in inputs):
        no_further(interpret(plan.program, list(inputs)), fn, inputs)
    for group in plan.groups:
        if isinstance(group.call, TemplateCall):
            for cut in strips:
                ctx = dataclasses.replace(context(), tiles=((group.name, cut.text()),))
                no_further(run(plan, folder, *inputs, texts=generate(plan, ctx)), fn, inputs)
    return plan


def given(n=2, c=5, h=6, w=7, k=3, dtype=F32, last=True):
    x = numbers(n, c, h, w, dtype=dtype)
    return (x.contiguous(memory_format=LAST) if last else x), numbers(c, 1, k, k, dtype=dtype, seed=1)


def conv(stride=1, padding=0, dilation=1, last=True):
    """The convolution; its results lie as the pictures do, which a PyTorch without cuDNN does not tell."""

    def made(x, w):
        return laid(F.conv2d(x, w, None, stride, padding, dilation, w.shape[0]), last)

    return made


def laid(y, last):
    return y.clone(memory_format=LAST if last else torch.contiguous_format)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    ("k", "stride", "padding", "dilation"),
    [(3, 1, 1, 1), (3, 2, 1, 1), (3, 1, 0, 2), (5, 1, 2, 1), (5, 2, 2, 1), (7, 1, 3, 1), (3, 3, 4, 1), (1, 2, 0, 1), (3, (1, 2), (0, 1), (2, 1))],
)  # fmt: skip
def test_windows_of_every_kind(k, stride, padding, dilation, last, tmp_path):
    plan = check(conv(stride, padding, dilation, last), tmp_path, *given(k=k, last=last))
    assert window_of(plan).last is last
    assert kinds(plan)[-1] == "tem"


def in_groups(groups):
    return lambda x, w: F.conv2d(x, w, None, 1, 1, 1, groups)


def window_of(plan):
    (call,) = [g.call for g in plan.groups if isinstance(g.call, TemplateCall)]
    return call.window


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_every_cut_in_every_type(dtype, last, tmp_path):
    inputs = given(1, 6, 6, 7, dtype=dtype, last=last)
    (call,) = [g.call for g in ours(conv(1, 1, last=last), *inputs).groups if g.call]
    plan = check(conv(1, 1, last=last), tmp_path, *inputs, strips=strips_of(depthwise_of(call)))
    assert window_of(plan).last is last


@pytest.mark.parametrize("last", [True, False])
def test_bias_norm_and_activation_are_done_in_the_same_kernel(last, tmp_path):
    x, w = given(last=last, dtype=F16)
    bias, scale, shift, mean = (numbers(5, dtype=F16, seed=k) for k in range(2, 6))
    variance = numbers(5, dtype=F16, seed=6).abs() + 0.5

    def block(x, w, bias, scale, shift, mean, variance):
        y = F.conv2d(x, w, bias, 2, 1, 1, 5)
        return laid(F.hardswish(F.batch_norm(y, mean, variance, scale, shift)), last)

    plan = check(block, tmp_path, x, w, bias, scale, shift, mean, variance)
    calls = [g.call for g in plan.groups if g.call]
    assert (
        len(calls) == 1 and kinds(plan)[-1] == "tem"
    )  # before it windows are copied, and a number made for each channel


@pytest.mark.parametrize("last", [True, False])
def test_a_residual_is_added_in_the_same_kernel(last, tmp_path):
    x, w = given(last=last)
    plan = check(lambda x, w: laid(x + F.gelu(F.conv2d(x, w, None, 1, 1, 1, 5)), last), tmp_path, x, w)
    assert kinds(plan) == (["poi", "tem"] if last else ["tem"])


def test_what_is_read_of_a_row_or_a_column_alone(tmp_path):
    x, w = given(last=True)
    rows, columns = numbers(6, 1, seed=2), numbers(7, seed=3)

    def scaled(x, w, rows, columns):
        return laid(F.conv2d(x, w, None, 1, 1, 1, 5) * rows + columns, True)

    plan = check(scaled, tmp_path, x, w, rows, columns)
    assert kinds(plan) == ["poi", "tem"]


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("sizes", [(1, 2, 1, 1), (3, 2, 1, 9), (1, 33, 9, 1), (2, 2, 3, 4)], ids=str)
def test_pictures_of_few_pixels(sizes, last, tmp_path):
    check(conv(1, 1, last=last), tmp_path, *given(*sizes, last=last))


def test_pictures_that_lie_apart_or_are_one(tmp_path):
    _, w = given()
    wide = numbers(2, 5, 8, 12)
    first = conv(1, 1, last=False)
    check(first, tmp_path, wide[:, :, 1:7, 3:10], w)
    check(conv(1, 1), tmp_path, wide.contiguous(memory_format=LAST)[:, :, 1:7, 3:10], w)
    check(first, tmp_path, numbers(1, 5, 6, 7).expand(3, 5, 6, 7), w)
    check(first, tmp_path, wide, numbers(9, 1, 3, 3, seed=1)[2:7])


@pytest.mark.parametrize("last", [True, False])
def test_infinities_and_nan_reach_the_windows_that_hold_them(last, tmp_path):
    x, w = given(last=last)
    x[0, 0, 0, 0], x[0, 1, 4, 4], x[1, 2, 5, 6], x[1, 3, 0, 3] = torch.inf, torch.nan, -torch.inf, -0.0
    convolved = conv(1, 1, last=last)
    (found,) = run(ours(convolved, x, w), tmp_path, x, w)
    torch.testing.assert_close(found, convolved(x, w), equal_nan=True)


def test_other_convolutions_are_atens():
    x = numbers(2, 6, 9, 9)
    for w, groups in ((numbers(12, 1, 3, 3), 6), (numbers(6, 2, 3, 3), 3), (numbers(6, 1, 9, 9), 6)):
        plan = ours(in_groups(groups), x, w)
        assert "tem" not in kinds(plan)
    assert "tem" not in kinds(planned(conv(1, 1), *given(), depthwise_template=False))
    assert "tem" not in kinds(ours(conv(1, 1), *given(dtype=torch.float64)))
    assert "tem" not in kinds(planned(conv(1, 1), *given()))


def test_machine_code_keeps_sums_in_registers():
    cuts = [
        line for line in offline("tests.codegen.depthwise_offline").splitlines() if line.startswith("cut ")
    ]
    assert len(cuts) == 4 and all(" 0 bytes of stack" in line for line in cuts), cuts
