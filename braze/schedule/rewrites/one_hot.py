"""Sums along a row in which one element alone is not zero: the element itself, without a walk.

The backward of a loss sums the gradient of log-probabilities along each row, which is zero but at the target: a walk over all
classes of comparisons, of which one holds.
"""

from __future__ import annotations

import dataclasses

from braze.loops import build
from braze.loops.ir import Axis, DType, LoopNest, Node, Op, ReduceKind, Reduction
from braze.loops.rewrite import walk, with_results
from braze.schedule.facts.records import Group


def known_sums(group: Group) -> Group:
    """The group with such sums as steps at its points."""
    if len(group.row_axes) != 1:
        return group
    steps = tuple(_known(step, group.row_axes[0]) for step in group.steps)
    return group if steps == group.steps else dataclasses.replace(group, steps=steps)


def _known(step: LoopNest, row: Axis) -> LoopNest:
    found = [_one(r, row) for r in step.reductions]
    if not found or any(value is None for value in found):
        return step
    stores = tuple(with_results(s, lambda n: found[n.attr]) for s in step.stores)  # type: ignore[arg-type, return-value]
    return dataclasses.replace(step, reduce_axes=(), reductions=(), stores=stores)


def _one(r: Reduction, row: Axis) -> Node | None:
    """The sum of ``where(place == row, value, 0)``, where neither place nor value is another along the row."""
    choice, kinds = r.value, [r.dtype]
    while choice.op is Op.CAST and choice.args[0].dtype.is_float:  # zero stays zero
        kinds.append(choice.dtype)
        choice = choice.args[0]
    zero = choice.op is Op.WHERE and choice.args[2].op is Op.CONST and choice.args[2].attr == 0
    if r.kind is not ReduceKind.SUM or not zero or r.value.dtype is not r.dtype or not choice.dtype.is_float:
        return None
    test, value, other = choice.args
    if test.op is not Op.EQ or not test.args[0].dtype.is_integer:
        return None
    place, number = test.args if _counts(test.args[1], row) else test.args[::-1]
    if not _counts(number, row) or _varies(place, row) or _varies(value, row):
        return None
    at = build.cast(place, DType.I64)
    above = build.invert(build.lt(at, build.const(0, DType.I64)))
    below = build.lt(at, build.index(row.extent))
    # zeros beside it make the negative zero positive
    alone = build.where(build.both(above, below), value, other)
    for kind in reversed(kinds):
        alone = build.cast(alone, kind)
    return build.add(alone, build.const(0.0, r.dtype))


def _counts(node: Node, row: Axis) -> bool:
    """Whether a node is the number of the row's element, of a type that holds all of them."""
    limit = row.extent.value
    if node.op is Op.CAST and node.dtype is DType.I32 and limit is not None and limit < 2**31:
        node = node.args[0]
    return node.op is Op.INDEX and node.attr is row.symbol


def _varies(value: Node, row: Axis) -> bool:
    for n in walk(value):
        expr = n.attr[1] if n.op is Op.LOAD else n.attr if n.op in (Op.INDEX, Op.CHECK_INDEX) else None
        if n.op is Op.RANDOM or (expr is not None and row.symbol in expr.symbols()):
            return True
    return False
