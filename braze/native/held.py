"""Whether one variable holds a tensor, asked by the C core where it is built: of each large value that a backward might write over."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def held_once(uses: int, of_memory: int) -> Callable[[Any], bool] | None:
    """The function that says so, by the uses of C++ of such a tensor and of its memory; None: there is no core."""
    core = sys.modules.get("braze.native._native")
    if core is None:
        return None
    return core._held_once((_counted(core), uses, of_memory))  # type: ignore[no-any-return]


def _counted(core: Any) -> int:
    """The references to an object that one variable of a function of Python holds."""
    mark = object()
    return int(core._references(mark))


def look() -> Any:
    """For the class of an autograd function's contexts, a step back that gives its one gradient on, and notes in ``references`` how many the core counts; None: there is no core."""
    core = sys.modules.get("braze.native._native")
    return core._look() if core is not None else None
