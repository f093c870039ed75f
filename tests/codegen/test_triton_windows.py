"""Windows and pictures between their elements in Triton's interpreter: means, their gradients, bilinear interpolation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from tests.codegen.test_triton_forms import check
from tests.codegen.triton_bench import forms, planned

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "means": lambda x: F.avg_pool2d(x, 3, 2, 1) + 1,
    "means of what is there": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False) + 1,
    "twice as large": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") * 2,
    "by nearest ones": lambda x: torch.ops.aten._upsample_nearest_exact2d(x, [9, 4]) * 2,
    "so many means": lambda x: F.adaptive_avg_pool2d(x, (3, 4)) * 2,
    "so many means of many": lambda x: F.adaptive_avg_pool2d(x, (1, 2)) * 2,
    "between corners": lambda x: F.interpolate(x, size=(9, 4), mode="bilinear", align_corners=True) * 2,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_pictures(name, channels_last, tmp_path):
    x = torch.randn(2, 3, 7, 6, generator=torch.Generator().manual_seed(0))
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    check(PROGRAMS[name], tmp_path, x)


def test_gradients_of_means(tmp_path):
    def gradient(g, x):
        return torch.ops.aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1], True, False, None)

    x = torch.randn(2, 3, 7, 6, generator=torch.Generator().manual_seed(0))
    check(gradient, tmp_path, torch.randn_like(F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)), x)


@pytest.mark.parametrize("name", ["nearest2d", "bilinear2d", "bicubic2d"])
def test_gradients_of_interpolations(name, tmp_path):
    words = [] if name == "nearest2d" else [False]

    def gradient(g):
        return getattr(torch.ops.aten, f"upsample_{name}_backward")(g, [9, 4], [2, 3, 4, 3], *words)

    check(gradient, tmp_path, torch.randn(2, 3, 9, 4, generator=torch.Generator().manual_seed(0)))


def test_gradients_of_maxima(tmp_path):
    x = torch.randn(2, 3, 7, 6, generator=torch.Generator().manual_seed(0))
    y, places = F.max_pool2d(x, 3, 2, 1, return_indices=True)

    def gradient(g, x, places):
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        return backward(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, places)

    check(gradient, tmp_path, torch.randn_like(y), x, places)


def test_gradients_of_means_that_divide_the_picture(tmp_path):
    def gradient(g, x):
        return torch.ops.aten._adaptive_avg_pool2d_backward(g, x)

    check(gradient, tmp_path, torch.randn(2, 3, 2, 3), torch.randn(2, 3, 8, 6))


@pytest.mark.parametrize("length", [40, 97])
@pytest.mark.parametrize("size", [1, 5, 8])
def test_windows_that_slide_by_one_have_threads_along_their_beginnings(length, size, tmp_path):
    def means(x):
        windows = x.unfold(1, size, 1)
        return windows.mean(-1), windows.amax(-1)

    x = torch.randn(7, length, generator=torch.Generator().manual_seed(0))
    x[2, 30], x[4, 7], x[5, 11] = torch.nan, torch.inf, -torch.inf
    assert "columns" in check(means, tmp_path, x) or size == 1


def test_windows_that_slide_further_are_read_along_their_rows():
    plan = planned(lambda x: x.unfold(1, 8, 4).mean(-1), torch.empty(7, 800))
    assert forms(plan) == ["rows"]
