"""Cut a schedule into parts that the host calls one after another, each a schedule of its own with its own memory.

Applies when a recorder must leave out some groups. The groups keep their kernels and their order, so that nothing of fusion is
lost. What a part makes and a later one reads is a result of the one and an input of the other; no arena spans a cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from braze.context import CompileContext
from braze.loops.ir import Buffer, BufferKind, BufferView, ExternCall, LoopProgram, SizeCheck, SizeSource
from braze.schedule.facts.dependences import families, symbol_accesses, symbol_name
from braze.schedule.facts.records import Group, MemoryPlan, Part, Schedule
from braze.schedule.stage.scheduler import aliases_of, planned_memory
from braze.schedule.stage.verify import verify_schedule
from braze.support.record import record
from braze.symbolic.expr import ZERO, Symbol

_GIVEN = (BufferKind.INPUT, BufferKind.CONSTANT)


@record
class Run:
    """Groups ``start`` to ``stop`` (exclusive), which are one part; ``why``: the reason that it is not recorded, or ""."""

    start: int
    stop: int
    why: str = ""


def launches(group: Group) -> int:
    """How many launches of a kernel a group counts for: a call of ATen takes the host as long as two."""
    return 2 if isinstance(group.call, ExternCall) else 1


def runs_of(groups: Sequence[Group], unsafe: Mapping[int, str], fewest: int) -> list[Run]:
    """The parts of a schedule: groups that are not recorded with all that is too little to be recorded between them, and the others."""
    runs: list[Run] = []
    for k in range(len(groups)):
        why = unsafe.get(k, "")
        if runs and bool(runs[-1].why) == bool(why):
            runs[-1] = Run(runs[-1].start, k + 1, runs[-1].why)
        else:
            runs.append(Run(k, k + 1, why))
    joined: list[Run] = []
    for run in runs:
        few = not run.why and sum(map(launches, groups[run.start : run.stop])) < fewest
        why = run.why or ("too little between two cuts" if few else "")
        if joined and why and joined[-1].why:
            joined[-1] = Run(joined[-1].start, run.stop, joined[-1].why)
        else:
            joined.append(Run(run.start, run.stop, why))
    return joined


def cut(s: Schedule, runs: Sequence[Run], ctx: CompileContext) -> Schedule:
    """The schedule as parts; it has no memory of its own then."""
    cutter = _Cutter(s, runs, ctx)
    parts = tuple(cutter.part(k) for k in range(len(runs)))
    if ctx.options.verify:
        for part in parts:
            verify_schedule(part.schedule)
    return dataclasses.replace(s, memory=MemoryPlan((), ZERO), parts=parts)


class _Cutter:
    """What is known of all parts while each is made."""

    def __init__(self, s: Schedule, runs: Sequence[Run], ctx: CompileContext) -> None:
        self.s, self.runs, self.ctx = s, runs, ctx
        program = s.program
        self.buffers = {b.name: b for b in program.buffers}
        self.family = families(program)
        self.known = tuple(dict.fromkeys((*(x.symbol for x in program.sizes), *program.made)))
        self.groups = [s.groups[run.start : run.stop] for run in runs]
        self.touched = [_touched(groups) for groups in self.groups]
        self.written = [{n for g in groups for n in g.writes} for groups in self.groups]
        self.making = [_made(groups) for groups in self.groups]
        self.checks = self._checks()
        self.symbols = [self._symbols(k) for k in range(len(runs))]

    def part(self, k: int) -> Part:
        """Part ``k``."""
        before = {b.name for b in self.buffers.values() if b.kind in _GIVEN}.union(*self.written[:k])
        takes = tuple(n for n in self.buffers if n in self.touched[k] and n in before)
        gives = self._gives(k, before)
        sizes = tuple(s for s in self.known if s in self.symbols[k] and s not in self.making[k])
        told = tuple(s for s in self.known if s in self.making[k])
        program = self._program(k, takes, gives, sizes, told)
        groups = self.groups[k]
        memory = planned_memory(program, list(groups), self.ctx)
        schedule = Schedule(program, tuple(groups), memory, aliases_of(program))
        changed = {self.family[n] for n in self.written[k]}  # the memory that it writes and others see
        return Part(
            schedule,
            self.runs[k].why,
            takes,
            gives,
            sizes,
            told,
            tuple(n for n in takes if self.family[n] in changed),
        )

    def _gives(self, k: int, before: set[str]) -> tuple[str, ...]:
        """What a part makes and somebody reads after it."""
        later = {o.buffer for o in self.s.program.outputs if isinstance(o, BufferView)}.union(
            *self.touched[k + 1 :]
        )
        return tuple(n for n in self.buffers if n in self.written[k] and n not in before and n in later)

    def _program(
        self,
        k: int,
        takes: tuple[str, ...],
        gives: tuple[str, ...],
        sizes: tuple[Symbol, ...],
        told: tuple[Symbol, ...],
    ) -> LoopProgram:
        """The program of a part."""
        whole = self.s.program
        kinds = dict.fromkeys(gives, BufferKind.OUTPUT)
        kinds.update({n: BufferKind.INPUT for n in takes if self.buffers[n].kind not in _GIVEN})
        buffers = tuple(_of_kind(b, kinds) for b in whole.buffers if b.name in self.touched[k])
        steps = tuple(step for g in self.groups[k] for step in g.work)
        given = set(takes)
        return LoopProgram(
            f"{whole.name}_part{k}",
            buffers,
            steps,
            (*takes, *("" for _ in sizes)),
            (*(self.buffers[n].whole() for n in gives), *told),
            tuple(n for n in takes if n in self.written[k]),
            tuple(SizeSource(s, len(takes) + i, -1) for i, s in enumerate(sizes)),
            checks=tuple(self.checks[k]),
            owned=tuple(n for n in whole.owned if n in given),
            again=tuple(pair for pair in whole.again if given.issuperset(pair)),
        )

    def _checks(self) -> list[list[SizeCheck]]:
        """What must hold of sizes that a part makes known; what can be checked before them all is the host's."""
        known = {x.symbol for x in self.s.program.sizes}
        left = [c for c in self.s.program.checks if not c.condition.symbols() <= known]
        found: list[list[SizeCheck]] = []
        for making in self.making:
            known |= making
            found.append([c for c in left if c.condition.symbols() <= known])
            left = [c for c in left if c not in found[-1]]
        return found

    def _symbols(self, k: int) -> set[Symbol]:
        """The size symbols that a part's code reads."""
        every = frozenset(self.known)
        names: set[str] = set()
        for g in self.groups[k]:
            for step in g.work:
                names.update(*symbol_accesses(step, every, self.buffers, self.touched[k]))
        read = {s for s in every if symbol_name(s) in names}
        return read.union(*(c.condition.symbols() for c in self.checks[k]))


def _touched(groups: Sequence[Group]) -> set[str]:
    """Every buffer that some groups use."""
    names = {n for g in groups for n in (*g.reads, *g.writes, *g.internal)}
    return names.union(*(g.call.aliases for g in groups if isinstance(g.call, ExternCall)))


def _made(groups: Sequence[Group]) -> set[Symbol]:
    """The size symbols that some groups make known."""
    return {m.symbol for g in groups if isinstance(g.call, ExternCall) for m in g.call.makes}


def _of_kind(b: Buffer, kinds: Mapping[str, BufferKind]) -> Buffer:
    """A buffer in the role that it has in a part; an output of the whole that a part keeps to itself is a temporary."""
    return dataclasses.replace(b, kind=kinds[b.name]) if b.name in kinds else b
