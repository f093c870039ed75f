"""The most bytes that a host module has at once, counted from its schedule: each thing that it takes and lets go of.

What ATen's operators take for themselves is counted where it is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from braze.codegen.host.homes import Homes
from braze.codegen.host.lives import Lives, is_compiled
from braze.context import CompileContext
from braze.loops.ir import BufferView, ExternCall
from braze.schedule.facts.records import Schedule
from braze.schedule.memory.memory import storage_bytes
from braze.schedule.memory.workspaces import workspace
from braze.symbolic.expr import Expr
from braze.symbolic.guess import likely


def footprint(s: Schedule, ctx: CompileContext, sizes: Mapping[str, int], beside: int) -> int:
    """The peak of one call, beside the inputs that others hold.

    ``sizes``: likely values of size symbols, by name; ``beside``: bytes that are there throughout.
    """
    return _Count(s, ctx, sizes, beside).run()


def large_values(s: Schedule, ctx: CompileContext, least: int) -> int | None:
    """The most bytes of a call's intermediate values that are larger than ``least``, at once; None where sizes vary."""
    if any(storage_bytes(b).value is None for b in s.program.buffers):
        return None
    return _Count(s, ctx, {}, 0, least).run()


class _Count:
    """Bytes that are live, as the host module's statements come. ``above``: only of values larger than that which neither come nor leave."""

    def __init__(
        self,
        s: Schedule,
        ctx: CompileContext,
        sizes: Mapping[str, int],
        beside: int,
        above: int | None = None,
    ) -> None:
        self.schedule = s
        self.sizes = sizes
        self.homes = Homes(s)
        self.lives = Lives(s, self.homes, consumes=ctx.consumes, lean=ctx.lean)
        self.above = -1 if above is None else above
        self.left_out = frozenset() if above is None else self.lives.leaving() | set(s.program.owned)
        self.handed = dict(s.memory.handed)
        arena = self._bytes(s.memory.arena_bytes) if self.homes.slots else 0
        self.arena = arena if arena > self.above else 0
        #: name -> the name that its memory came with
        self.owner: dict[str, str] = {}
        self.holders: dict[str, int] = {}
        self.bytes: dict[str, int] = {}
        self.live = self.peak = beside + self.arena
        for name in s.program.owned:
            self._take(name)
        for name in s.program.owned:
            if name not in self.lives.last and name not in self.lives.kept:
                self._drop(name)

    def run(self) -> int:
        """Count through all groups."""
        waiting: list[int] = []  # groups of one stretch of compiled code, whose ends are its end
        for k, group in enumerate(self.schedule.groups):
            if waiting and not (is_compiled(group) and not self.lives.starts_anew(k)):
                self._end(waiting)
            for name in self.lives.fresh(k):
                self._place(name)
            waiting.append(k)
            if isinstance(group.call, ExternCall):
                self._results(group.call)
                self._works(group.call)
            if not is_compiled(group):
                self._end(waiting)
        self._end(waiting)
        return self.peak

    def _end(self, waiting: list[int]) -> None:
        for k in waiting:
            for name in self.lives.dead(k):
                self._drop(name)
            if self.lives.own_arena and k == self.lives.arena_until:
                self.live -= self.arena
        waiting.clear()

    def _place(self, name: str) -> None:
        """Memory of its own for a buffer, or that of one that nobody else holds."""
        old = self.owner.get(self.handed.get(name, ""))
        if old is not None and self.holders[old] == 1:
            self._share(name, old)
        else:
            self._take(name)

    def _results(self, call: ExternCall) -> None:
        """What a call returns: new memory, or that of an argument."""
        if call.out_variant:
            return
        shared = [self.owner[name] for name in call.aliases if name in self.owner]
        for name in filter(None, call.outputs):
            if shared:
                self._share(name, shared[0])
            else:
                self._take(name)

    def _works(self, call: ExternCall) -> None:
        """What a call takes for itself until it returns."""
        self.peak = max(self.peak, self.live + workspace(call, self._bytes_of))

    def _take(self, name: str) -> None:
        self.owner[name] = name
        self.holders[name] = 1
        size = self._bytes(storage_bytes(self.homes.buffers[name]))
        self.bytes[name] = size if size > self.above and name not in self.left_out else 0
        self.live += self.bytes[name]
        self.peak = max(self.peak, self.live)

    def _share(self, name: str, old: str) -> None:
        self.owner[name] = old
        self.holders[old] += 1

    def _drop(self, name: str) -> None:
        old = self.owner.pop(name, None)
        if old is None:
            return
        self.holders[old] -= 1
        if not self.holders[old]:
            self.live -= self.bytes[old]

    def _bytes_of(self, view: BufferView) -> int:
        return math.prod(map(self._bytes, view.sizes)) * view.dtype.itemsize

    def _bytes(self, size: Expr) -> int:
        return likely(size, self.sizes)
