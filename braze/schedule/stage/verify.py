"""What must hold of every schedule."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from braze.loops.ir import BufferKind, BufferView, LoopNest, LoopProgram
from braze.schedule.facts.dependences import ORDER, accesses
from braze.schedule.facts.records import Group, GroupKind, MemoryPlan, Schedule
from braze.schedule.memory.proof import lives_of
from braze.schedule.stage.sequence import prove_sequence
from braze.support.errors import InternalError
from braze.symbolic.expr import ZERO, Expr


def verify_schedule(s: Schedule) -> None:
    """Raise InternalError BZ9040 where the schedule breaks a rule."""
    _everything_written_before_read(s)
    _old_values_read_first(s)
    _ordered_calls_keep_their_order(s)
    prove_sequence(s.program, s.groups)
    for group in s.groups:
        _group_is_well_formed(group)
    check_memory(s.groups, s.memory)
    if s.fixed is not None:
        verify_schedule(s.fixed)
        made = tuple(o.buffer for o in s.fixed.program.outputs if isinstance(o, BufferView))
        if not made or s.program.inputs[-len(made) :] != made:
            _fail("the fixed part's outputs are not the program's last inputs")


def _fail(what: str, group: Group | None = None) -> None:
    why = f"in {group.name}: {group.reason}" if group else ""
    raise InternalError("BZ9040", f"bad schedule: {what}", why=why)


def _everything_written_before_read(s: Schedule) -> None:
    there = {b.name for b in s.program.buffers if b.kind in (BufferKind.INPUT, BufferKind.CONSTANT)}
    for group in s.groups:
        written = set() if group.steps else set(group.writes)
        for step in group.steps or (None,):
            for name in group.reads if step is None else accesses(step).reads:
                if name not in there and name not in written:
                    _fail(f"{name} is read before anything writes it", group)
            written.update(() if step is None else accesses(step).writes)
        there.update(group.writes)
    for name in _outputs(s.program):
        if name not in there:
            _fail(f"output {name} is never written")


def _outputs(program: LoopProgram) -> set[str]:
    return {b.name for b in program.buffers if b.kind is BufferKind.OUTPUT}


def _old_values_read_first(s: Schedule) -> None:
    """Groups that read a buffer before the program overwrites it stand no later than the overwriting one."""
    place = {name: k for k, g in enumerate(s.groups) for name in g.writes}
    readers: dict[str, list[str]] = {}
    for step in s.program.steps:
        found = accesses(step)
        for name in found.reads:
            readers.setdefault(name, []).extend(found.writes)
        for name in found.writes:
            late = [r for r in readers.pop(name, ()) if place.get(r, -1) > place.get(name, len(s.groups))]
            if late and late != [name]:
                _fail(f"{name} is overwritten before {late[0]} is computed from it")


def _ordered_calls_keep_their_order(s: Schedule) -> None:
    """Random draws and effects happen in the program's order."""
    wanted = [step for step in s.program.steps if ORDER in accesses(step).writes]
    found = [g.call for g in s.groups if g.call is not None and ORDER in accesses(g.call).writes]
    if found != wanted:
        _fail("calls with effects are not in the program's order")


def _group_is_well_formed(group: Group) -> None:
    if group.members:
        _members_are_apart(group)
        return
    if group.kind in (GroupKind.EXTERN, GroupKind.TEMPLATE):
        if group.call is None or group.steps:
            _fail("a call group holds its call and no steps", group)
        return
    if not group.steps:
        _fail("a loop group without steps", group)
    for step in group.steps:
        full = (*group.axes, *group.row_axes)
        if group.walked is not None and step.reduce_axes == (group.walked.within,):
            good = bool(step.reductions) and step.axes == (group.walked.part, *group.row_axes)
        elif step.reductions:
            good = step.axes == group.axes and step.reduce_axes == group.row_axes
        else:
            good = step.axes in (group.axes, full) and not step.reduce_axes
        if not good:
            _fail(f"{step.name} runs over other axes than its group", group)
        _symbols_are_known(step, group)


def _members_are_apart(group: Group) -> None:
    """The members of a launch run at once: none touches what another writes."""
    if group.kind is not GroupKind.COMBO or group.steps != tuple(s for m in group.members for s in m.steps):
        _fail("a launch of several holds their steps, in order", group)
    for member in group.members:
        _group_is_well_formed(member)
    writers = {name: m for m in group.members for name in m.writes}
    for member in group.members:
        for name in (*member.reads, *member.writes):
            if writers.get(name, member) is not member:
                _fail(f"{name} is written by one member of a launch and touched by another", group)


def _symbols_are_known(step: LoopNest, group: Group) -> None:
    own = {a.symbol for a in (*step.axes, *step.reduce_axes)}
    foreign = {a.symbol for a in (*group.axes, *group.row_axes)} - own
    found = accesses(step)
    for indices in (*found.reads.values(), *found.writes.values()):
        for e in indices:
            if e is not None and e.symbols() & foreign:
                _fail(f"{step.name} uses {e}, which its axes do not bind", group)


def check_memory(groups: tuple[Group, ...], plan: MemoryPlan) -> None:
    """Slots of buffers alive at the same time must not overlap, except in-place pairs."""
    lives = lives_of(groups)
    slots = [s for s in plan.slots if s.buffer in lives]
    reuse = set(plan.reuse)
    for i, a in enumerate(slots):
        for b in slots[i + 1 :]:
            (start, stop), (begin, end) = lives[a.buffer], lives[b.buffer]
            apart = stop < begin or end < start
            if apart or (a.buffer, b.buffer) in reuse or (b.buffer, a.buffer) in reuse:
                continue
            if not _disjoint(a.offset, a.bytes, b.offset, b.bytes):
                _fail(f"slots of {a.buffer} and {b.buffer} overlap while both are alive")


#: sizes at which symbolic slots are compared where the bounds do not decide
_TRIED = (2, 3, 17, 64, 1000)


def _disjoint(a: Expr, a_bytes: Expr, b: Expr, b_bytes: Expr) -> bool:
    for gap in (b - a - a_bytes, a - b - b_bytes):
        low = gap.bounds()[0]
        if gap is ZERO or (low is not None and low >= 0):
            return True
    return all(_apart(*slots) for slots in _tried(a, a_bytes, b, b_bytes))


def _tried(*places: Expr) -> Iterator[list[int]]:
    """Some numbers that the expressions may be; where one divides by zero, no call has such sizes."""
    symbols = {s for e in places for s in e.symbols()}
    for size in _TRIED:
        with contextlib.suppress(ZeroDivisionError):
            yield [e.evaluate(dict.fromkeys(symbols, size)) for e in places]


def _apart(a: int, a_bytes: int, b: int, b_bytes: int) -> bool:
    return not a_bytes or not b_bytes or a + a_bytes <= b or b + b_bytes <= a
