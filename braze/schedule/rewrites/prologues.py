"""Rows that a product's template computes itself: a norm, a cast, a scale of its left matrix, of few rows; of a batch's matrices what needs no sums; of grouped
rows that they are looked up, which costs it no more than to read them sorted.

The kernel that makes the matrix is dropped, and each template that reads it computes the rows again: of few rows that costs less
than one more launch and the wait between the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from braze.loops.ir import Axis, BufferView, LoopNest, LoopProgram, Op, StoreMode, TemplateCall
from braze.loops.rewrite import Substitution, index_exprs, loads, roots, store_roots, walk
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.dependences import accesses, families
from braze.schedule.facts.passes import flat
from braze.schedule.facts.records import Group, GroupKind
from braze.symbolic.expr import (
    ONE,
    ZERO,
    Expr,
    FloorDiv,
    Mod,
    Symbol,
    axis_symbol,
    contiguous_strides,
    floor_div,
    known_le,
    linear,
    modulo,
    product,
)
from braze.symbolic.flat import parts_of

_LOOPS = (GroupKind.POINTWISE, GroupKind.PERSISTENT, GroupKind.LOOPED)


def with_prologues(
    groups: Sequence[Group], program: LoopProgram, kept: set[str], choices: Choices
) -> list[Group]:
    """The groups with kernels that only make the left matrices of templates moved into these."""
    out = list(groups)
    family = families(program)
    shared = {n for n, root in family.items() if n != root} | {r for n, r in family.items() if n != r}
    fixed = shared | set(program.mutated)
    for group in groups:
        if not _may_be_absorbed(group, fixed) or group.writes[0] in kept:
            continue
        made = _absorbed(group, [g for g in out if group.writes[0] in g.reads], choices)
        if made is not None:
            out = [made.get(g.name, g) for g in out if g is not group]
    return out


def _may_be_absorbed(group: Group, fixed: set[str]) -> bool:
    """Whether a group's loops may stand elsewhere: asked before its readers are looked for among all groups."""
    if group.kind not in _LOOPS or group.device == "cpu" or len(group.writes) != 1:
        return False
    return fixed.isdisjoint((*group.reads, *group.writes))


def _absorbed(group: Group, users: Sequence[Group], choices: Choices) -> Mapping[str, Group] | None:
    """Each reader of what a group writes with the group's loops as its prologue; None where one of them cannot, or there is none."""
    if not users:
        return None
    made: dict[str, Group] = {}
    for user in users:
        prologue = _prologue(group, user, choices)
        if prologue is None:
            return None
        assert isinstance(user.call, TemplateCall)
        call = dataclasses.replace(user.call, prologue=prologue, ops=(*group.steps[-1].ops, *user.call.ops))
        reads = tuple(sorted(accesses(call).reads))
        reason = "; ".join(filter(None, (user.reason, f"computes {group.writes[0]} of {group.name} itself")))
        made[user.name] = dataclasses.replace(user, call=call, reads=reads, reason=reason)
    return made


def _prologue(group: Group, user: Group, choices: Choices) -> tuple[LoopNest, ...] | None:
    """A group's loops over a template's rows, and along them; None where they are others, or too much to do again."""
    call = user.call
    if not isinstance(call, TemplateCall) or call.kind == "depthwise" or call.prologue:
        return None
    grouped = call.kind == "grouped"
    left = call.args[0]
    (name,) = group.writes
    rows, inner = left.sizes[-2:]
    if left.buffer != name or not _is_dense(left) or left.offset is not ZERO:
        return None
    if name in _read_elsewhere(call) or not (_looks_up(group) if grouped else _plain(group)):
        return None
    k = Axis(axis_symbol("k", inner), inner)
    axes = (*call.axes[:-1], k)
    if call.batch is None:
        again, change = grouped or choices.worth_again(rows, inner), _over(group, axes[0], k)
    else:
        # a program computes its own rows alone, once for each of few blocks of columns
        again, change = (
            not group.row_axes and choices.worth_anew(call.axes[-1].extent),
            _of_batch(group, axes),
        )
    if change is None or not again:
        return None
    nests = tuple(_moved(step, change, group, axes) for step in group.steps)
    place = linear([ZERO if a.extent is ONE else a.symbol for a in axes], left.strides, ZERO)
    stores = [s for n in nests for s in n.stores if s.buffer == name]
    if len(stores) != 1 or stores[0].index is not place:
        return None
    inside = {a.symbol for a in axes[-2:]}  # of which product it is one, a program divides once
    divided = (
        x for n in nests for e in index_exprs(n) for x in parts_of(e) if isinstance(x, (FloorDiv, Mod))
    )
    if any(call.batch is None or not inside.isdisjoint(x.symbols()) for x in divided):
        return None
    again = all(choices.recompute(s.value) for n in nests for s in n.stores if k in n.axes)
    return nests if again else None


