"""What vectors would look up at a quotient of their place is laid out once, side by side.

A norm's statistics of groups of channels are the same for a few channels beside each other: of pictures in channels-last each vector would
gather them lane by lane. Laid out for all channels they are as few as a bias is, and each vector reads its own as one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from math import prod

from braze.loops.build import nodes_of
from braze.loops.ir import Axis, Buffer, BufferKind, LoopNest, LoopProgram, Node, Op, Step, Store
from braze.loops.rewrite import nest_with_nodes, rewriter, roots
from braze.symbolic.expr import ONE, ZERO, Expr, FloorDiv, Mod, Symbol, contiguous_strides, linear

#: places that share a number, at most: longer runs are loops of their own
SHORT = 64
#: times that each number of a table is read, and numbers that all of them are, at least
OFTEN, MANY = 16, 2048


def laid_out_once(program: LoopProgram) -> LoopProgram:
    """The program with such tables as temporaries, each made where it is first read."""
    buffers = {b.name: b for b in program.buffers}
    steps: list[Step] = []
    made: list[Buffer] = []
    for step in program.steps:
        if isinstance(step, LoopNest) and step.device == "cpu":
            step = _with_tables(step, buffers, steps, made)
        steps.append(step)
    if not made:
        return program
    return dataclasses.replace(program, buffers=(*program.buffers, *made), steps=tuple(steps))


def _with_tables(
    step: LoopNest, buffers: dict[str, Buffer], steps: list[Step], made: list[Buffer]
) -> LoopNest:
    along = _along_memory(step)
    if along is None:
        return step
    written = {s.buffer for s in step.stores}
    found: dict[Node, Node] = {}
    for load in nodes_of(*roots(step), inside_masks=False):
        if load.op is not Op.LOAD or load.args or load.attr[0] in written:
            continue
        axes = _axes_of_table(load.attr[1], step, along)
        if axes is None:
            continue
        sizes = tuple(a.extent for a in axes)
        strides = contiguous_strides(sizes)
        base = buffers[load.attr[0]]
        table = Buffer(
            f"{base.name}_by_{step.name}_{len(found)}",
            load.dtype,
            sizes,
            strides,
            step.device,
            BufferKind.TEMPORARY,
        )
        place = linear([a.symbol for a in axes], strides, ZERO)
        name = f"{step.name}_table{len(found)}"
        steps.append(
            LoopNest(
                name, axes, (), (), (Store(table.name, place, load),), step.device, step.ops, step.origin
            )
        )
        made.append(table)
        found[load] = Node(Op.LOAD, load.dtype, (), (table.name, place))
    return nest_with_nodes(step, rewriter(lambda n: found.get(n, n))) if found else step


def _along_memory(step: LoopNest) -> Symbol | None:
    """The axis along which a nest's results lie side by side."""
    found = {a.symbol for a in step.axes for s in step.stores if s.index.coefficient(a.symbol) is ONE}
    return found.pop() if len(found) == 1 else None


def _axes_of_table(index: Expr, step: LoopNest, along: Symbol) -> tuple[Axis, ...] | None:
    """The axes that such a place depends on, where they are of few points for all those of the loops."""
    if not any(along in e.symbols() for e in _divided(index)):
        return None
    whole = (*step.axes, *step.reduce_axes)
    axes = tuple(a for a in whole if a.symbol in index.symbols())
    if index.symbols() - {a.symbol for a in axes}:
        return None
    places, points = (prod(a.extent.value or 0 for a in each) for each in (axes, whole))
    return axes if 0 < places * OFTEN <= points and points >= MANY else None


def _divided(e: Expr) -> Iterable[Expr]:
    """Quotients and remainders by few."""
    if isinstance(e, (FloorDiv, Mod)) and e.divisor.value is not None and e.divisor.value < SHORT:
        yield e
    for child in e.children():
        yield from _divided(child)
