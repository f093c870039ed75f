"""Values as JSON: plain data exactly, our records by their fields, everything else by name.

A value is itself where JSON has it (None, bool, str), else a list of a tag and the parts. Sources, objects
with names, and places in the user's code are written once, into tables, and referred to by index.
"""

from __future__ import annotations

import base64
import dataclasses
import struct
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.fx
from torch.fx import Graph, Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from braze.capture.facts import records
from braze.capture.facts.objects_by_name import name_of, object_at
from braze.capture.facts.records import IdentityKey, Source
from braze.graph.nodes.specs import FloatSpec, SymbolSpec, TensorSpec
from braze.support.errors import Origin
from braze.support.spoken import spoken

RECORDS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        records.Guard,
        records.ShapeRelation,
        records.FromSource,
        records.GraphOutput,
        records.Constant,
        records.Build,
        records.Drawn,
        records.Draw,
        records.Effect,
        records.FrameState,
        records.GraphBreak,
        TensorSpec,
        SymbolSpec,
        FloatSpec,
    )
}
ENUMS: dict[str, Any] = {
    cls.__name__: cls for cls in (records.Step, records.Check, records.EffectKind, records.BreakKind)
}
#: sequences by their tag
SEQUENCES: dict[str, Callable[..., Any]] = {
    "t": tuple,
    "l": list,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
}
_TAGS: dict[Any, str] = {kind: tag for tag, kind in SEQUENCES.items()} | {immutable_list: "l"}
_NAMED_VALUES = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}
#: bytes of a tensor that a graph may hold
LARGEST_TENSOR = 1 << 16


class NotArchived(Exception):
    """A capture cannot be written, or not be read here; the text says why."""


class Writer:
    """Turns values into JSON; ``tables`` goes along with them. ``function``: the frame's own."""

    def __init__(self, function: FunctionType | None = None, inlined: tuple[FunctionType, ...] = ()) -> None:
        self.function = function
        self.sources: list[Any] = []
        self.objects: list[Any] = []
        self.origins: list[Any] = []
        self.nodes: dict[torch.fx.Node, int] = {}
        self._sources: dict[Source, int] = {}
        self._objects: dict[int, tuple[int, Any]] = {}
        self._origins: dict[Origin, int] = {}
        self._codes: dict[CodeType, tuple[FunctionType, tuple[int, ...]]] = {}
        for owner in (*((function,) if function is not None else ()), *inlined):
            self._note_code(owner, owner.__code__, ())

    def tables(self) -> dict[str, Any]:
        """What :class:`Reader` needs besides the values."""
        return {"objects": self.objects, "sources": self.sources, "origins": self.origins}

    def write(self, value: Any) -> Any:
        """One value as JSON."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind in _TAGS:
            return [_TAGS[kind], *map(self.write, value)]
        writer = _WRITERS.get(kind)
        if writer is not None:
            return writer(self, value)
        if kind in _NAMED_VALUES:
            return [_NAMED_VALUES[kind], str(value).removeprefix("torch.")]
        if RECORDS.get(kind.__name__) is kind:
            return [
                "r",
                kind.__name__,
                *(self.write(getattr(value, f.name)) for f in dataclasses.fields(kind)),
            ]
        if ENUMS.get(kind.__name__) is kind:
            return ["e", kind.__name__, value.name]
        if isinstance(value, torch.Tensor):
            return _write_tensor(value)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return ["n", self.object(kind), *map(self.write, value)]
        return ["o", self.object(value)]

    def object(self, value: Any) -> int:
        """The row of an object by name; -1 is the frame's own function."""
        if value is self.function and value is not None:
            return -1
        found = self._objects.get(id(value))
        if found is not None:
            return found[0]
        name = name_of(value)
        if name is None:
            raise NotArchived(f"{_short(value)} has no name that another process could find it by")
        self._objects[id(value)] = (len(self.objects), value)
        self.objects.append(name)
        return len(self.objects) - 1

    def named(self) -> list[tuple[int, Any]]:
        """All rows of objects so far, with the objects."""
        return list(self._objects.values())

    def source(self, value: Source) -> int:
        """The row of a source; its parents' come first."""
        found = self._sources.get(value)
        if found is None:
            parent = None if value.parent is None else self.source(value.parent)
            self.sources.append([value.step.name, self.write(value.key), parent])
            found = self._sources[value] = len(self.sources) - 1
        return found

    def _origin(self, value: Origin) -> Any:
        found = self._origins.get(value)
        if found is None:
            found = self._origins[value] = len(self.origins)
            self.origins.append([getattr(value, f.name) for f in dataclasses.fields(Origin)])
        return ["origin", found]

    def _code(self, value: CodeType) -> Any:
        found = self._codes.get(value)
        if found is None:
            raise NotArchived(f"the code of {value.co_qualname} belongs to no function that was traced")
        return ["code", self.object(found[0]), *found[1]]

    def _note_code(self, owner: FunctionType, code: CodeType, path: tuple[int, ...]) -> None:
        if code in self._codes:
            return
        self._codes[code] = (owner, path)
        for i, constant in enumerate(code.co_consts):
            if isinstance(constant, CodeType):
                self._note_code(owner, constant, (*path, i))

    def _dict(self, value: dict[Any, Any]) -> Any:
        if value.get("__name__") is not None and name_of(value) is not None:
            return ["o", self.object(value)]
        return ["d", *([self.write(k), self.write(v)] for k, v in value.items())]


