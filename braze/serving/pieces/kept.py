"""A model compiled in pieces as text, by which another process has it without capturing, cutting or lowering anything.

It is the split graph, the pieces that run as they are, and of each compiled piece what its compiler loads it by alone. All of it or nothing: a model of which a
piece can be loaded with its graph alone, or whose graphs hold tensors or objects without a name, is not kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import Graph

from braze.capture.archive.archived_values import (
    NotArchived,
    Reader,
    Writer,
    read_nodes,
    without_tensors,
    write_nodes,
)
from braze.serving.pieces.compiler import Compiled
from braze.serving.pieces.manager import CompilerManager
from braze.serving.pieces.piecewise import ConcreteSizeEntry, SizedPiece
from braze.serving.pieces.specialise import SizeRange
from braze.support.record import record

FORMAT = 1
#: what reading text that nobody wrote so may raise
DAMAGE = (NotArchived, LookupError, TypeError, ValueError, AttributeError, RuntimeError)


@record
class Part:
    """One piece: a splitting one's graph, or a compiled one's call. ``fresh``: its outputs in memory of their own."""

    name: str
    number: int
    graph: Graph | None
    sized: SizedPiece | None
    fresh: tuple[int, ...]


@record
class Pieces:
    """A model in pieces. ``moving``: inputs that the caller makes anew for each step; ``fresh``: outputs in memory of their own."""

    graph: Graph
    parts: tuple[Part, ...]
    moving: tuple[int, ...]
    fresh: tuple[int, ...]


def write_pieces(pieces: Pieces, manager: CompilerManager, inputs: Sequence[str]) -> bytes:
    """The pieces as text. NotArchived says why they cannot be."""
    writer, handles = Writer(), _Handles(manager)
    body = {
        "format": FORMAT,
        "inputs": list(inputs),
        "graph": write_nodes(pieces.graph, writer, without_tensors),
        "parts": [
            {
                "name": part.name,
                "number": part.number,
                "graph": write_nodes(part.graph, writer, without_tensors) if part.graph is not None else None,
                "sized": _write_sized(part.sized, handles) if part.sized is not None else None,
                "fresh": part.fresh,
            }
            for part in pieces.parts
        ],
        "moving": pieces.moving,
        "fresh": pieces.fresh,
        "handles": handles.found,
    }
    return json.dumps({"tables": writer.tables(), "body": body}).encode()


def inputs_of(data: bytes) -> list[str]:
    """The inputs of the graph that pieces were made of."""
    return list(json.loads(data)["body"]["inputs"])


def read_pieces(data: bytes, manager: CompilerManager) -> Pieces:
    """The pieces again, their kernels loaded. One of ``DAMAGE`` where that cannot be."""
    whole = json.loads(data)
    body, reader = whole["body"], Reader(whole["tables"])
    if body["format"] != FORMAT:
        raise ValueError(f"its format is {body['format']}, not {FORMAT}")
    calls = [manager.load_alone(handle, _shape_of(shape)) for handle, shape in body["handles"]]
    parts = [
        Part(
            part["name"],
            part["number"],
            read_nodes(part["graph"], reader)[0] if part["graph"] is not None else None,
            _read_sized(part["sized"], calls) if part["sized"] is not None else None,
            tuple(part["fresh"]),
        )
        for part in body["parts"]
    ]
    if any(part.graph is None and part.sized is None for part in parts):
        raise ValueError("a piece is neither run as it is nor compiled")
    return Pieces(
        read_nodes(body["graph"], reader)[0], tuple(parts), tuple(body["moving"]), tuple(body["fresh"])
    )


# -- what is called --------------------------------------------------------------------------------


class _Handles:
    """What calls are loaded by, each once."""

    def __init__(self, manager: CompilerManager) -> None:
        self.manager = manager
        self.found: list[Any] = []
        self._rows: dict[int, int] = {}

    def row(self, call: Compiled) -> int:
        """The row of a call."""
        if id(call) not in self._rows:
            handle, shape = self.manager.handle_of(call)
            if not self.manager.compiler.loads_alone(handle):
                raise NotArchived("a piece can be loaded with its graph alone")
            self._rows[id(call)] = len(self.found)
            self.found.append([handle, _shape_data(shape)])
        return self._rows[id(call)]


def _write_sized(sized: SizedPiece, handles: _Handles) -> dict[str, Any]:
    entries = [*sized.concrete_size_entries.values(), *sized.ranges]
    return {
        "general": handles.row(sized.compiled_graph_for_general_shape),
        "where": sized.where,
        "entries": [
            [
                _shape_data(entry.runtime_shape),
                entry.reason,
                handles.row(entry.call) if entry.call is not None else None,
                entry.kept,
            ]
            for entry in entries
        ],
    }


def _read_sized(data: Mapping[str, Any], calls: Sequence[Compiled]) -> SizedPiece:
    entries = []
    for shape, reason, row, kept in data["entries"]:
        size = _shape_of(shape)
        if size is None:
            raise ValueError("an entry for no size")
        entry = ConcreteSizeEntry(size)
        entry.reason = reason
        if row is not None:
            entry.serve(calls[row], None if kept is None else tuple(kept))
        entries.append(entry)
    return SizedPiece(
        calls[data["general"]],
        None if data["where"] is None else tuple(data["where"]),
        [entry for entry in entries if isinstance(entry.runtime_shape, int)],
        [entry for entry in entries if isinstance(entry.runtime_shape, SizeRange)],
    )


def _shape_data(shape: int | SizeRange | None) -> Any:
    return [shape.low, shape.high] if isinstance(shape, SizeRange) else shape


def _shape_of(data: Any) -> int | SizeRange | None:
    return SizeRange(*data) if isinstance(data, list) else data
