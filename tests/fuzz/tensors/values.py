"""The numbers that programs get, and the names that their text uses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import braze
from tests.fuzz.tensors.calculus import Clipped, Cube, cond, leaf, mapped, scan, while_loop

Tensor = torch.Tensor

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")


def numbers(shape: tuple[int, ...], dtype: str, seed: int, kind: str = "small") -> Tensor:
    """The same numbers at each call: ``small`` (quarters: sums and products of them are exact), ``normal``, ``special``, ``large``,
    ``seldom`` (small, but for a few special ones)."""
    generator = torch.Generator().manual_seed(seed)
    wanted = getattr(torch, dtype)
    if dtype == "bool":
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.bool)
    if kind == "special":
        special = torch.tensor(_specials(wanted), dtype=wanted)
        return special[torch.randint(0, len(special), shape, generator=generator)]
    if kind == "seldom":
        made = numbers(shape, dtype, seed)
        flat = made.view(-1)
        for at in torch.randint(0, max(flat.numel(), 1), (3,), generator=generator).tolist()[: flat.numel()]:
            flat[at] = numbers((), dtype, seed + at, "special")
        return made
    if not wanted.is_floating_point:
        low = 0 if dtype == "uint8" else -8
        return torch.randint(low, 9, shape, generator=generator).to(wanted)
    if kind == "normal":
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(wanted)
    if kind == "large":
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * 1e3).to(wanted)
    return (torch.randint(-12, 13, shape, generator=generator).double() / 4).to(wanted)


def _specials(dtype: torch.dtype) -> list[float | int]:
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        nan, inf = float("nan"), float("inf")
        return [
            nan,
            inf,
            -inf,
            0.0,
            -0.0,
            info.max,
            info.min,
            info.tiny,
            info.smallest_normal / 4,
            1.0,
            -2.5,
            0.5,
        ]
    whole = torch.iinfo(dtype)
    return [whole.max, whole.min, whole.max - 1, whole.min + 1, 0, 1, 2, 3]


@contextlib.contextmanager
def _no_autocast(*args: Any, **kwargs: Any) -> Iterator[None]:
    """In float64 nothing is cast to less."""
    yield


def names(double: bool = False, device: str = "cpu") -> dict[str, Any]:
    """What the text of a program can name. ``double``: each floating type is float64, for the result that others are held to.

    ``device``: where its numbers are; those in float64 are on the CPU.
    """
    types = {name: getattr(torch, name) for name in (*FLOATS, *INTEGERS, "bool")}
    if double:
        types |= {name: torch.float64 for name in FLOATS}
    made = (lambda *a, **k: _doubled(numbers(*a, **k))) if double else _on(device)
    return {
        **{f"t_{name}": dtype for name, dtype in types.items()},
        "numbers": made,
        "torch": torch,
        "F": F,
        "braze": braze,
        "checkpoint": checkpoint,
        "autocast": _no_autocast if double else torch.autocast,
        **{made.__name__: made for made in (Clipped, Cube, cond, leaf, mapped, scan, while_loop)},
        "inf": float("inf"),
        "nan": float("nan"),
    }


def _on(device: str) -> Callable[..., Tensor]:
    return numbers if device == "cpu" else lambda *a, **k: numbers(*a, **k).to(device)


def _doubled(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x