_WRITERS: dict[Any, Callable[[Writer, Any], Any]] = {
    int: lambda w, v: ["i", hex(v)] if abs(v) >= 1 << 53 else v,
    float: lambda w, v: ["f", struct.pack(">d", v).hex()],
    complex: lambda w, v: ["c", struct.pack(">dd", v.real, v.imag).hex()],
    bytes: lambda w, v: ["b", base64.b64encode(v).decode()],
    slice: lambda w, v: ["slice", w.write(v.start), w.write(v.stop), w.write(v.step)],
    range: lambda w, v: ["range", w.write(v.start), w.write(v.stop), w.write(v.step)],
    type(...): lambda w, v: ["..."],
    type(NotImplemented): lambda w, v: ["NotImplemented"],
    torch.device: lambda w, v: ["device", v.type, v.index],
    dict: Writer._dict,
    immutable_dict: Writer._dict,
    IdentityKey: lambda w, v: ["k", w.write(v.value)],
    Source: lambda w, v: ["s", w.source(v)],
    Origin: Writer._origin,
    CodeType: Writer._code,
    torch.fx.Node: lambda w, v: ["node", w.nodes[v]],
}


def _write_tensor(value: torch.Tensor) -> Any:
    if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
        raise NotArchived("the graph holds a tensor that is not a plain one on the CPU")
    if value.nbytes > LARGEST_TENSOR:
        raise NotArchived(f"the graph holds a tensor of {value.nbytes} bytes")
    plain = value.detach().contiguous()
    data = bytes(plain.reshape(-1).view(torch.uint8).tolist()) if plain.numel() else b""
    text = base64.b64encode(data).decode()
    return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), text, value.requires_grad]


class Reader:
    """Turns back what a :class:`Writer` made. Every object is looked up when its row is first used."""

    def __init__(self, tables: dict[str, Any], function: FunctionType | None = None) -> None:
        self.function = function
        self.names = tables["objects"]
        self._found: dict[int, Any] = {}
        self.nodes: list[torch.fx.Node] = []
        self._sources: list[Source] = []
        self._origins = [Origin(*row) for row in tables["origins"]]
        for step, key, parent in tables["sources"]:
            above = None if parent is None else self._sources[parent]
            self._sources.append(Source(records.Step[step], self.read(key), above))

    def read(self, data: Any) -> Any:
        """One value from JSON."""
        if type(data) is not list:
            return data
        tag, parts = data[0], data[1:]
        kind = SEQUENCES.get(tag)
        if kind is not None:
            return kind(map(self.read, parts))
        return _READERS[tag](self, parts)

    def object(self, row: int) -> Any:
        """The object of a row."""
        if row == -1:
            return self.function
        if row not in self._found:
            name = as_tuples(self.names[row])
            try:
                self._found[row] = object_at(name)
            except (LookupError, AttributeError, ImportError) as error:
                raise NotArchived(f"nothing is found under {name}") from error
        return self._found[row]

    def _code(self, parts: Any) -> CodeType:
        found: CodeType = self.object(parts[0]).__code__
        for i in parts[1:]:
            found = found.co_consts[i]
        return found


