"""Give loop nests as few axes as their accesses allow.

Two neighbouring axes become one where every index expression steps over them as over a single one:
the outer coefficient is the inner one times the inner extent. Axes of size 1 go. Nothing else changes, so
the order in which points are visited stays. What would be read at none of
a nest's points is not in it: a generator may move a load out of a loop, but a tensor without elements has no memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from braze.loops import build
from braze.loops.ir import Axis, LoopNest, Step
from braze.loops.rewrite import Substitution, index_exprs
from braze.symbolic.expr import ONE, ZERO, Expr, Symbol, axis_symbol


def simplify_steps(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Each loop nest with merged axes; other steps as they are."""
    return tuple(merge_axes(without_points(s)) if isinstance(s, LoopNest) else s for s in steps)


def without_points(nest: LoopNest) -> LoopNest:
    """The nest, which reads no memory where it has no points."""
    if _is_empty(nest.axes):
        stores = tuple(
            dataclasses.replace(s, index=ZERO, value=build.const(0, s.value.dtype), args=())
            for s in nest.stores
        )
        return dataclasses.replace(nest, reduce_axes=(), reductions=(), stores=stores)
    if _is_empty(nest.reduce_axes):
        reductions = tuple(
            dataclasses.replace(r, value=build.const(0, r.value.dtype)) for r in nest.reductions
        )
        return dataclasses.replace(nest, reductions=reductions)
    return nest


def _is_empty(axes: tuple[Axis, ...]) -> bool:
    return any(axis.extent is ZERO for axis in axes)


def merge_axes(nest: LoopNest) -> LoopNest:
    """The nest over as few axes as possible, named i0, i1, .. and r0, r1, .."""
    indices = set(index_exprs(nest))
    mapping: dict[Symbol, Expr] = {}
    axes = merged(nest.axes, indices, "i", mapping)
    reduce_axes = merged(nest.reduce_axes, indices, "r", mapping)
    if all(k is v for k, v in mapping.items()):
        return nest
    return Substitution(mapping).nest(nest, axes, reduce_axes)


def merged(
    axes: tuple[Axis, ...], indices: Collection[Expr], letter: str, mapping: dict[Symbol, Expr]
) -> tuple[Axis, ...]:
    """The axes that stand for ``axes`` where these are all the indices; ``mapping`` gets what each old symbol is."""
    runs: list[list[Axis]] = []
    for axis in axes:
        if axis.extent is ONE:
            mapping[axis.symbol] = ZERO
        elif runs and step_as_one(runs[-1][-1], axis, indices):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    made = []
    for k, run in enumerate(runs):
        extent: Expr = ONE
        for axis in run:
            extent = extent * axis.extent
            mapping[axis.symbol] = ZERO
        symbol = axis_symbol(f"{letter}{k}", extent)
        # every index is linear with strides that follow on: the innermost symbol stands for the run
        mapping[run[-1].symbol] = symbol
        made.append(Axis(symbol, extent))
    return tuple(made)


def step_as_one(outer: Axis, inner: Axis, indices: Collection[Expr]) -> bool:
    """Whether all of these step over two neighbouring axes as over one."""
    for e in indices:
        a, b = e.coefficient(outer.symbol), e.coefficient(inner.symbol)
        if a is None or b is None or a is not b * inner.extent:
            return False
    return True
