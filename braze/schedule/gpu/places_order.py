"""The order in which a GPU's threads walk the points of a kernel that stores at computed places: as these lie, where that touches fewer sectors.

A scatter's points come in the order of what names their places. Places of channels in pixels that lie one behind the other are a sector
of memory each where threads go along pixels, and one for all where they go along channels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from braze.loops.ir import Axis, Buffer, LoopNest, Node, Op
from braze.loops.rewrite import roots, walk
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.gpu.along_threads import SECTOR
from braze.symbolic.expr import Expr, Symbol
from braze.symbolic.guess import likely_size

#: of the sectors that are touched as it is, at most, that another order may touch
WORTH = 0.9


def in_order_of_places(group: Group, buffers: Mapping[str, Buffer]) -> Group:
    """A group whose points come in the order of the places that it stores at, where that is the cheaper one."""
    stores = [s for step in group.steps for s in step.stores]
    if group.kind is not GroupKind.POINTWISE or len(group.axes) < 2 or not all(s.args for s in stores):
        return group
    if any(n.op is Op.RANDOM for step in group.steps for n in walk(*roots(step))):
        return group
    steps_of = {axis: _steps(group.steps, axis, buffers) for axis in group.axes}
    sizes = [likely_size(a.extent) for a in group.axes]
    costs = {
        axis: sum(min(step, SECTOR // size) * size for step, size in found)
        for axis, found in steps_of.items()
    }
    last = group.axes[-1]
    best = min(group.axes, key=lambda axis: costs[axis])
    if costs[best] > WORTH * costs[last] or likely_size(best.extent) < 2 or not all(sizes):
        return group
    stored = stores[0]
    order = sorted(group.axes, key=lambda a: (a is best, -_step(stored.index, stored.args, a)))
    axes = tuple(order)
    steps = tuple(dataclasses.replace(step, axes=axes) for step in group.steps)
    return dataclasses.replace(group, steps=steps, axes=axes)


def _steps(steps: Sequence[LoopNest], axis: Axis, buffers: Mapping[str, Buffer]) -> list[tuple[int, int]]:
    """(elements from one point of an axis to the next, bytes of each) of all accesses that differ along it; of places that are looked up those of the next number."""
    found: dict[tuple[str, Expr, tuple[Node, ...]], None] = {}
    for step in steps:
        for node in walk(*roots(step)):
            if node.op is Op.LOAD:
                found[node.attr[0], node.attr[1], node.args] = None
        for s in step.stores:
            found[s.buffer, s.index, s.args] = None
    sizes = [(_step(index, args, axis), buffers[name].dtype.itemsize) for name, index, args in found]
    return [(max(step, 1), size) for step, size in sizes]


def _step(index: Expr, args: Sequence[Node], axis: Axis) -> int:
    """Elements from one point of an axis to the next; of places that are looked up along it those from one number to the next; a sector's where that is not known."""
    direct = _coefficient(index, axis.symbol)
    if direct or not args:
        return direct
    for k, arg in enumerate(args):
        if any(axis.symbol in n.attr[1].symbols() for n in walk(arg) if n.op is Op.LOAD):
            return sum(_coefficient(index, s) for s in index.symbols() if s.place == k)
    return 0


def _coefficient(index: Expr, symbol: Symbol) -> int:
    found = index.coefficient(symbol)
    return SECTOR if found is None else abs(likely_size(found))
