"""Prove that no buffer of a plan is overwritten while somebody still reads it. Runs at each compile.

Works from the groups in their order and what they read and write, not from how the plan was made. Shown is:

1. A slot is held from the first group that touches its buffer to the last, or to the last that touches what may be a view
   of it.
2. Slots held at the same time lie apart. Where their places are expressions, the host finds them when it knows the numbers,
   from 1 and 3 alone.
3. A buffer lies over another only if one pointwise group reads the old one last and writes the new one first, each element
   at the point where it was read, and no two points write one element. New contents of an input may also be written once
   nobody reads the old ones; they lie there as the input does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from braze.loops.ir import Buffer, BufferKind, BufferView, ExternCall, LoopProgram
from braze.loops.rewrite import loads, store_roots
from braze.schedule.facts.dependences import ANYWHERE, accesses
from braze.schedule.facts.domains import injective
from braze.schedule.facts.records import Group, GroupKind, MemoryPlan, Slot
from braze.support.errors import InternalError
from braze.symbolic.expr import ZERO, Expr

Lives = dict[str, tuple[int, int]]


def prove_memory(program: LoopProgram, groups: Sequence[Group], plan: MemoryPlan) -> None:
    """Raise InternalError BZ9041 where the plan lets a buffer be overwritten too early."""
    lives = lives_of(groups)
    buffers = {b.name: b for b in program.buffers}
    returned = {o.buffer for o in program.outputs if isinstance(o, BufferView)}
    for slot in plan.slots:
        _slot_is_held_long_enough(slot, lives, buffers, returned)
    for new, old in (*plan.reuse, *plan.handed):
        _may_lie_over(new, old, groups, lives, buffers)
    for new, old in plan.renewed:
        _may_renew(new, old, groups, lives, buffers)
        if old in returned:
            _fail(f"{new} is written over {old}, which is returned")
        for view in program.outputs:
            if isinstance(view, BufferView) and view.buffer == new:
                _lies_where(view, buffers[old])
    for new, old in plan.handed:
        if old in returned:
            _fail(f"{new} is written over {old}, which is returned")
    if plan.arena_bytes.value is not None:
        _slots_lie_apart(plan, lives)


def lives_of(groups: Sequence[Group]) -> Lives:
    """(first, last) group that touches each buffer, or what a call may have made a view of it."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, g in enumerate(groups):
        for name in (*g.reads, *g.writes):
            first.setdefault(name, k)
            last[name] = k
    for g in reversed(groups):
        if isinstance(g.call, ExternCall) and g.call.aliases:
            stop = max((last.get(name, 0) for name in g.call.outputs if name), default=0)
            for name in g.call.aliases:
                last[name] = max(last.get(name, 0), stop)
    return {name: (start, last[name]) for name, start in first.items()}


def _fail(what: str) -> None:
    raise InternalError("BZ9041", f"bad memory plan: {what}")


def _slot_is_held_long_enough(
    slot: Slot, lives: Lives, buffers: Mapping[str, Buffer], returned: set[str]
) -> None:
    name = slot.buffer
    if buffers[name].kind in (BufferKind.INPUT, BufferKind.CONSTANT) or name in returned:
        _fail(f"{name}, which the caller has, is in the arena")
    start, stop = lives.get(name, (slot.start, slot.stop))
    if slot.start > start or slot.stop < stop:
        _fail(
            f"{name} is used in groups {start} to {stop}, and has its memory in {slot.start} to {slot.stop}"
        )


