"""Short rows that vectors do not divide, which a GPU's program reads as one block of memory: rows of 33 numbers lie one behind the other, and where one ends the next begins.

Read row by row, each lane has one number at once, and a warp of 32 is two loads for 33 of them; sums then pass between lanes, five times a row. Read as a block, whole vectors
come in; each thread then takes a row, or a part of one, out of shared memory, whose numbers it adds by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.loops.build import nodes_of
from braze.loops.ir import Op
from braze.loops.rewrite import roots
from braze.schedule.facts.passes import Access, flat
from braze.schedule.facts.records import Group
from braze.symbolic.divides import multiple
from braze.symbolic.expr import product
from braze.symbolic.guess import likely_size

#: lengths of rows that are read so, and bytes of their elements (sums of 2^26 numbers of bfloat16 on an H200: rows of 33 42 us, 174 one by one; of 129 48 and 106; of 257
#: 47 and 71, but of 513 58 and 48)
SHORT, SIZES = range(3, 260), (2, 4)
#: bytes of a row that loads divide well enough (of 100 numbers, 8 bytes at once, 41 us and 38), and of one load
DIVIDED, VECTOR = 8, 16
#: elements of a program's rows with those past their ends, and its warps: of one alone threads would hand on numbers by shuffles, some thousand of them
PLACES, WARPS = 8192, 4
#: rows of a program: at least, half a warp's, or all of its where nothing is stored along them, as each thread then has a part of one; and at most
LEAST_ROWS, LANES, MOST_ROWS = 16, 32, 512
#: programs that are too few
FEW_PROGRAMS = 128


def rows_together(group: Group, found: Sequence[Access], width: int) -> int | None:
    """How many rows, of ``width`` places each, a program reads as one block; None where they do not lie so, or are no shorter to read."""
    long = product([a.extent for a in group.row_axes]).value
    row, points = flat(group.row_axes).symbols(), flat(group.axes).symbols()
    if long not in SHORT or long is None or not group.axes or _keeps_to_itself(group):
        return None
    along = [a for a in found if a.index.symbols() & row]
    own = [a for a in along if a.index.symbols() & points or a.indirect or a.store]
    stored = any(a.store for a in along)
    rows = max(LEAST_ROWS if stored else LANES, min(MOST_ROWS, PLACES // width))
    number = flat(group.axes) * long + flat(group.row_axes)
    reads = sum(not a.store for a in own)
    if (
        not reads
        or (stored and reads > 1)
        or likely_size(product([a.extent for a in group.axes])) < rows * FEW_PROGRAMS
    ):
        return None
    for a in own:
        rest = a.index - number
        if a.indirect or a.itemsize not in SIZES or rest.symbols() & (row | points):
            return None
        if long * a.itemsize % DIVIDED == 0 or not multiple(rest, VECTOR // a.itemsize):
            return None
    return rows


def _keeps_to_itself(group: Group) -> bool:
    """Whether something of a group is read only where a condition holds, or drawn for each place."""
    nodes = nodes_of(*(r for step in group.steps for r in roots(step)))
    return any(n.op in (Op.MASKED, Op.RANDOM) for n in nodes)
