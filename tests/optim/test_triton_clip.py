"""Clipping on a GPU, its kernels in Triton's interpreter: values, norms and what is left alone are PyTorch's; they compile to sm_90 without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from braze.optim.clip import tables_of
from braze.optim.gpu_clip import GpuGradients, GpuTable
from braze.optim.triton_clip import CHUNK

INF, NAN = float("inf"), float("nan")
#: rows of no program, of one and of several, and chunks that end within a row
SIZES = [5, 0, 1, CHUNK, CHUNK + 8, 2 * CHUNK + 1]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
#: how far a norm and what is scaled by it may be from float64's: some roundings of the type
NEAR = {torch.float32: 1e-6, torch.float64: 1e-13, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def gradients(dtype, offset=0, scale=0.1):
    g = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n + offset, generator=g, dtype=torch.float64) * scale).to(dtype)[offset:] for n in SIZES
    ]


def on_gpu(grads):
    tables = tables_of(grads)
    assert tables is not None
    return GpuGradients([GpuTable(*table) for table in tables])


def clip(grads, max_norm, order=2.0, dtype=None):
    found = on_gpu(grads)
    total = found.norm(order, dtype or grads[0].dtype, max_norm)
    found.scale()
    return total


def by_pytorch(grads, max_norm, order=2.0):
    params = [nn.Parameter(torch.zeros_like(g)) for g in grads]
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    return nn.utils.clip_grad_norm_(params, max_norm, order)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [2.0, INF])
@pytest.mark.parametrize(("max_norm", "offset"), [(0.5, 0), (0.05, 1), (1e6, 3)])
def test_norms_and_what_is_scaled_by_them(dtype, order, max_norm, offset):
    ours = [g for g in gradients(dtype, offset) if order == 2 or g.numel()]
    exact = [g.to(torch.float64, copy=True) for g in ours]
    before = [g.clone() for g in ours]
    total, truth = clip(ours, max_norm, order), by_pytorch(exact, max_norm, order)
    assert total.dtype is dtype and total.dim() == 0
    torch.testing.assert_close(total.double(), truth, rtol=NEAR[dtype], atol=0)
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(
            a.double(), b, rtol=NEAR[dtype], atol=6e-8
        )  # half a step of denormal halves
    if max_norm == 1e6:
        assert all(torch.equal(a, b) for a, b in zip(ours, before, strict=True))


def test_types_beside_each_other_have_one_norm():
    ours, theirs = ([*gradients(torch.float32), *gradients(torch.bfloat16)] for _ in range(2))
    total, truth = clip(ours, 0.5), by_pytorch(theirs, 0.5)
    assert total.dtype is truth.dtype is torch.float32
    torch.testing.assert_close(total, truth, rtol=1e-3, atol=0)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=0)


@pytest.mark.parametrize("value", [INF, -INF, NAN, 1e30])
@pytest.mark.parametrize("order", [2.0, INF])
@pytest.mark.parametrize("place", [0, CHUNK - 1])
def test_what_is_not_finite_stays_so(value, order, place):
    ours, theirs = ([torch.ones(3), torch.ones(CHUNK + 2)] for _ in range(2))
    for grads in (ours, theirs):
        grads[1][place] = value
    total, truth = clip(ours, 1.0, order), by_pytorch(theirs, 1.0, order)
    torch.testing.assert_close(total, truth, rtol=1e-6, atol=0, equal_nan=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.3125, 0.0, INF])  # of all types: Triton's interpreter cuts bfloat16 off
def test_values_are_clamped_as_pytorchs(dtype, value):
    ours, theirs = gradients(dtype, 1, 1.0), gradients(dtype, 1, 1.0)
    for grads in (ours, theirs):
        grads[3][:5] = torch.tensor([INF, -INF, NAN, -0.0, 0.3125], dtype=dtype)
    on_gpu(ours).clamp(value)
    params = [nn.Parameter(torch.zeros_like(g)) for g in theirs]
    for p, g in zip(params, theirs, strict=True):
        p.grad = g
    nn.utils.clip_grad_value_(params, value)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_gradients_of_nothing_and_a_norm_of_zero():
    nothing = [torch.ones(0), torch.ones(0)]
    assert clip(nothing, 1.0) == 0
    zeros = [torch.zeros(9)]
    assert clip(zeros, 1.0) == 0 and torch.equal(zeros[0], torch.zeros(9))


def test_writes_are_counted():
    ours = gradients(torch.float32)
    before = [g._version for g in ours]
    clip(ours, 0.5)
    assert [g._version for g in ours] == [n + 1 for n in before]


def test_they_compile_to_sm_90_without_a_gpu():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.optim.triton_clip_offline"],
        env=environment, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("wide") == 8
