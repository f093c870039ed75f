"""Where each buffer lives while the graph runs."""

from __future__ import annotations

import enum

from braze.loops.ir import Buffer, BufferKind, BufferView, ExternCall
from braze.schedule.facts.records import Schedule, Slot
from braze.schedule.memory.memory import slot_lives
from braze.symbolic.expr import Expr


class Home(enum.Enum):
    ARGUMENT = "argument"  # a graph input
    ARENA = "arena"  # a slot of the arena
    FRESH = "fresh"  # empty_strided in this call
    RESULT = "result"  # what an extern call returns


class Homes:
    """The home of every buffer that somebody touches."""

    def __init__(self, s: Schedule) -> None:
        self.buffers: dict[str, Buffer] = {b.name: b for b in s.program.buffers}
        self.slots: dict[str, Slot] = {slot.buffer: slot for slot in s.memory.slots}
        self.static = s.memory.arena_bytes.is_constant
        #: size symbols that calls make known
        self.made = frozenset(s.program.made)
        #: places of a symbolic arena, in the order of the layout's offsets
        self.lives, owner = slot_lives(s.memory)
        number = {life.buffer: k for k, life in enumerate(self.lives)}
        self._number = {name: number[owner[name]] for name in owner}
        self._returned = {
            name
            for g in s.groups
            if isinstance(g.call, ExternCall) and not g.call.out_variant
            for name in g.call.outputs
        }

    def of(self, name: str) -> Home:
        buffer = self.buffers[name]
        if buffer.kind in (BufferKind.INPUT, BufferKind.CONSTANT):
            return Home.ARGUMENT
        if name in self._returned:
            return Home.RESULT
        return Home.ARENA if name in self.slots else Home.FRESH

    def offset(self, name: str) -> Expr | int:
        """The place of a buffer: an offset in bytes, or the number of the layout's offset."""
        return self.slots[name].offset if self.static else self._number[name]

    def is_late(self, view: BufferView) -> bool:
        """Whether a view has a size that is not known where views of the arena are made: a size at all, if that is static."""
        exprs = (*view.sizes, *view.strides, view.offset) if self.made or self.static else ()
        return any(e.symbols() if self.static else self.made & e.symbols() for e in exprs)

    def is_whole(self, view: BufferView) -> bool:
        """Whether a view is the buffer as it is laid out."""
        return view == self.buffers[view.buffer].whole()