_READERS: dict[str, Callable[[Reader, Any], Any]] = {
    "i": lambda r, p: int(p[0], 16),
    "f": lambda r, p: struct.unpack(">d", bytes.fromhex(p[0]))[0],
    "c": lambda r, p: complex(*struct.unpack(">dd", bytes.fromhex(p[0]))),
    "b": lambda r, p: base64.b64decode(p[0]),
    "slice": lambda r, p: slice(*map(r.read, p)),
    "range": lambda r, p: range(*map(r.read, p)),
    "...": lambda r, p: ...,
    "NotImplemented": lambda r, p: NotImplemented,
    "device": lambda r, p: torch.device(p[0]) if p[1] is None else torch.device(p[0], p[1]),
    "dtype": lambda r, p: _checked(getattr(torch, p[0]), torch.dtype),
    "layout": lambda r, p: _checked(getattr(torch, p[0]), torch.layout),
    "memory_format": lambda r, p: _checked(getattr(torch, p[0]), torch.memory_format),
    "d": lambda r, p: {r.read(k): r.read(v) for k, v in p},
    "n": lambda r, p: tuple.__new__(r.object(p[0]), map(r.read, p[1:])),
    "k": lambda r, p: IdentityKey(r.read(p[0])),
    "s": lambda r, p: r._sources[p[0]],
    "o": lambda r, p: r.object(p[0]),
    "origin": lambda r, p: r._origins[p[0]],
    "node": lambda r, p: r.nodes[p[0]],
    "code": Reader._code,
    "e": lambda r, p: ENUMS[p[0]][p[1]],
    "r": lambda r, p: RECORDS[p[0]](*map(r.read, p[1:])),
    "tensor": lambda r, p: _read_tensor(p),
}


def _read_tensor(parts: Any) -> torch.Tensor:
    dtype, shape, text, grad = parts
    kind = _checked(getattr(torch, dtype), torch.dtype)
    data = bytearray(base64.b64decode(text))
    flat = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
    return flat.reshape(shape).requires_grad_(grad)


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise NotArchived(f"{value!r} is no {kind.__name__}")
    return value


def as_tuples(value: Any) -> Any:
    """Lists of JSON as what they were."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def _short(value: Any) -> str:
    name = spoken(value, "__qualname__", "__name__")
    return f"{type(value).__name__} {name}" if name else f"a {type(value).__qualname__}"


# -- graphs as rows, a node each, in order: [op, name, target, args, kwargs, and what else is said of it]


def write_nodes(graph: Graph, writer: Writer, said: Callable[[Node], Sequence[Any]]) -> list[Any]:
    """The rows of a graph, with what is ``said`` of each node; it refuses nodes by NotArchived. What is written later may name the nodes."""
    rows, writer.nodes = [], {}
    for node in graph.nodes:
        row = map(writer.write, (node.target, node.args, node.kwargs, *said(node)))
        rows.append([node.op, node.name, *row])
        writer.nodes[node] = len(writer.nodes)
    return rows


def without_tensors(node: Node) -> tuple[()]:
    """Nothing is said of a node beside its call; a graph that holds tensors is refused."""
    if node.op == "get_attr":
        raise NotArchived("a graph holds a tensor")
    return ()


def read_nodes(rows: Sequence[Any], reader: Reader) -> tuple[Graph, list[list[Any]]]:
    """The graph again, and what was said of its nodes."""
    graph, reader.nodes = Graph(), []
    notes = []
    for op, name, *row in rows:
        target, args, kwargs, *said = map(reader.read, row)
        reader.nodes.append(graph.create_node(op, target, args, kwargs, name=name))
        notes.append(said)
    return graph, notes
