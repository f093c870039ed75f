"""Products whose two halves of columns meet again in one loop (a gate and the value that it scales): as two products side by side.

A gated layer multiplies by both matrices at once and then combines column ``n`` with column ``n + N/2``. A program of
the template that has both as accumulators can do that on its tile, so that the wide result is never stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from braze.loops import build
from braze.loops.ir import (
    Axis,
    BufferView,
    LoopNest,
    LoopProgram,
    Op,
    Step,
    Store,
    StoreMode,
    TemplateCall,
)
from braze.loops.rewrite import Substitution, roots, walk, with_results
from braze.symbolic.expr import Expr, Integer, axis_symbol


def halved_products(program: LoopProgram) -> LoopProgram:
    """The program with such products of a GPU as templates of two right-hand matrices."""
    steps = tuple(_halved(step, program.steps) for step in program.steps)
    return program if steps == program.steps else dataclasses.replace(program, steps=steps)


def _halved(step: Step, steps: Sequence[Step]) -> Step:
    if (
        not isinstance(step, TemplateCall)
        or step.kind not in ("gemm", "grouped")
        or step.device == "cpu"
        or len(step.rights) != 1
        or step.batch is not None
        or len(step.epilogue) != 1
    ):
        return step
    (store,) = step.epilogue
    columns = step.axes[1].extent.value
    if columns is None or columns % 2 or not columns or store.mode is not StoreMode.PLAIN:
        return step
    half = columns // 2
    if not any(isinstance(s, LoopNest) and _meets(s, store.buffer, half) for s in steps):
        return step
    m, n = step.axes
    part = Axis(axis_symbol(n.symbol.name, Integer(half)), Integer(half))
    left, right, *ends = step.args
    return dataclasses.replace(
        step,
        args=(left, _columns(right, 0, half), _columns(right, half, half), *ends),
        axes=(m, part),
        epilogue=(_part(store, 0, n, part.symbol), _part(store, 1, n, part.symbol + half)),
    )


def _meets(nest: LoopNest, buffer: str, half: int) -> bool:
    """Whether a loop reads columns that lie half of all apart, and nothing else of the buffer."""
    found = {n.attr[1] for n in walk(*roots(nest)) if n.op is Op.LOAD and n.attr[0] == buffer and not n.args}
    if len(found) != 2:
        return False
    first, second = found
    return (second - first).value in (half, -half)


def _columns(view: BufferView, begin: int, count: int) -> BufferView:
    offset = view.offset + begin * view.strides[-1]
    return BufferView(view.buffer, (*view.sizes[:-1], Integer(count)), view.strides, offset, view.dtype)


def _part(store: Store, k: int, n: Axis, at: Expr) -> Store:
    return with_results(Substitution({n.symbol: at}).store(store), lambda node: build.reduced(k, node.dtype))
