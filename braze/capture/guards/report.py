"""What a compiled frame costs, for ``braze.explain``: seconds once, nanoseconds of guards at each call."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from braze import native
from braze.capture.facts.records import Capture, Check, Guard, Step
from braze.capture.guards.misses import place_of
from braze.capture.guards.tables import build_table
from braze.support.record import record

#: walks in one measurement
WALKS = 200


@record
class GuardBlock:
    """Guards of one kind, and what walking them alone costs."""

    about: str
    guards: int
    nanoseconds: float


@record
class CompiledFrame:
    """The event of a variant made. ``entry`` counts how often it is called."""

    name: str
    place: str
    seconds: float
    resumes: tuple[str, int] | None  # (file, line) of the break after which it goes on
    guards: int
    nanoseconds: float  # of the whole guard walk
    blocks: tuple[GuardBlock, ...]
    entry: Any


def compiled_frame(
    name: str,
    capture: Capture,
    program: Any,
    seconds: float,
    entry: Any,
    function: FunctionType,
    locals: Sequence[Any],
) -> CompiledFrame:
    """Measure the guards of a variant on the values it was made from."""
    resumed = getattr(function, "__braze_resumed__", None)
    return CompiledFrame(
        name=name,
        place=place_of(function, locals),
        seconds=seconds,
        resumes=(resumed.original.co_filename, resumed.line) if resumed is not None else None,
        guards=len(capture.guards),
        nanoseconds=program.cost(function, tuple(locals), WALKS),
        blocks=tuple(_blocks(capture, function, locals)),
        entry=entry,
    )


def about(guard: Guard) -> str:
    """Which block a guard belongs to."""
    if guard.check is Check.RANGE:
        return "relations of sizes"
    if guard.source is None:
        return "modes of torch"
    root, deep = guard.source, False
    while root.parent is not None:
        deep = deep or root.step in (Step.DICT, Step.ATTR)
        root = root.parent
    if root.step is not Step.LOCAL:
        return "globals and closures"
    return "modules and attributes" if deep else "arguments"


def _blocks(capture: Capture, function: FunctionType, locals: Sequence[Any]) -> list[GuardBlock]:
    groups: dict[str, list[Guard]] = {}
    for guard in capture.guards:
        groups.setdefault(about(guard), []).append(guard)
    found = []
    for title, guards in groups.items():
        if title == "relations of sizes":  # they read symbols that other guards bind
            continue
        part = dataclasses.replace(capture, guards=tuple(guards), inputs=(), specs=())
        table = build_table(part, function, locals)
        program = native.GuardProgram(table.nodes, table.checks, (), table.symbols)
        found.append(GuardBlock(title, len(guards), program.cost(function, tuple(locals), WALKS)))
    return found
