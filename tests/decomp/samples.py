"""Arguments for operators: random numbers, with special values strewn in where asked for."""

from __future__ import annotations

import torch

INF, NAN = float("inf"), float("nan")


def numbers(*shape: int, dtype: torch.dtype = torch.float64, special: bool = True) -> torch.Tensor:
    """Random numbers with zeros, infinities and nan strewn in."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + 7), dtype=torch.float64) * 2
    flat = x.view(-1)
    if special and flat.numel() > 8:
        for i, value in enumerate((0.0, -0.0, INF, -INF, NAN)):
            flat[(i * 7 + 1) % flat.numel()] = value
    return x.to(dtype)


def plain(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return numbers(*shape, dtype=dtype, special=False)


def unit(*shape: int) -> torch.Tensor:
    return plain(*shape).sigmoid()


def ints(*shape: int, high: int = 5) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(3))


def bools(*shape: int) -> torch.Tensor:
    return plain(*shape) > 0
