"""Sizes that all tiles of a GPU's kernels share: elements of a thread and of a walk, warps, and how many programs are few."""

from __future__ import annotations

from braze.loops.build import nodes_of
from braze.loops.ir import Axis, Op, ReduceKind
from braze.loops.rewrite import roots
from braze.schedule.facts.passes import kinds_of
from braze.schedule.facts.records import Group
from braze.symbolic.expr import ONE, product

#: elements that one thread has at once: 16 bytes of the narrowest floats
EACH = 8
#: elements of a row that one thread has at once: two loads of 16 bytes are under way while others are reduced
EACH_ROW = 16
#: elements of a tile that walks a row
WALK = 2048
#: tiles of a walk that are on their way at once, and bytes of them that a program may hold
STAGES, ON_THE_WAY = 3, 64 << 10
#: programs that are too few for a GPU, and of one warp or two that are enough
FEW_PROGRAMS, ENOUGH_PROGRAMS = 128, 512
#: reductions of which a thread keeps one number an element; of others it keeps two or three
PLAIN = frozenset(
    {ReduceKind.SUM, ReduceKind.PROD, ReduceKind.MAX, ReduceKind.MIN, ReduceKind.ANY, ReduceKind.ALL}
)
#: warps of a program, unless it is to be alone
MOST_WARPS = 16


def draws(group: Group) -> bool:
    """Whether a group makes random numbers."""
    return any(n.op is Op.RANDOM for step in group.steps for n in nodes_of(*roots(step)))


def walk_of(group: Group) -> int:
    """Elements of a tile that walks rows: more where little is kept of each."""
    return 2 * WALK if kinds_of(group.steps) <= PLAIN else WALK


def warps_of(elements: int, each: int) -> int:
    """Warps of 32 threads with so many elements each."""
    return max(1, min(MOST_WARPS, elements // (32 * each)))


def power(n: int) -> int:
    """The least power of two not below n."""
    return 1 << max(0, n - 1).bit_length()


def static_size(axes: tuple[Axis, ...]) -> int | None:
    """The points of some axes, where that is one number."""
    return product([a.extent for a in axes]).value if axes else ONE.value
