"""A bar on the terminal for what takes long."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shown(items: Sequence[T], what: str, progress: bool) -> Iterable[T]:
    """The items, with a bar where somebody looks."""
    if not progress or not items or not sys.stderr.isatty():
        return items
    # rich takes longer to import than most programs wait for
    from rich.console import Console
    from rich.progress import track

    return track(items, what, console=Console(stderr=True), transient=True)
