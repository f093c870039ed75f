"""What a backward has kept and the program has given more elements since (``h.data = z``): over those eager's derivatives stretch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.support.errors import BackwardError


def refuse_stretched(
    values: Sequence[Any],
    shapes: Sequence[tuple[int, Callable[[dict[str, int]], tuple[int, ...]], torch.dtype]],
    names: dict[str, int],
) -> None:
    """Raise BackwardError (BZ2009) where a saved value broadcasts to what it is by now.

    Each of eager's operations sums the gradient of such a one to the size that its result had, which operators one behind another do not.
    ``shapes``: (place, sizes, type) of the saved tensors, of sizes with these ``names``.
    """
    for i, sizes, _ in shapes:
        was, now = sizes(names), tuple(values[i].shape)
        if was != now and _broadcasts(was, now):
            raise BackwardError(
                "BZ2009",
                f"a tensor that was {list(was)} when its graph ran, and has been given memory of {list(now)} (.data = ...) before the backward",
                why="eager's derivatives stretch over it, which a compiled backward does not",
                hints=["copy into it", "run the backward before, or the function uncompiled"],
            )


def _broadcasts(sizes: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    pairs = zip(reversed(sizes), reversed(wide), strict=False)
    return len(sizes) <= len(wide) and all(n in (1, m) for n, m in pairs)
