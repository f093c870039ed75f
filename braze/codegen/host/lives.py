"""When a host module takes memory and lets go of it: what `module.py` writes by, and `footprint.py` counts."""

from __future__ import annotations

from braze.codegen.host.homes import Home, Homes
from braze.loops.ir import BufferView, ExternCall
from braze.schedule.facts.records import Group, Schedule
from braze.schedule.memory.memory import storage_bytes

#: bytes for which it pays to leave compiled code, which costs about a microsecond
MUCH = 256 << 10
#: a half of a training step on the CPU that touches so many bytes does not keep its arena, whose making costs some microseconds
UNKEPT = 1 << 20


class Lives:
    """First and last use of each buffer, by group. ``consumes``, ``lean``: as of the compile."""

    def __init__(self, s: Schedule, homes: Homes, *, consumes: bool, lean: bool) -> None:
        self.groups = s.groups
        self.homes = homes
        self.last = {n: k for k, g in enumerate(s.groups) for n in (*g.reads, *g.writes)}
        self.first: dict[str, int] = {}
        for k, g in enumerate(s.groups):
            for name in g.writes:
                self.first.setdefault(name, k)
        self.kept = {o.buffer for o in s.program.outputs if isinstance(o, BufferView)}
        #: homes of the tensors that the call may let go of
        self._owned = (Home.RESULT, Home.FRESH, *((Home.ARGUMENT,) if consumes else ()))
        self._careful = consumes or lean
        #: the arena is of this call, and goes after the last group that uses it
        self.own_arena = lean and s.program.device == "cpu" and self._touches() >= UNKEPT
        self.arena_until = max((slot.stop for slot in homes.slots.values()), default=-1)

    def fresh(self, k: int) -> list[str]:
        """What the host allocates before group ``k``, the first to write it."""
        names = dict.fromkeys(self.groups[k].writes)
        return [n for n in names if self.first[n] == k and self.homes.of(n) is Home.FRESH]

    def dead(self, k: int) -> list[str]:
        """What the host lets go of after group ``k``."""
        group = self.groups[k]
        return [n for n in dict.fromkeys((*group.reads, *group.writes)) if self._goes(n, k)]

    def dropped(self, k: int) -> frozenset[str]:
        """What group ``k`` makes and nobody reads."""
        return frozenset(n for n in self.groups[k].writes if self.last[n] == k and n not in self.kept)

    def leaving(self) -> frozenset[str]:
        """What leaves the call, and what calls return memory of that leaves it."""
        found = set(self.kept)
        for group in reversed(self.groups):
            if isinstance(group.call, ExternCall) and not found.isdisjoint(group.call.outputs):
                found.update(group.call.aliases)
        return frozenset(found)

    def starts_anew(self, k: int) -> bool:
        """Whether the host comes in between two groups of compiled code: much memory goes before ``k``, or comes for it."""
        if not self._careful:
            return False
        sizes = [storage_bytes(self.homes.buffers[n]).value for n in {*self.dead(k - 1), *self.fresh(k)}]
        return sum(MUCH if size is None else size for size in sizes) >= MUCH

    def _goes(self, name: str, k: int) -> bool:
        return self.last[name] == k and name not in self.kept and self.homes.of(name) in self._owned

    def _touches(self) -> int:
        """Bytes that this call reads, makes and returns beside its arena, as far as they are known."""
        sizes = [storage_bytes(self.homes.buffers[n]).value for n in self.last if n not in self.homes.slots]
        return sum(size for size in sizes if size is not None)


def is_compiled(group: Group) -> bool:
    """Whether a group runs in a stretch of compiled code, with its neighbours."""
    return not isinstance(group.call, ExternCall) and group.device == "cpu"
