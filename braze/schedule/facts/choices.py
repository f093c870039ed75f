"""Every heuristic of the scheduler, as methods of one class that can be replaced.

Nothing here is needed for right results: legality is decided elsewhere. ``schedule(program, ctx,
choices=Choices())`` takes a subclass.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.loops.ir import Buffer, BufferView, Node
from braze.loops.rewrite import walk
from braze.loops.scalars import COSTLY
from braze.options import Options
from braze.schedule.facts.records import GroupKind
from braze.support.device_costs import H200, DeviceCosts
from braze.symbolic.expr import Expr
from braze.symbolic.guess import likely_size


class Choices:
    """The default heuristics."""

    #: order positions that a fusion may bridge; keeps the search near-linear and values short-lived
    reach = 400
    #: positions that unrelated siblings may be apart
    sibling_reach = 24
    #: rounds of all phases before we stop looking for more
    rounds = 4
    #: whether small kernels of a GPU of known sizes share launches, each with its own points
    combos = True
    #: loop nests of a kernel of a GPU, of sizes that may change, whose values have nothing in common
    strangers = 32
    #: bytes of a reduced row that may be held at once
    persistent_bytes = 32 << 10
    #: bytes of results that depend on constants only and may be kept between calls
    fixed_bytes = 64 << 20
    #: bytes that a GPU moves while one more kernel is launched, and while a call looks whether constants have changed
    launch_bytes, look_bytes = 8 << 20, 32 << 20
    #: the same of a recording: its kernels launch themselves, and the host that waits for the look runs ahead no more
    replayed_bytes, waited_bytes = 2 << 20, 96 << 20
    #: elements of a product's left matrix that each of its programs may compute anew
    points_again = 16 << 10
    #: columns of a batch's products, some hundred of which are one program's
    columns_anew = 1024
    #: bytes that siblings must share to be worth one kernel, as a part of what the smaller one reads
    sibling_share = 0.5

    def __init__(self, options: Options, costs: DeviceCosts = H200) -> None:
        self.options, self.costs = options, costs
        if costs.speed != 1:  # the numbers above are those of an H200
            self.launch_bytes, self.look_bytes = self._of(self.launch_bytes), self._of(self.look_bytes)
            self.replayed_bytes, self.waited_bytes = (
                self._of(self.replayed_bytes),
                self._of(self.waited_bytes),
            )

    def _of(self, moved: int) -> int:
        """What this GPU moves in the time in which an H200 moves so many bytes."""
        return int(moved * self.costs.speed)

    def bytes_of(self, buffer: Buffer | BufferView) -> int:
        """Likely bytes of a buffer's elements, or of those that a view sees (a broadcast one counts once per stored element)."""
        total = buffer.dtype.itemsize
        for size, stride in zip(buffer.sizes, buffer.strides, strict=True):
            if stride.value != 0:
                total *= max(likely_size(size), 1)
        return total

    def fits(self, steps: int) -> bool:
        """Whether a kernel of so many loop nests is acceptable."""
        return steps <= self.options.max_fusion_steps

    def worth_a_look(self, steps: int, made: int) -> bool:
        """Whether so many steps that make so many bytes of constants cost a GPU more than the look that keeping these takes."""
        if self.options.cudagraphs:
            return steps * self.replayed_bytes + 2 * made >= self.waited_bytes
        return steps * self.launch_bytes + 2 * made >= self.look_bytes

    def worthwhile_siblings(self, shared: int, smaller: int) -> bool:
        """Whether two kernels that only read the same data should be one."""
        return shared > 0 and shared >= self.sibling_share * smaller

    def keeps_contiguity(self, stride_before: int, stride_after: int) -> bool:
        """Whether a store whose innermost stride changes so may join (no transposed writes by default)."""
        return abs(stride_after) <= max(1, abs(stride_before))

    def reduction_kind(self, row_extents: Sequence[Expr], itemsize: int) -> GroupKind:
        """Hold the row at once, or walk it in blocks."""
        row = itemsize
        for e in row_extents:
            if e.value is None:
                return GroupKind.LOOPED
            row *= e.value
        return GroupKind.PERSISTENT if row <= self.persistent_bytes else GroupKind.LOOPED

    def worth_again(self, rows: Expr, inner: Expr) -> bool:
        """Whether each program of a product may compute all rows of its left matrix anew."""
        most = likely_size(rows)
        tile = most if most <= 2 else max(most, 16)  # tensor cores take 16 rows
        return 0 < tile * likely_size(inner) <= self.points_again

    def worth_anew(self, columns: Expr) -> bool:
        """Whether each program of a batch of products may compute its rows anew: so few blocks of columns there are."""
        return likely_size(columns) <= self.columns_anew

    def recompute(self, value: Node) -> bool:
        """Whether a value used in several passes over a row is cheaper computed again than kept."""
        return not any(n.op in COSTLY for n in walk(value))
