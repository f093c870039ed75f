"""Give loop nests as few axes as their accesses allow.

Two neighbouring axes become one where every index expression of the nest steps over them as over a single one:
the outer coefficient is the inner one times the inner extent. Axes of size 1 go. Nothing else changes, so
the order in which points are visited stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from braze.loops.build import nodes_of, rebuild
from braze.loops.ir import Axis, LoopNest, LoopProgram, Node, Op, Reduction, Step, Store
from braze.symbolic.expr import ONE, ZERO, Expr, Symbol, axis_symbol

_INDEXED = (Op.LOAD, Op.INDEX)


def simplify_program(program: LoopProgram) -> LoopProgram:
    """The program with every nest simplified."""
    return dataclasses.replace(program, steps=simplify_steps(program.steps))


def simplify_steps(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Each loop nest with merged axes; other steps as they are."""
    return tuple(merge_axes(s) if isinstance(s, LoopNest) else s for s in steps)


def merge_axes(nest: LoopNest) -> LoopNest:
    """The nest over as few axes as possible, named i0, i1, .. and r0, r1, .."""
    every = (*nest.axes, *nest.reduce_axes)
    indices = set(index_expressions(nest))
    rows = [_coefficients(e, every) for e in indices]
    groups = _merge(every[: len(nest.axes)], rows)
    reduce_groups = _merge(every[len(nest.axes) :], rows)
    mapping: dict[Symbol, Expr] = {}
    axes = _rename(groups, "i", mapping)
    reduce_axes = _rename(reduce_groups, "r", mapping)
    if all(k is v for k, v in mapping.items()):
        return nest
    return replace_symbols(nest, mapping, axes, reduce_axes)


def index_expressions(nest: LoopNest) -> Iterator[Expr]:
    """Every index expression of a nest: where it stores, loads, and what indices it computes with."""
    roots = [r.value for r in nest.reductions]
    for s in nest.stores:
        yield s.index
        roots.append(s.value)
        roots.extend(s.args)
    for node in nodes_of(*roots):
        if node.op is Op.LOAD:
            yield node.attr[1]
        elif node.op is Op.INDEX:
            yield node.attr


def replace_symbols(
    nest: LoopNest, mapping: Mapping[Symbol, Expr], axes: tuple[Axis, ...], reduce_axes: tuple[Axis, ...]
) -> LoopNest:
    """The nest over other axes, its old symbols replaced."""
    change = _substitution(mapping)
    memo: dict[Node, Node] = {}

    def mapped(node: Node) -> Node:
        found = memo.get(node)
        if found is None:
            found = memo[node] = rebuild(node, change)
        return found

    return dataclasses.replace(
        nest,
        axes=axes,
        reduce_axes=reduce_axes,
        reductions=tuple(Reduction(r.kind, r.dtype, mapped(r.value)) for r in nest.reductions),
        stores=tuple(
            Store(s.buffer, s.index.subs(mapping), mapped(s.value), s.mode, tuple(mapped(a) for a in s.args))
            for s in nest.stores
        ),
    )


def substitute(node: Node, mapping: Mapping[Symbol, Expr]) -> Node:
    """A node with index symbols replaced."""
    return rebuild(node, _substitution(mapping))


def _substitution(mapping: Mapping[Symbol, Expr]) -> Callable[[Node, tuple[Node, ...]], Node]:
    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op is Op.LOAD:
            buffer, at = node.attr
            return Node(Op.LOAD, node.dtype, args, (buffer, at.subs(mapping)))
        if node.op is Op.INDEX:
            return Node(Op.INDEX, node.dtype, args, node.attr.subs(mapping))
        return node if args == node.args else Node(node.op, node.dtype, args, node.attr)

    return change


def _coefficients(e: Expr, axes: tuple[Axis, ...]) -> dict[Symbol, Expr | None]:
    """By what an expression grows along each axis it holds; None where it is not linear."""
    inside = e.symbols()
    return {a.symbol: e.coefficient(a.symbol) for a in axes if a.symbol in inside}


def _merge(axes: tuple[Axis, ...], rows: list[dict[Symbol, Expr | None]]) -> list[tuple[list[Axis], Expr]]:
    """Runs of axes that step as one, with the run's extent; an axis of size 1 joins any run."""
    groups: list[tuple[list[Axis], Expr]] = []
    for axis in axes:
        if axis.extent is ONE:
            groups.append(([axis], ONE))
            continue
        outer = next((g for g in reversed(groups) if g[1] is not ONE), None)
        if outer is not None and all(_steps_as_one(row, outer[0][-1], axis) for row in rows):
            at = next(k for k, g in enumerate(groups) if g is outer)
            groups[at] = ([*outer[0], axis], outer[1] * axis.extent)
        else:
            groups.append(([axis], axis.extent))
    return groups


def _steps_as_one(row: dict[Symbol, Expr | None], outer: Axis, inner: Axis) -> bool:
    a = row.get(outer.symbol, ZERO)
    b = row.get(inner.symbol, ZERO)
    return a is not None and b is not None and a is b * inner.extent


def _rename(
    groups: list[tuple[list[Axis], Expr]], prefix: str, mapping: dict[Symbol, Expr]
) -> tuple[Axis, ...]:
    axes: list[Axis] = []
    for members, extent in groups:
        if extent is ONE:
            mapping.update((a.symbol, ZERO) for a in members)
            continue
        symbol = axis_symbol(f"{prefix}{len(axes)}", extent)
        mapping.update((a.symbol, ZERO) for a in members[:-1])
        mapping[members[-1].symbol] = symbol
        axes.append(Axis(symbol, extent))
    return tuple(axes)
