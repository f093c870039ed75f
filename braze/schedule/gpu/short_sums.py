"""Sums of short rows of 16-bit numbers that begin anywhere: what a program of a GPU has of them, as was measured.

A row of 1,025 numbers is four vectors a thread of one warp: the program ends before much is on its way. Two rows a warp and four warps have eight vectors a thread in flight.
"""

from __future__ import annotations

from braze.loops.build import nodes_of
from braze.loops.ir import Op
from braze.loops.rewrite import roots
from braze.schedule.facts.records import Group
from braze.symbolic.expr import Expr

#: rows of a warp and warps of a program, of rows that one warp holds (2^26 numbers of bfloat16 on an H200: rows of 1,025 36 us, 45 where a program is one warp and one row;
#: shorter ones share a warp's lanes: of 257 16 rows a program 34.4, 43.1 as one block; of 129 32 rows 35.3 and 44.8; of 132 34.7 and 58.0; of 127 34.7 and 42.2; of 65 39.9 and 46.3)
SUM_ROWS, SUM_WARPS = 2, 4
#: lengths of rows of 16-bit numbers, which begin anywhere, that are held to their ends where they are only summed
SHORT_SUMS = range(65, 1024)


def sums_alone(group: Group, begin: Expr) -> bool:
    """Whether of rows that begin there nothing but their own numbers is read, and nothing is stored along them."""
    (axis,) = group.row_axes
    row = axis.symbol
    nodes = list(nodes_of(*(r for step in group.steps for r in roots(step))))
    read = [n.attr[1] for n in nodes if n.op is Op.LOAD and row in n.attr[1].symbols()]
    placed = any(n.op is Op.MASKED or (n.op is Op.INDEX and row in n.attr.symbols()) for n in nodes)
    stored = any(row in s.index.symbols() for step in group.steps for s in step.stores)
    return not placed and not stored and all(e - row == begin for e in read)
