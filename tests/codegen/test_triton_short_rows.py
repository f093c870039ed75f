"""Short rows that begin anywhere, read in whole vectors and held to their ends; in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from tests.codegen.test_triton_forms import INF, NAN, check, numbers
from tests.codegen.test_triton_vectors import plan_of

DIGITS = {torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 4e-2}
LENGTHS = [1025, 1026, 1031, 1151, 2047, 2049, 3001, 4097, 5001, 7169, 8191]


def layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)


def rms_norm(x, w):
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w


def gradient(g, y):
    """A softmax's."""
    return ((g.float() - (g.float() * y.float()).sum(-1, keepdim=True)) * y.float()).to(g.dtype)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", list(DIGITS))
@pytest.mark.parametrize("fn", [torch.softmax, torch.log_softmax])
def test_a_softmax_of_rows_that_vectors_do_not_divide(fn, dtype, length, tmp_path):
    x = numbers(9, length, dtype=dtype)
    x[1, 0], x[1, -1], x[3], x[5, 2], x[6, 255] = INF, INF, -INF, NAN, -INF
    check(lambda x: fn(x, 1), tmp_path, x, cores=1, digits=DIGITS[dtype])
    assert plan_of(lambda x: fn(x, 1), x, cores=1).to_its_end


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", list(DIGITS))
def test_a_layer_norm_of_rows_that_vectors_do_not_divide(dtype, length, tmp_path):
    """Beside whose kernel another one lays out the weight and the bias."""
    x, w, b = numbers(257, length, dtype=dtype)[:, :], numbers(length, dtype=dtype, seed=1), numbers(length, seed=2)
    x[4] += 100
    check(layer_norm, tmp_path, x, w, b.to(dtype), cores=1, digits=4 * DIGITS[dtype])
