"""What the proof of removed writes runs on: 64-bit names of tensors and of their elements, and where elements lie in memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch

from braze.support.layouts import span

Node = torch.fx.Node
Tensor = torch.Tensor

#: elements that are followed in all, at most: at each compile, and where a verifier is asked for
QUICK, LIMIT = 1 << 15, 1 << 20

#: a tensor as one name, or as the names of its elements
Term = int | Tensor


class Unproved(Exception):
    """The graph is not of the kind that is proved."""


def name_of(*parts: Any) -> int:
    """A 64-bit name of parts, of this process. Numbers that may be negative are given as text: -1 and -2 hash alike."""
    return hash(parts)


class Names:
    """What both runs share: names of tensors that have been looked at element by element."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.whole: dict[int, int] = {}
        #: name of a tensor of one number -> the name of its elements, and back
        self.constants: dict[int, int] = {}
        self.by_element: dict[int, int] = {}
        self.count = 0

    def constant(self, value: Any) -> int:
        """A tensor all of whose elements are a number."""
        term = name_of("constants", repr(value))
        element = self.constants[term] = name_of("constant", repr(value))
        self.by_element[element] = term
        return term

    def _spend(self, count: int) -> None:
        self.count += count
        if self.count > self.limit:
            raise Unproved("large")

    def elements(self, term: Term, shape: Sequence[int]) -> Tensor:
        """The names of all elements of a tensor."""
        if isinstance(term, Tensor):
            return term.expand(shape) if tuple(term.shape) != tuple(shape) else term
        count = math.prod(shape)
        self._spend(count)
        if term in self.constants:
            made = torch.full(tuple(shape), self.constants[term])
        else:
            mixed = (torch.arange(count) * -7046029254386353131) ^ term
            made = ((mixed ^ (mixed >> 29)) * -4658895280553007687).reshape(tuple(shape))
        self.whole.setdefault(_digest(made), term)
        return made

    def name(self, term: Term) -> int:
        """One name for a tensor, the same for the same elements: those of one number may come of another shape, before or after this one is seen."""
        if not isinstance(term, Tensor):
            return term
        self._spend(term.numel())
        first = int(term.flatten()[0]) if term.numel() else 0
        if first in self.by_element and bool((term == first).all()):
            return self.by_element[first]
        digest = _digest(term)
        return self.whole.get(digest, digest)


def _digest(elements: Tensor) -> int:
    return name_of(
        tuple(elements.shape),
        hashlib.blake2b(elements.contiguous().numpy().tobytes(), digest_size=8).digest(),
    )


class Held:
    """The elements of a node."""

    def __init__(self, node: Node, elements: Tensor) -> None:
        self.node = node
        self.elements = elements

    @staticmethod
    def open(value: Any) -> Any:
        return value.elements if isinstance(value, Held) else value


def strided(root: Held, x: Held, *rest: Any, known: Tensor | None = None) -> Tensor:
    """``as_strided`` and its scatter count in memory that is laid out as the tensor is: that of its ``root``, or what is ``known`` of it."""
    source = rest[0] if isinstance(rest[0], Held) else None
    size, stride, *offset = rest[1:] if source is not None else rest
    val = x.node.meta["val"]
    at = offset[0] if offset and offset[0] is not None else val.storage_offset()
    reach = max(at + span(size, stride), reach_of(val), reach_of(root.node.meta["val"]))
    memory = torch.full((reach,), gap := name_of("gap"))
    if known is not None:
        memory[: len(known)] = known[:reach]
    for each in (root, x):
        seen = each.node.meta["val"]
        _place(memory, each.elements, tuple(seen.shape), seen.stride(), seen.storage_offset())
    if source is not None:
        _place(memory, source.elements, tuple(size), tuple(stride), at)
        return memory.as_strided(tuple(val.shape), val.stride(), val.storage_offset()).clone()
    part = memory.as_strided(tuple(size), tuple(stride), at).clone()
    if bool((part == gap).any()):
        raise Unproved("gaps")
    return part


def _place(memory: Tensor, elements: Tensor, *layout: Any) -> None:
    """Put elements where they lie; those that share a place have one name, as of what is repeated."""
    places = torch.arange(len(memory)).as_strided(*layout)
    memory[places] = elements
    if not torch.equal(memory[places], elements):
        raise Unproved("overlap")


def reach_of(val: Tensor) -> int:
    """How many elements lie from the start of its memory to the last that a tensor sees."""
    return int(val.storage_offset() + span(val.shape, val.stride()))
