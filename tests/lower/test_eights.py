"""Floats of eight bits on the CPU: every byte and every number near a border as in eager, by loops."""

from __future__ import annotations

import pytest
import torch

import braze
from tests.lower.conftest import lowered

FORMATS = [torch.float8_e4m3fn, torch.float8_e5m2]


def borders() -> torch.Tensor:
    """Numbers beside those at which rounding, denormals, infinity and NaN begin."""
    at = [448.0, 464.0, 480.0, 57344.0, 61440.0, 65536.0, 0.0, torch.inf, torch.nan, 1e30]
    at += [2.0**-k for k in range(5, 20)] + [1.5 * 2.0**-k for k in range(5, 20)]
    x = torch.tensor(at)
    x = torch.cat([x, x.nextafter(torch.tensor(torch.inf)), x.nextafter(torch.tensor(0.0))])
    return torch.cat([x, -x])


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("of", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32])
@torch.no_grad()
def test_numbers_become_the_bytes_that_eager_makes_of_them(dtype: torch.dtype, of: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (1 << 14,), generator=generator).to(torch.int32)
    numbers = torch.cat(
        [bits.view(torch.float32), torch.randn(1 << 12, generator=generator) * 100, borders()]
    )
    x = (numbers.nan_to_num().clamp(-1e4, 1e4) if of is torch.int32 else numbers).to(of)
    g = braze.compile(lambda x: x.to(dtype), options={"verify": 2})
    assert torch.equal(g(x).view(torch.uint8), x.to(dtype).view(torch.uint8))
    turned = x[:48].view(6, 8).t()
    assert g(turned).stride() == turned.to(dtype).stride()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("to", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@torch.no_grad()
def test_every_byte_means_what_it_means_in_eager(dtype: torch.dtype, to: torch.dtype) -> None:
    x = torch.arange(256).to(torch.uint8).view(dtype).view(2, 128)[:, 1::2]
    found = braze.compile(lambda x: x.to(to), options={"verify": 2})(x)
    torch.testing.assert_close(found, x.to(to), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(found) | found.isnan(), torch.signbit(x.to(to)) | found.isnan())


@torch.no_grad()
def test_a_scaled_cast_and_back_is_one_graph_of_loops() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 448
        return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale

    x = torch.randn(7, 33)
    program = lowered(f, (x,))
    assert not any("_to_copy" in getattr(step, "target", "") for step in program.steps)
    torch.testing.assert_close(braze.compile(f, dynamic=True)(x), f(x), rtol=0, atol=0)
