"""A backward that runs operator by operator: under ``vmap``, and of what has been given memory of another shape or type since it was kept."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze import native
from braze.graph.nodes.captured import Late
from braze.support.errors import BackwardError

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten._unsafe_view.default)
#: a backward's graph -> the same without views to shapes
_without_views: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def run_by_operators(module: torch.fx.GraphModule, values: Sequence[Any]) -> Sequence[Any]:
    """What a graph gives of values that may lie otherwise than it was traced for: ``view`` may have to copy then, as ``reshape`` does."""
    found = _without_views.get(module)
    if found is None:
        graph = copy.deepcopy(module.graph)
        for node in graph.nodes:
            if node.target in _VIEWS:
                node.target = aten.reshape.default
        found = _without_views[module] = Late(graph, module)
    # in a compiled step this runs under a broken call, whose frames are captured
    return native.unhooked(found.forward, *values)  # type: ignore[no-any-return]


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
