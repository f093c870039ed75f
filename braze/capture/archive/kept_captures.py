"""Captures kept on disk between processes (option ``keep_captures``), a few per code object."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import torch

from braze.capture.archive import archive, fingerprint
from braze.capture.archive.archived_values import NotArchived
from braze.capture.facts.records import Capture
from braze.capture.facts.slots import module_in
from braze.options import Options
from braze.runtime.libraries.cache import CacheKey, DiskCache, key
from braze.support import trace
from braze.support.errors import BrazeError
from braze.support.log import logger

log = logger("cache")


def find(
    function: FunctionType,
    locals: Sequence[Any],
    options: Options,
    symbolic: Any = None,
    backend: Any = None,
) -> Capture | None:
    """A kept capture that fits this frame, its graph ready for the backend.

    ``symbolic``: which sizes and numbers are to be symbols, as for a trace. ``backend``: one that has a ``kept_call`` may have kept what stands for the graph.
    """
    cache = DiskCache()
    for place in _places(function, locals, options, symbolic):
        data = cache.get(place, "json")
        if data is None:
            continue
        try:
            found = archive.loads(data, function, locals, getattr(backend, "kept_call", None))
        except (NotArchived, BrazeError) as why:
            log.info("a kept capture of %s is not used: %s", function.__qualname__, why)
            continue
        trace.count("captures_loaded")
        log.info("a kept capture of %s is used", function.__qualname__)
        return found
    return None


def pack(capture: Capture, function: FunctionType) -> archive.Packed | None:
    """The capture as data, before a backend changes its graph; None where it cannot be kept."""
    try:
        return archive.Packed(capture, function)
    except NotArchived as why:
        trace.count("captures_not_kept")
        log.info("the capture of %s is not kept: %s", capture.name, why)
        return None


def keep(
    packed: archive.Packed | None,
    capture: Capture,
    made: Capture,
    backend: Any,
    function: FunctionType,
    locals: Sequence[Any],
    options: Options,
    symbolic: Any = None,
) -> None:
    """Keep a capture that was traced, and let a backend that has a ``keep_call`` keep what it made of it.

    ``made`` has the guards that the backend asked for, too. They are kept with the capture; one from disk that lacks some stands for other calls
    than what was made of it now, which is not kept.
    """
    digest = capture.digest
    if packed is not None:
        data = packed.dumps(made.guards)
        digest = archive.digest_of(data)
        put(data, function, locals, options, symbolic)
    keep_call = getattr(backend, "keep_call", None)
    if keep_call is not None and capture.graph is not None and digest:
        if packed is not None or made.guards == capture.guards:
            keep_call(digest)


def put(
    data: bytes, function: FunctionType, locals: Sequence[Any], options: Options, symbolic: Any = None
) -> None:
    """Write a packed capture where there is room: an empty place, that of one which cannot be used any more, or any."""
    cache = DiskCache()
    places = list(_places(function, locals, options, symbolic))
    chosen = places[hashlib.sha256(data).digest()[0] % len(places)]
    for place in places:
        held = cache.get(place, "json")
        if held == data:
            return
        if held is None or _is_stale(held, function):
            chosen = place
            break
    cache.put(chosen, data, "json")
    trace.count("captures_kept")


def _is_stale(data: bytes, function: FunctionType) -> bool:
    try:
        archive.check(json.loads(data)["header"], function)
    except (NotArchived, *archive.DAMAGE):
        return True
    return False


def _tensors_of(module: Any) -> str:
    """A digest of a module's parameters by name, type and sizes: models of one class do not drive each other out."""
    if not isinstance(module, torch.nn.Module):
        return ""
    text = "\n".join(f"{name} {p.dtype} {tuple(p.shape)}" for name, p in module.named_parameters())
    return hashlib.sha256(text.encode()).hexdigest()


def _extents(locals: Sequence[Any]) -> list[tuple[int, ...]]:
    """Which sizes of arguments are 0, 1 or more: calls that differ in that are captured apart, and look for theirs in other places first."""
    values: list[Any] = []
    for value in locals:
        values += (
            value if isinstance(value, tuple | list) else value.values() if type(value) is dict else [value]
        )
    return [tuple(min(int(n), 2) for n in v.shape) for v in values if type(v) is torch.Tensor]


def _places(
    function: FunctionType, locals: Sequence[Any], options: Options, symbolic: Any
) -> Iterator[CacheKey]:
    """The keys of a frame's captures, likeliest first. All modules are called through one function: their classes tell them apart."""
    code = function.__code__
    module = module_in(function, locals)
    forward = getattr(type(module), "forward", None)
    parts = {
        "file": code.co_filename,
        "name": code.co_qualname,
        "line": code.co_firstlineno,
        "code": fingerprint.of_code(code),
        "module": f"{type(module).__module__}.{type(module).__qualname__}",
        "tensors": _tensors_of(module),
        "forward": fingerprint.of_function(forward) if isinstance(forward, FunctionType) else "",
        "symbolic": symbolic if isinstance(symbolic, str) else sorted(map(str, symbolic or ())),
        "options": options.capture_key(),
        "surroundings": sorted(fingerprint.surroundings().items()),
    }
    many = max(1, options.recompile_limit)
    first = hashlib.sha256(repr(_extents(locals)).encode()).digest()[0]
    for number in range(many):
        yield key("capture", number=(first + number) % many, **parts)
