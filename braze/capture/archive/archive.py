"""A Capture as bytes, for another process of the same code.

The bytes are JSON: nothing in them is run. They begin with what must be the same for the rest to mean anything:
versions, the source files, the functions that were interpreted. ``loads`` refuses anything else with
:class:`NotArchived`. Its guards are checked against the frame before the graph's metadata is made anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from braze.capture.archive import fingerprint
from braze.capture.archive.archived_graph import read_graph, revive, write_graph
from braze.capture.archive.archived_values import NotArchived, Reader, Writer, as_tuples
from braze.capture.facts.inside_inference_mode import in_its_mode, is_inside
from braze.capture.facts.objects_by_name import name_of, object_at
from braze.capture.facts.purity import draws, may_run_again
from braze.capture.facts.records import Capture, Guard
from braze.capture.guards.tables import build_table

FORMAT = 10
#: what a backend kept for the capture of a digest, in which these functions were traced; or None
KeptCall = Callable[[str, Sequence[Any]], Any]
#: what reading bytes that nobody wrote so may raise
DAMAGE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ImportError,
    ArithmeticError,
    RuntimeError,
    struct.error,
)
#: the fields of a Capture that are plain values
FIELDS = (
    "name",
    "guards",
    "recipes",
    "effects",
    "result",
    "graph_break",
    "instructions",
    "specs",
    "inputs",
    "draws",
    "contents",
    "apart",
)


class Packed:
    """A capture of a frame of ``function`` as data, which no later change of its graph reaches; NotArchived says why it cannot be."""

    def __init__(self, capture: Capture, function: FunctionType) -> None:
        self._writer = writer = Writer(function, capture.inlined)
        self._body = {field: writer.write(getattr(capture, field)) for field in FIELDS}
        graph = capture.graph
        self._body["graph"] = None
        if graph is not None:
            # as text within the text: who has something in its place does not read it
            nodes, own = json.dumps(write_graph(graph, writer)), graph.graph
            traits = [may_run_again(own), draws(own)]
            self._body["graph"] = {"nodes": nodes, "traits": traits, "inside": is_inside(own)}
        functions = [(name_of(f), f) for f in capture.inlined if f is not function]
        for name, f in functions:
            if name is None:
                raise NotArchived(
                    f"function {f.__qualname__} has no name that another process could find it by"
                )
        names = [*(n for n, _ in functions), *writer.objects]
        files = fingerprint.files_of((function, *capture.inlined), names)
        if isinstance(files, str):
            raise NotArchived(files)
        self._header = {
            "format": FORMAT,
            "surroundings": fingerprint.surroundings(),
            "files": files,
            "own": fingerprint.of_function(function),
            "functions": [[name, fingerprint.of_function(f)] for name, f in functions],
        }

    def dumps(self, guards: Sequence[Guard]) -> bytes:
        """The bytes, with these guards: a backend may have added some, which say of sizes what it has compiled for."""
        body = self._body | {"guards": self._writer.write(tuple(guards))}
        return json.dumps({"header": self._header, "tables": self._writer.tables(), "body": body}).encode()


def dumps(capture: Capture, function: FunctionType) -> bytes:
    """The capture of a frame of ``function`` as bytes; NotArchived says why it cannot be."""
    return Packed(capture, function).dumps(capture.guards)


def loads(
    data: bytes, function: FunctionType, locals: Sequence[Any], kept_call: KeptCall | None = None
) -> Capture:
    """The capture, its guards known to hold of this frame, and its graph ready for a backend; or in the graph's place what the backend kept of it."""
    capture, graph, reader = read(data, function)
    inputs = build_table(capture, function, locals).program().match(function, tuple(locals))
    if inputs is None:
        raise NotArchived("its guards do not hold here")
    if graph is None:
        return capture
    capture = dataclasses.replace(capture, digest=digest_of(data))
    call = kept_call(capture.digest, capture.inlined) if kept_call is not None else None
    if call is not None:
        call = in_its_mode(call) if graph["inside"] else call
        return dataclasses.replace(capture, call=call, traits=graph["traits"])
    module = read_graph(json.loads(graph["nodes"]), reader)
    examples = revive(module, capture, inputs)
    return dataclasses.replace(capture, graph=module, examples=examples)


def digest_of(data: bytes) -> str:
    """A capture's digest, by which a backend keeps what it made of it."""
    return hashlib.sha256(data).hexdigest()


def read(data: bytes, function: FunctionType) -> tuple[Capture, Any, Reader]:
    """The capture without its graph, and what the graph is read from."""
    try:
        whole = json.loads(data)
        check(whole["header"], function)
        reader = Reader(whole["tables"], function)
        body = whole["body"]
        fields = {field: reader.read(body[field]) for field in FIELDS}
        inlined = (function, *(object_at(as_tuples(name)) for name, _ in whole["header"]["functions"]))
        return Capture(code=function.__code__, graph=None, inlined=inlined, **fields), body["graph"], reader
    except NotArchived:
        raise
    except DAMAGE as error:
        raise NotArchived(f"it is damaged: {error!r}") from error


def check(header: dict[str, Any], function: FunctionType) -> None:
    """Refuse what other code has made."""
    if header["format"] != FORMAT:
        raise NotArchived(f"its format is {header['format']}, not {FORMAT}")
    for part, now in fingerprint.surroundings().items():
        if header["surroundings"].get(part) != now:
            raise NotArchived(f"{part} is another: {header['surroundings'].get(part)} then, {now} now")
    for path, digest in header["files"].items():
        if fingerprint.of_file(path) != digest:
            raise NotArchived(f"{path} has changed")
    if header["own"] != fingerprint.of_function(function):
        raise NotArchived(f"{function.__qualname__} has changed")
    for name, digest in header["functions"]:
        found = object_at(as_tuples(name))
        if not isinstance(found, FunctionType) or fingerprint.of_function(found) != digest:
            raise NotArchived(f"{name} has changed")
