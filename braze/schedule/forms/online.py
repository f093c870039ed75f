"""The maximum of a long row and the sum of powers below it, from one read of the row.

Softmax, logsumexp and cross-entropy take a row's maximum first, and then sum ``exp(x - maximum)``. A row that no program can hold
is read once for each. ``ONLINE_SOFTMAX`` finds both in one walk: the sum so far is scaled where a greater maximum comes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from braze.loops import build
from braze.loops.ir import Buffer, DType, LoopNest, Node, Op, ReduceKind, Reduction, Store, StoreMode
from braze.loops.rewrite import loads, rewrite, roots
from braze.schedule.facts.passes import kinds_of, over_row
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.fusion.canonical import borders
from braze.schedule.gpu.kernels import plan_kernel
from braze.symbolic.expr import Expr

Key = tuple[str, Expr]


def read_once(group: Group) -> Group:
    """The group with each pair of a maximum and a sum of powers below it as one reduction."""
    if group.kind is not GroupKind.LOOPED:
        return group
    steps = list(group.steps)
    for first, second in list(_pairs(steps)):
        made = _joined(steps, first, second, group)
        if made is not None:
            steps = made
    if tuple(steps) == group.steps:
        return group
    needed = set(group.writes)
    kept: list[LoopNest] = []
    read = set(needed)
    for step in reversed(steps):
        stores = tuple(s for s in step.stores if s.buffer in read)
        if stores:
            kept.append(dataclasses.replace(step, stores=stores))
            read |= loads(*roots(kept[-1]))
    nests = tuple(kept[::-1])
    internal, reads, writes = borders(nests, needed)
    reason = "; ".join(filter(None, (group.reason, "a maximum and the powers below it from one read")))
    return dataclasses.replace(
        group, steps=nests, internal=internal, reads=reads, writes=writes, reason=reason
    )


def walked_once(group: Group, buffers: Mapping[str, Buffer]) -> Group:
    """The same of a group whose rows a program would hold, but that lie down columns, of which it walks several at a time."""
    if group.device == "cpu" or group.kind is not GroupKind.PERSISTENT or group.walked is not None:
        return group
    if not {ReduceKind.MAX, ReduceKind.SUM} <= kinds_of(group.steps):
        return group
    if plan_kernel(group, dict(buffers)).whole:
        return group
    made = read_once(dataclasses.replace(group, kind=GroupKind.LOOPED))
    return made if len(made.steps) < len(group.steps) else group


def _pairs(steps: list[LoopNest]) -> Iterator[tuple[str, str]]:
    """The names of steps that take a maximum alone and of later ones that take a sum alone."""
    for k, step in enumerate(steps):
        if _only(step, ReduceKind.MAX):
            yield from ((step.name, later.name) for later in steps[k + 1 :] if _only(later, ReduceKind.SUM))


def _only(step: LoopNest, kind: ReduceKind) -> bool:
    return (
        [r.kind for r in step.reductions] == [kind]
        and step.reductions[0].dtype in (DType.F32, DType.F64)
        and all(s.mode is StoreMode.PLAIN and not s.args for s in step.stores)
    )


def _joined(steps: list[LoopNest], first: str, second: str, group: Group) -> list[LoopNest] | None:
    """The steps with these two as one; None where the second is not the sum of powers below the first's maximum."""
    names = [s.name for s in steps]
    if first not in names or second not in names:
        return None
    i, j = names.index(first), names.index(second)
    top, total = steps[i], steps[j]  # the first may be joined with another sum already
    dtype = top.reductions[0].dtype
    if total.reductions[0].dtype is not dtype or top.reduce_axes != total.reduce_axes:
        return None
    known = _inside(steps, group)
    value = _resolved(top.reductions[0].value, known)
    plain, guarded = _maxima(steps, top, dtype)
    found = _resolved(total.reductions[0].value, known)
    if found.op is not Op.EXP or found.args[0].op is not Op.SUB or value.dtype is not dtype:
        return None
    minuend, subtrahend = found.args[0].args
    written = {s.buffer for step in steps[i:j] for s in step.stores}
    if minuend is not value or loads(value) & written:
        return None
    best, result = build.reduced(0, dtype), build.reduced(1, dtype)
    if subtrahend in guarded:
        infinite = build.binary(Op.EQ, build.unary(Op.ABS, best), build.const(math.inf, dtype))
        above = build.binary(Op.GT, best, build.const(0.0, dtype))
        limit = build.where(above, build.const(math.inf, dtype), build.const(0.0, dtype))
        result = build.where(infinite, limit, result)
    elif subtrahend not in plain:
        return None
    stores = _moved(total, plain, best, result)
    if stores is None:
        return None
    online = Reduction(ReduceKind.ONLINE_SOFTMAX, dtype, value)
    ops = tuple(dict.fromkeys((*top.ops, *total.ops)))
    both = dataclasses.replace(top, reductions=(online,), stores=(*top.stores, *stores), ops=ops)
    return [*steps[:i], both, *steps[i + 1 : j], *steps[j + 1 :]]


def _inside(steps: list[LoopNest], group: Group) -> dict[Key, Node]:
    """What is kept along the row inside the group, each as what it is of other values."""
    known: dict[Key, Node] = {}
    for step in steps:
        if not step.reductions and over_row(step, group.row_axes):
            for s in step.stores:
                if s.buffer in group.internal and not s.args and s.mode is StoreMode.PLAIN:
                    known[s.buffer, s.index] = _resolved(s.value, known)
    return known


def _resolved(node: Node, known: dict[Key, Node]) -> Node:
    """The value with what is kept inside, of the load's own type, in place of loads."""

    def replace(n: Node) -> Node:
        found = known.get(n.attr) if n.op is Op.LOAD and not n.args else None
        return found if found is not None and found.dtype is n.dtype else n

    return rewrite(node, replace, {})


def _maxima(steps: list[LoopNest], top: LoopNest, dtype: DType) -> tuple[set[Node], set[Node]]:
    """The expressions that are the maximum, and those that are zero instead where it is infinite."""
    plain = {
        build.load(s.buffer, dtype, s.index)
        for s in top.stores
        if s.value.op is Op.REDUCED and s.value.attr == 0 and s.value.dtype is dtype
    }
    guarded = {
        build.where(
            build.binary(Op.EQ, build.unary(Op.ABS, n), build.const(math.inf, dtype)),
            build.const(0.0, dtype),
            n,
        )
        for n in plain
    }
    for step in steps:
        for s in step.stores if not step.reductions else ():
            if s.value in guarded and not s.args:
                guarded.add(build.load(s.buffer, dtype, s.index))
    return plain, guarded


def _moved(total: LoopNest, plain: set[Node], best: Node, result: Node) -> tuple[Store, ...] | None:
    """The sum's stores as ones of the common step; None where they read what this cannot know."""

    def replace(n: Node) -> Node:
        return best if n in plain else result if n.op is Op.REDUCED else n

    stores = tuple(dataclasses.replace(s, value=rewrite(s.value, replace, {})) for s in total.stores)
    return None if loads(*(s.value for s in stores)) else stores
