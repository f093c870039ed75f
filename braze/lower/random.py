"""Random numbers computed where they are used: a function of a seed and the element's place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.loops.ir import DType, Node, Op
from braze.lower.lazy import Index, Lazy, flatten
from braze.lower.realize import ProgramBuilder
from braze.lower.registry import lowering
from braze.runtime.philox import UNIFORM

#: what one number costs, in additions
COST = 60


@lowering(UNIFORM)
def uniform(g: ProgramBuilder, seed: Lazy, size: Sequence[Any]) -> Any:
    """A number in [0, 1) for each element."""
    sizes = g.symbols.exprs(size)
    g.realize(seed)

    def inner(index: Index) -> Node:
        place = g.index_node(flatten(index, sizes))
        return Node(Op.RANDOM, DType.F32, (seed.load([]), place), "uniform")

    return Lazy(sizes, DType.F32, seed.device, inner, cost=COST, ops=(g.op_name,))