def _is_dense(view: BufferView) -> bool:
    """Whether a matrix, or a batch of them, lies row after row with nothing between."""
    return view.strides == contiguous_strides(view.sizes)


def _of_batch(group: Group, axes: Sequence[Axis]) -> Substitution | None:
    """A group's symbols written in the axes of a batch's matrices: one of it for some of these, or some of it for one."""
    at: dict[Symbol, Expr] = {}
    theirs, ours = list(group.axes), list(axes)
    while theirs and ours:
        some, of = [theirs.pop(0)], [ours.pop(0)]
        while theirs and _count(some) is not _count(of) and known_le(_count(some), _count(of)):
            some.append(theirs.pop(0))
        while ours and _count(some) is not _count(of) and known_le(_count(of), _count(some)):
            of.append(ours.pop(0))
        if _count(some) is not _count(of) or 1 not in (len(some), len(of)):
            return None
        number = flat(of)
        for axis in reversed(some[1:]):
            at[axis.symbol], number = modulo(number, axis.extent), floor_div(number, axis.extent)
        at[some[0].symbol] = number
    return None if theirs or ours else Substitution(at)


def _count(axes: Sequence[Axis]) -> Expr:
    return product([a.extent for a in axes])


def _read_elsewhere(call: TemplateCall) -> set[str]:
    """The buffers that a template reads beside its left matrix."""
    return {v.buffer for v in call.args[1:]} | loads(*store_roots(call.epilogue))


def _plain(group: Group) -> bool:
    """Whether a group only computes, by loops that a template can do again."""
    for step in group.steps:
        if any(s.mode is not StoreMode.PLAIN or s.args for s in step.stores):
            return False
        if any(r.kind.finds_place for r in step.reductions):
            return False
        if any(
            n.op in (Op.RANDOM, Op.CHECK_INDEX) or (n.op is Op.LOAD and n.args) for n in walk(*roots(step))
        ):
            return False
    return True


def _looks_up(group: Group) -> bool:
    """Whether a group only copies rows, of which each may be looked up."""
    stores = [s for step in group.steps for s in step.stores]
    plain = not group.row_axes and all(s.mode is StoreMode.PLAIN and not s.args for s in stores)
    return plain and all(s.value.op is Op.LOAD for s in stores)


def _over(group: Group, m: Axis, k: Axis) -> Substitution | None:
    """A group's symbols written in a template's row and the place in it."""
    if group.row_axes:
        if len(group.row_axes) != 1 or group.row_axes[0].extent is not k.extent:
            return None
        if (group.axes[0].extent if group.axes else ONE) is not m.extent:
            return None
        at = {a.symbol: m.symbol for a in group.axes}
        return Substitution({**at, group.row_axes[0].symbol: k.symbol})
    extents = [a.extent for a in group.axes]
    if extents == [m.extent, k.extent]:
        return Substitution(dict(zip((a.symbol for a in group.axes), (m.symbol, k.symbol), strict=True)))
    if len(extents) == 1 and extents[0] is m.extent * k.extent:
        whole = k.symbol if m.extent is ONE else m.symbol * k.extent + k.symbol
        return Substitution({group.axes[0].symbol: whole})
    return None


def _moved(step: LoopNest, change: Substitution, group: Group, axes: tuple[Axis, ...]) -> LoopNest:
    row, k = {a.symbol for a in group.row_axes}, axes[-1]
    along = not group.row_axes or any(a.symbol in row for a in step.axes)
    return change.nest(step, axes if along else axes[:-1], (k,) if step.reduce_axes else ())
