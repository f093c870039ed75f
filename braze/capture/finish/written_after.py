"""What a broken frame goes on to write in place: values of its graph that a backward cannot count on, where eager's does not read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from opcode import opname
from types import CodeType, FunctionType, MethodDescriptorType, MethodType
from typing import Any

import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from braze.capture.facts.breaks import GIVES_MEMORY
from braze.capture.facts.bytecode import (
    RETAIN,
    SHARES,
    given_from,
    is_in_place,
    moved_from,
    retained_from,
    shares_from,
    written_from,
)
from braze.capture.facts.frame import Frame
from braze.capture.finish.state_at_break import after, start_of
from braze.capture.state.frames import Frames
from braze.graph.nodes.facts import set_facts
from braze.graph.private import torch_compat


def mark(frames: Frames, nodes: Sequence[torch.fx.Node]) -> None:
    """Let inputs and results of a graph know that they, or what shares their memory, are written once it has run, or are given other memory or keep their gradients."""
    written = {torch_compat.storage_key(value) for value in _written(frames) if type(value) is FakeTensor}
    moved = {id(value) for value in _moved(frames)}
    retained = {id(value) for value in _retained(frames)}
    everything, shared = _is_moved_somewhere(frames), _is_shared_somewhere(frames)
    for node in nodes if written or moved or retained or everything or shared else ():
        value = node.meta.get("val")
        if type(value) is not FakeTensor:
            continue
        if shared or torch_compat.storage_key(value) in written:
            set_facts(node, written_after=True)
        if everything or id(value) in moved:
            set_facts(node, moved_after=True)
        if id(value) in retained:
            set_facts(node, retained_after=True)


def _written(frames: Frames) -> Iterator[Any]:
    """The values that the operation at the break, and the code behind it, write in place, or give to another tensor as its memory."""
    yield from _called(frames, is_in_place)
    yield from _named(frames, written_from)
    if _stands_at_store(frames.stack[-1]):
        yield frames.stack[-1].stack[-2]
    yield from _named(frames, given_from)


def _moved(frames: Frames) -> Iterator[Any]:
    """The values to which the operation at the break, and the code behind it, give other memory."""
    if _stands_at_store(frames.stack[-1]):
        yield frames.stack[-1].stack[-1]
    yield from _named(frames, moved_from)


def _retained(frames: Frames) -> Iterator[Any]:
    """The values whose gradients the operation at the break, and the code behind it, have kept."""
    yield from _called(frames, lambda name: name == RETAIN)
    yield from _named(frames, retained_from)


def _called(frames: Frames, wanted: Callable[[str], bool]) -> Iterator[Any]:
    """The values of which the operation at the break calls such a method."""
    inner = frames.stack[-1]
    for method, value in zip(inner.stack, inner.stack[1:], strict=False):
        if isinstance(method, MethodDescriptorType | FunctionType) and wanted(method.__name__):
            yield value
        elif isinstance(method, MethodType) and wanted(method.__name__):  # as CPython 3.13 has it
            yield method.__self__


def _is_moved_somewhere(frames: Frames) -> bool:
    """Whether the operation at the break is a call in which something is given other memory."""
    signal = frames.break_at
    return signal is not None and signal.reason == GIVES_MEMORY and not _stands_at_store(frames.stack[-1])


def _is_shared_somewhere(frames: Frames) -> bool:
    """Whether the operation at the break, or the code behind it, lets a tensor have another's memory (``y.set_(x)``), where writes to the one are not counted as the other's."""
    called = any(True for _ in _called(frames, lambda name: name == SHARES))
    return called or any(shares_from(frame.code, offset) for frame, offset in _places(frames))


def _stands_at_store(frame: Frame) -> bool:
    _, name, _, op = frame.decoded.instruction(frame.at)
    return opname[op] == "STORE_ATTR" and frame.code.co_names[name] == "data"


def _named(frames: Frames, names_from: Callable[[CodeType, int], frozenset[str]]) -> Iterator[Any]:
    """The values of locals that the code from the break on names so."""
    for frame, offset in _places(frames):
        names = names_from(frame.code, offset)
        for name, value in zip(frame.code.co_varnames, frame.locals, strict=False):
            if name in names:
                yield value


def _places(frames: Frames) -> list[tuple[Frame, int]]:
    """Each frame, and where its code goes on from the break."""
    inner = frames.stack[-1]
    return [(inner, 2 * start_of(inner)), *((frame, after(frame)) for frame in frames.stack[:-1])]
