"""Rows of which one operand lies along the row and another across it, in Triton's interpreter: norms and sums of channels of pictures."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.schedule.gpu.kernels import plan_kernel
from tests.codegen.test_triton_forms import check
from tests.codegen.triton_bench import planned

aten = torch.ops.aten


def pictures(*shape, last=False):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + last))
    return x.contiguous(memory_format=torch.channels_last) if last else x


def products(g, x):
    return (g * x).sum((0, 2, 3))


def norm(x, w):
    return aten.native_layer_norm(x.permute(0, 2, 3, 1), [20], w, None, 1e-5)[0]


def gradients(channels):
    def of_all(g, x, mean, rstd, w):
        g, x = (t.permute(0, 2, 3, 1) for t in (g, x))
        return aten.native_layer_norm_backward(g, x, [channels], mean, rstd, w, w, [True, True, True])

    return of_all


def cuts(f, *inputs):
    """Of each kernel: points and elements of a row in a tile, and whether that is all of it."""
    plan = planned(f, *inputs)
    buffers = {b.name: b for b in plan.program.buffers}
    plans = [plan_kernel(g, buffers) for g in plan.groups]
    return [(p.points[-1].block, p.row and p.row.block, p.whole) for p in plans]


@pytest.mark.parametrize("channels", [20, 96])
@pytest.mark.parametrize("images", [1, 8])
def test_sums_of_channels(channels, images, tmp_path):
    check(
        products, tmp_path, pictures(images, channels, 12, 12, last=True), pictures(images, channels, 12, 12)
    )


def test_as_many_rows_as_lie_side_by_side_are_a_tile():
    sums = cuts(products, pictures(64, 96, 56, 56, last=True), pictures(64, 96, 56, 56))
    assert sums[0] == (16, 256, False)
    assert cuts(norm, pictures(8, 20, 56, 56), torch.randn(20)) == [(64, 32, True)]
    assert cuts(products, *[pictures(64, 96, 56, 56) for _ in range(2)])[0][0] == 1, "all along the row"


def test_what_is_normalized_is_computed_anew_rather_than_stored_for_two_kernels():
    """Rows alone of the kernel of the input's gradient would read it: it is stored nowhere, so that it may lie across them."""
    x, g = pictures(64, 96, 56, 56), pictures(64, 96, 56, 56, last=True)

    def both(g, x, mean, rstd, w):
        made = gradients(96)(g, x, mean, rstd, w)
        return made[0], made[1]

    moments = [torch.randn(64, 56, 56, 1) for _ in range(2)]
    made = cuts(both, g, x, *moments, torch.randn(96))
    assert len(made) == 3
    assert {(32, 128, True), (16, 256, False)} < set(made)


def test_layer_norm_of_channels(tmp_path):
    check(norm, tmp_path, pictures(2, 20, 12, 7), torch.randn(20))


@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_layer_norm_of_channels(last, tmp_path):
    x, g = pictures(3, 20, 12, 12), pictures(3, 20, 12, 12, last=last)
    moments = [torch.randn(3, 12, 12, 1), torch.rand(3, 12, 12, 1) + 0.5]
    check(gradients(20), tmp_path, g, x, *moments, torch.randn(20))
