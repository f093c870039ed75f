"""Cells of closures: what they hold in the trace, by a variable's name or by ``cell.cell_contents``."""

from __future__ import annotations

import types
from typing import Any

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.records import Step
from braze.capture.facts.values import MISSING
from braze.capture.state.ledger import Ledger
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Trace


def contents(t: Trace, cell: types.CellType) -> Any:
    """What a cell holds, as the interpreter sees it; MISSING where it is empty."""
    written = t.done.cells_written.get(id(cell))
    if written is not None:
        return written[1]
    known = t.outside.cells.get(id(cell))
    if known is not None:
        node = known[1]
        if node.real is not MISSING:
            return node.value
        return t.outside.see(node, cell.cell_contents) if not is_empty(cell) else MISSING
    if is_empty(cell):
        return MISSING
    owner = t.outside.tree.node_of(cell)
    if owner is not None:
        return t.outside.read(owner, Step.ATTR, "cell_contents", cell.cell_contents)
    return cell.cell_contents


def peek(done: Ledger, cell: types.CellType) -> Any:
    """What a cell holds as far as the trace has come, which nobody has asked for: nothing is guarded."""
    written = done.cells_written.get(id(cell))
    if written is not None:
        return written[1]
    return MISSING if is_empty(cell) else cell.cell_contents


def write(t: Trace, cell: types.CellType, value: Any) -> None:
    """Fill a cell; MISSING empties it. One from outside is filled when the graph has run."""
    if comes_from_outside(t.outside, cell):
        t.done.cells_written[id(cell)] = (cell, value)
    elif value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def comes_from_outside(outside: Outside, cell: types.CellType) -> bool:
    """Whether the trace found the cell rather than made it."""
    return id(cell) in outside.cells or outside.tree.node_of(cell) is not None


def is_empty(cell: types.CellType) -> bool:
    """Whether a cell has no contents."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def attribute(t: Trace, cell: types.CellType, name: str, tail: bool) -> Any:
    """``cell.cell_contents``, and what all objects have."""
    if name != "cell_contents":
        return getattr(cell, name)
    value = contents(t, cell)
    if value is MISSING:
        if comes_from_outside(t.outside, cell) and id(cell) not in t.done.cells_written:
            graph_break("BZ1014", "an empty cell of an outer function is looked into")
        raise ValueError("Cell is empty")
    return value
