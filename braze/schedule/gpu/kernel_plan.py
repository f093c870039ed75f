"""The plan of a kernel of a GPU: what ``kernels.py`` decides and a generator prints."""

from __future__ import annotations

from braze.loops.ir import Node
from braze.schedule.facts.passes import Pass
from braze.schedule.facts.plans import TaskPlan
from braze.support.record import record
from braze.symbolic.expr import Expr, product


@record
class KernelPlan(TaskPlan):
    """One kernel of a GPU.

    Of ``points`` the last lies along the threads (``row`` does in the forms ROWS and MIXED); ``whole``: one tile holds the row.
    ``walked``: a program walks so many points, tile after tile. ``limit``: a program walks no further along its row than this number,
    which it reads. ``passes``: its walks over the row. ``wide``: whether an element's
    place may need 64 bits. ``coarse``: all that leaves the kernel is rounded to half or bfloat16, for which the GPU's own powers
    and quotients along the row, good to 17 bits and more, are exact enough. ``unrolled``: how many
    tiles of a walk that reduces one turn of its loop takes; ``held``: tiles of a row that stay in registers from one walk to the next, of which a thread has
    ``registers`` at most (0: as many as there are); ``streamed``: caches are not to keep what is stored along the row.
    ``together``: its rows lie one behind the other and are read as one block of memory. ``begin``: where a row does, if that is anywhere; walks then go along places that ``vector`` divides, and their two ends are told apart.
    """

    whole: bool
    passes: tuple[Pass, ...]
    warps: int
    stages: int
    wide: bool
    coarse: bool
    walked: Expr | None = None
    limit: Node | None = None
    unrolled: int = 1
    held: int = 0
    registers: int = 0
    streamed: bool = False
    begin: Expr | None = None
    vector: int = 1
    together: bool = False

    @property
    def to_its_end(self) -> bool:
        """Whether a row that begins anywhere stays in registers to its end: its whole tiles, one that it fills in part, and what lies around its vectors."""
        length = None if self.begin is None or self.row is None else self.row.extent.value
        return bool(
            self.held and length and self.row and length - self.vector < (self.held + 1) * self.row.block
        )

    @property
    def lanes_around(self) -> int:
        """Elements of each tile that a thread has, of a row that stays in registers to its end, where it also has one number of what lies around the vectors:
        that is taken in with its own, and nothing more passes between threads. 0 where it is not so."""
        if self.row is None or not self.to_its_end or any(tile.block > 1 for tile in self.points):
            return 0
        threads = 32 * self.warps
        lanes = self.row.block // threads
        return lanes if 2 * self.vector <= threads and 0 < lanes <= self.vector else 0

    @property
    def programs(self) -> Expr:
        """How many programs run."""
        if self.walked is not None:
            return product([a.extent for a in self.outer])
        return self.tasks
