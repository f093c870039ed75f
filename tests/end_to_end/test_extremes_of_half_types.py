"""Gradients of extremes of half types look for the extreme among the very numbers that it was found in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import braze

Tensor = torch.Tensor


def chain(x: Tensor) -> Tensor:
    return (torch.rsqrt(x.square() + 1) * 1.5 + 1).relu()


def scattered(x: Tensor) -> Tensor:
    places = torch.arange(14, device=x.device).expand(x.shape) * 5 % 9
    y = torch.zeros_like(x).scatter_reduce(3, places, x, "amax")
    return y * y.sin()


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "scaled by the largest": lambda x: chain(x) / (chain(x).abs().amax(1, keepdim=True) + 1),
    "amax": lambda x: chain(x).amax(1),
    "amin": lambda x: chain(x).amin((1, 2)),
    "aminmax": lambda x: chain(x).aminmax(dim=1).max,
    "largest of all": lambda x: (x.sigmoid() * 3 + 1).sin().max(),
    "largest norm": lambda x: (x.sigmoid() * 3 + 1).sin().norm(float("inf"), 1),
    "of a view": lambda x: chain(x).flatten(1).amax(1),
    "in a longer type": lambda x: (chain(x) * 1.3).float().amax(1),
    "of what a longer type makes of it": lambda x: ((chain(x) * 1.3).float() * 1.7 + 1).sin().amax(1),
    "at computed places": lambda x: scattered((F.layer_norm(x, (14,)) * 1.3).float()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_some_element_is_the_extreme_in_the_backward_too(name: str, last: bool, dtype: torch.dtype) -> None:
    """Numbers made again with other roundings than the forward's were none of them equal to it: 0 was divided by 0."""
    f = FUNCTIONS[name]
    x = torch.randn(8, 16, 14, 14, generator=torch.Generator().manual_seed(3)).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    x.requires_grad_()
    result = braze.compile(f)(x)
    (ours,) = torch.autograd.grad(result, x, torch.ones_like(result))
    assert ours.isfinite().all() and (ours != 0).any()
