"""What a broken frame goes on to write in place: values of its graph that a backward cannot count on, where eager's does not read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MethodDescriptorType
from typing import Any

import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from braze.capture.facts.bytecode import is_in_place, written_from
from braze.capture.facts.frame import Frame
from braze.capture.finish.state_at_break import after, start_of
from braze.capture.state.frames import Frames
from braze.graph import torch_compat
from braze.graph.facts import set_facts


def mark(frames: Frames, nodes: Sequence[torch.fx.Node]) -> None:
    """Let inputs and results of a graph know that they, or what shares their memory, are written once it has run."""
    written = {torch_compat.storage_key(value) for value in _written(frames) if type(value) is FakeTensor}
    for node in nodes if written else ():
        value = node.meta.get("val")
        if type(value) is FakeTensor and torch_compat.storage_key(value) in written:
            set_facts(node, written_after=True)


def _written(frames: Frames) -> Iterator[Any]:
    """The values that the operation at the break, and the code behind it, write in place."""
    inner = frames.stack[-1]
    for method, value in zip(inner.stack, inner.stack[1:], strict=False):
        if type(method) is MethodDescriptorType and is_in_place(method.__name__):
            yield value
    yield from _named(inner, 2 * start_of(inner))
    for frame in frames.stack[:-1]:
        yield from _named(frame, after(frame))


def _named(frame: Frame, offset: int) -> Iterator[Any]:
    names = written_from(frame.code, offset)
    return (value for name, value in zip(frame.code.co_varnames, frame.locals, strict=False) if name in names)
