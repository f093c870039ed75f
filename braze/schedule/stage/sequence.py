"""Prove that every read of a schedule sees what it sees in the program, and that steps of one kernel meet at the same points.

Works from the steps of the program and of the groups alone, not from how these were fused and ordered. A buffer that is written
again (a scatter, a call in place) is another *state* of it. What is shown:

1. A step reads buffers in a state that the step of the program reads which makes the same, or that one of the steps reads whose
   values it computes again.
2. Where a kernel writes a buffer that another of its steps reads or writes, both do so at one index, and no two points share it:
   the points of a kernel run in any order, and each may run all steps before the next begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from braze.loops.ir import ExternCall, LoopNest, LoopProgram, Step, StoreMode
from braze.schedule.facts.dependences import ANYWHERE, Accesses, accesses, families
from braze.schedule.facts.domains import injective
from braze.schedule.facts.records import Group
from braze.schedule.forms.mixed import down_columns
from braze.support.errors import InternalError
from braze.symbolic.expr import Expr

#: a buffer's storage, and how often it has been written
State = tuple[str, int]


def prove_sequence(program: LoopProgram, groups: Sequence[Group]) -> None:
    """Raise InternalError BZ9042 where a read sees something else than in the program, or may."""
    family = families(program)
    # two loops that write one place may have become one, whose state is then not to be counted; no lowered program has such
    often = Counter(family.get(n, n) for n in _written_by_loops(program))
    reads: dict[State, set[State]] = {}  # a state -> those that the step reads which makes it
    # states that a loop makes, in which a reader may be joined or make them again
    computed: set[State] = set()
    for step, seen, made in _states(program.steps, family):
        reads.update(dict.fromkeys(made or {(step.name, 0)}, seen))
        if not isinstance(step, ExternCall):
            computed |= made
    steps = [(group, step) for group in groups for step in group.work]
    of_step = _states([step for _, step in steps], family)
    for (group, _), (step, seen, made) in zip(steps, of_step, strict=True):
        made = made or {(step.name, 0)}  # of a call that only tells a number
        if any(often[root] > 1 for root, _ in made):
            continue
        seen = {state for state in seen if often[state[0]] < 2}
        allowed = set().union(*(reads.get(state, set()) for state in made))
        if not seen <= allowed and not seen <= _with_inlined(allowed, reads, computed):
            late = ", ".join(sorted(name for name, _ in seen - _with_inlined(allowed, reads, computed)))
            _fail(f"{late} is read in another state than in the program", group)
    for group in groups:
        _meet_at_no_point(group, family)
        for each in group.each:
            _meet_at_the_same_points(each)


def _written_by_loops(program: LoopProgram) -> Iterator[str]:
    for step in program.steps:
        if isinstance(step, LoopNest):
            yield from (s.buffer for s in step.stores if s.mode is StoreMode.PLAIN)


def _states(steps: Sequence[Step], family: dict[str, str]) -> Iterator[tuple[Step, set[State], set[State]]]:
    """Each step with the states that it reads and those that it makes."""
    written: Counter[str] = Counter()
    for step in steps:
        found = accesses(step)
        seen = {(family.get(name, name), written[family.get(name, name)]) for name in found.reads}
        roots = {family.get(name, name) for name in found.writes}
        written.update(roots)
        yield step, seen, {(root, written[root]) for root in roots}


def _with_inlined(states: set[State], reads: dict[State, set[State]], computed: set[State]) -> set[State]:
    """The states, and all that they are computed from by loops."""
    found = set(states)
    stack = [state for state in states if state in computed]
    while stack:
        for state in reads[stack.pop()] - found:
            found.add(state)
            if state in computed:
                stack.append(state)
    return found


def _meet_at_the_same_points(group: Group) -> None:
    steps = group.steps
    if group.walked is not None:  # what is summed down the columns stands at a row of the tile
        down = down_columns(group)
        steps = (*steps[: len(steps) - len(down)], *down)
    each = [(step, accesses(step)) for step in steps]
    for step, found in each:
        for name, places in found.writes.items():
            others = [other for at, other in each if at is not step and name in other.touched()]
            if not others and (ANYWHERE in places or name not in found.reads):
                continue
            indices = places.union(found.reads.get(name, ()), *(_places(other, name) for other in others))
            if len(indices) != 1 or ANYWHERE in indices:
                _fail(f"{name} is written by {step.name} and touched by other steps at other places", group)
            (index,) = indices
            if index is None or not injective(index, step.axes):
                _fail(f"{name} is written by several points of {step.name} and touched by other steps", group)


def _meet_at_no_point(group: Group, family: Mapping[str, str]) -> None:
    """No storage that a member of a launch writes is touched by another: they run at once."""
    each = [[accesses(step) for step in m.steps] for m in group.members]
    written = {
        family.get(n, n): k for k, several in enumerate(each) for found in several for n in found.writes
    }
    for k, several in enumerate(each):
        for name in {n for found in several for n in found.touched()}:
            if written.get(family.get(name, name), k) != k:
                _fail(f"{name} is written by a member of a launch and touched by another", group)


def _places(found: Accesses, name: str) -> set[Expr | None]:
    return {*found.reads.get(name, ()), *found.writes.get(name, ())}


def _fail(what: str, group: Group) -> None:
    raise InternalError("BZ9042", f"bad schedule: {what}", why=f"in {group.name}: {group.reason}")
