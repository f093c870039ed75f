"""Floats of eight bits in Triton's interpreter: made and read by kernels of loops, bit for bit as in eager."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.loops.ir import LoopNest
from tests.codegen.triton_bench import interpreted

FORMATS = [torch.float8_e4m3fn, torch.float8_e5m2]


def every_half() -> torch.Tensor:
    """All numbers of 16 bits, in an order in which none stands at its place."""
    return (
        torch.randperm(1 << 16, generator=torch.Generator().manual_seed(0))
        .to(torch.uint16)
        .view(torch.bfloat16)
    )


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_kernel_rounds_to_eight_bits_as_eager_does(dtype: torch.dtype, tmp_path) -> None:
    x = every_half()
    plan, (found,) = interpreted(lambda x: x.to(dtype), tmp_path, x)
    assert all(isinstance(step, LoopNest) for group in plan.groups for step in group.steps)
    assert torch.equal(found.view(torch.uint8), x.to(dtype).view(torch.uint8))


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_row_is_scaled_and_rounded_in_the_kernel_that_measures_it(dtype: torch.dtype, tmp_path) -> None:
    def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(-1, keepdim=True) / 448.0
        return (x / scale).to(dtype), scale

    x = torch.randn(5, 300)
    plan, (found, scale) = interpreted(quantized, tmp_path, x)
    assert len(plan.groups) == 1
    wanted, theirs = quantized(x)
    assert torch.equal(scale, theirs)
    assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("dtype", FORMATS)
def test_eight_bits_are_read_by_the_kernel_that_computes_with_them(dtype: torch.dtype, tmp_path) -> None:
    x = torch.arange(256).to(torch.uint8).view(dtype).view(16, 16).t()
    plan, (found,) = interpreted(lambda x: x.to(torch.float32) * 2, tmp_path, x)
    assert len(plan.groups) == 1
    torch.testing.assert_close(found, x.float() * 2, rtol=0, atol=0, equal_nan=True)
