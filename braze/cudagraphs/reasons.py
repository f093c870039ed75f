"""Each recording that is made again, cut or left out has a code: it is logged, counted, and told to ``explain``."""

from __future__ import annotations

from braze.support import trace
from braze.support.log import logger, warn_once
from braze.support.record import record


@record
class Note:
    """One thing that befell a graph: its code, the graph's name, and why."""

    code: str
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.code} {self.name}: {self.why}"


def note(code: str, name: str, why: str, *, tell: object = None) -> None:
    """Write it down; ``tell``: also as a warning, once for that cause."""
    found = Note(code, name, why)
    trace.count(f"cudagraphs_{code}")
    trace.emit("cudagraph", found)
    if tell is None or not warn_once((code, tell), f"{code}: {name} {why}", "cudagraphs"):
        logger("cudagraphs").info("%s", found)
