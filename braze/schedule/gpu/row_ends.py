"""Where rows end that programs walk, and tiles of columns: how most of what a program loads has no mask.

Of loads that have one ptxas keeps few of a thread on their way, and loops of them are not unrolled. So the tile that a row fills in part stands apart from the others, the last part of
a row ends where the row does, rather than read on for nothing, and the last tile of columns begins as far back as it must to be full: what it
has in common with the one before is computed twice, to the same bits.
"""

from __future__ import annotations

from braze.loops.ir import Node, Op
from braze.loops.rewrite import Substitution
from braze.schedule.facts.passes import writes_what_it_reads
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.support.record import record
from braze.symbolic.expr import ZERO, Expr

#: whole tiles of a row that are worth a loop of their own
WHOLE = 2
#: tiles of columns of which one more costs nothing (sums of 832 times 400 rows of 100 numbers of bfloat16 on an H200 44 us with tiles that overlap, 22 with a mask; of 1,536 x 10,925 floats 21 and 24)
MANY = 64


@record
class RowEnd:
    """The end of a part of a row: an element counts whose ``begin + step * (its number)``, and up to ``spread`` more by its column, is less than ``length``, which is what ``condition`` says."""

    condition: Node
    begin: Expr
    step: int
    spread: int
    length: int


def last_apart(plan: KernelPlan) -> bool:
    """Whether the tile that a program's row fills in part is told apart from those that it fills."""
    row = plan.row
    if row is None or plan.whole or plan.walked is not None or plan.limit is not None:
        return False
    long = (row.extent.value or 0) >= WHOLE * row.block
    return long and plan.begin is None and not plan.held


def row_end(plan: KernelPlan) -> RowEnd | None:
    """Where the rows of a kernel end that are parts of longer ones; None where all are as long, or that is not one number for a program."""
    row = plan.row
    if row is None or not last_apart(plan) or len(row.axes) != 1:
        return None
    points = {a.symbol for tile in plan.points for a in tile.axes}
    condition = _condition(plan)
    if condition is None or (plan.form is Form.ROWS and any(tile.block > 1 for tile in plan.points)):
        return None
    at, length = condition.args
    if condition.op is not Op.LT or at.op is not Op.INDEX or length.op is not Op.CONST:
        return None
    symbol = row.axes[0].symbol
    step = at.attr.coefficient(symbol)
    if step is None or (step.value or 0) < 1:
        return None
    place = Substitution({symbol: ZERO}).expr(at.attr)
    own = {a.symbol for a in plan.outer}
    if plan.form is Form.ROWS:
        own, points = own | points, set()
    begin = Substitution(dict.fromkeys(points, ZERO)).expr(place)
    low, high = (place - begin).bounds()
    if not begin.symbols() <= own or low != 0 or high is None or high >= step.value:
        return None
    return RowEnd(condition, begin, step.value, high, length.attr)


def _condition(plan: KernelPlan) -> Node | None:
    """The condition that all that is reduced along a plan's row is subject to; None where there is none, or something is stored along the row."""
    steps = [step for each in plan.passes for step in each.along]
    values = [r.value for step in steps for r in step.reductions]
    if not values or not all(step.reductions for step in steps) or any(v.op is not Op.MASKED for v in values):
        return None
    found = {v.args[0] for v in values}
    return found.pop() if len(found) == 1 else None


def overlaps(group: Group, plan: KernelPlan) -> bool:
    """Whether the last of a kernel's tiles of columns begins so far back that it is full."""
    if plan.form is not Form.COLUMNS or len(plan.points) != 1 or plan.limit is not None:
        return False
    (columns,) = plan.points
    fits = (columns.extent.value or 0) > MANY * columns.block
    return fits and not columns.divides and not writes_what_it_reads(group)