def _may_lie_over(
    new: str, old: str, groups: Sequence[Group], lives: Lives, buffers: Mapping[str, Buffer]
) -> None:
    what = f"{new} is written over {old}"
    start = lives[new][0]
    if lives[old][1] != start:
        _fail(f"{what}, which is used until group {lives[old][1]}, in group {start}")
    group = groups[start].writer(new)
    if any(old in m.reads or new in m.reads or new in m.writes for m in groups[start].each if m is not group):
        _fail(f"{what} in {group.name}, while another member of its launch touches one")
    if group.kind is not GroupKind.POINTWISE or len(group.steps) != 1:
        _fail(f"{what} by {group.name}, which is no pointwise kernel of one step")
    found = accesses(group.steps[0])
    indices: set[Expr | None] = found.reads.get(old, set()) | found.writes[new]
    if len(indices) != 1 or ANYWHERE in indices or new in found.reads or old in found.writes:
        _fail(f"{what} at other places than it is read at, in {group.name}")
    (index,) = indices
    if index is None or not injective(index, group.steps[0].axes):
        _fail(f"{what} by several points of {group.name}")
    if buffers[new].dtype.itemsize != buffers[old].dtype.itemsize:
        _fail(f"{what}, whose elements have another size")
    others = [s for s in group.steps[0].stores if s.buffer != new]
    if group.device != "cpu" and old in loads(*store_roots(others)):
        _fail(f"{what}, which {group.name} reads for another result, too")


def _may_renew(
    new: str, old: str, groups: Sequence[Group], lives: Lives, buffers: Mapping[str, Buffer]
) -> None:
    """Rule 3 of an input's new contents; an input that is not read where they are written may be gone before."""
    start = lives[new][0]
    if buffers[old].kind is not BufferKind.INPUT or any(new in g.writes for g in groups[start + 1 :]):
        _fail(f"{new} is written over {old}, which is no input, or by several groups")
    if lives.get(old, (0, -1))[1] >= start:
        _may_lie_over(new, old, groups, lives, buffers)


def _lies_where(view: BufferView, old: Buffer) -> None:
    """An input's new contents have each element in its place: nobody copies them there."""
    if (view.sizes, view.strides, view.offset) != (old.sizes, old.strides, ZERO):
        _fail(f"{view.buffer} is written over {old.name}, whose elements have other places")


def _slots_lie_apart(plan: MemoryPlan, lives: Lives) -> None:
    """Walk the groups with what is held, in order of place: a new slot need only be compared with its neighbours."""
    over = dict(plan.reuse)
    arrivals: dict[int, list[Slot]] = {}
    for slot in plan.slots:
        if slot.bytes.value:
            arrivals.setdefault(lives.get(slot.buffer, (slot.start, 0))[0], []).append(slot)
    held: list[tuple[int, int, str]] = []
    leaving: dict[int, list[tuple[int, int, str]]] = {}
    total = plan.arena_bytes.value or 0
    for k in sorted({*arrivals, *(lives.get(s.buffer, (0, s.stop))[1] + 1 for s in plan.slots)}):
        for gone in leaving.pop(k, ()):
            held.remove(gone)
        for slot in sorted(arrivals.get(k, ()), key=lambda s: s.buffer in over):
            place = slot.offset.value or 0, (slot.offset.value or 0) + (slot.bytes.value or 0), slot.buffer
            old = next((h for h in held if h[2] == over.get(slot.buffer)), None)
            if old is not None:
                if old[:2] != place[:2]:
                    _fail(f"{slot.buffer} lies only partly over {old[2]}")
                held.remove(old)  # proved by rule 3
                leaving[lives[old[2]][1] + 1].remove(old)
            _fits(place, held, total)
            insort(held, place)
            leaving.setdefault(lives.get(slot.buffer, (0, slot.stop))[1] + 1, []).append(place)


def _fits(place: tuple[int, int, str], held: list[tuple[int, int, str]], total: int) -> None:
    if place[0] < 0 or place[1] > total:
        _fail(f"{place[2]} reaches out of the arena")
    at = bisect_left(held, place)
    for other in held[max(at - 1, 0) : at + 1]:
        if place[0] < other[1] and other[0] < place[1]:
            _fail(f"{place[2]} and {other[2]} overlap while both are in use")
