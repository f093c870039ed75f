"""Other cuts of one GPU kernel that are worth a measurement: larger and smaller tiles, more and fewer warps, rows held whole or walked.

A cut is a line of text, by which a choice is kept. All cuts of a kernel compute the same numbers of the same elements; only the
order in which a row is summed differs, and each cut has one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from braze.loops.ir import Buffer, ReduceKind
from braze.schedule.facts.passes import accesses_of, kinds_of, writes_what_it_reads
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.schedule.gpu.kernels import (
    AT_ONCE,
    MAX_PERSISTENT,
    UNROLLED,
    few_at_once,
    limit_of,
    plan_kernel,
    walks_again,
    whole_tiles,
)
from braze.schedule.gpu.tile_sizes import power
from braze.support.record import record
from braze.symbolic.guess import likely_size

#: threads of a warp, and warps that a program may have
WARP, MOST_WARPS = 32, 32
#: cuts of a kernel that are measured beside the rule's
MOST_OTHERS = 8
#: elements of a tile of points at most, and of a row that is held whole or walked in one tile
LARGEST, LONGEST = 8192, 32768
#: tiles of a walk that are on their way at once, and that are held in registers, at most
MOST_STAGES, MOST_HELD = 6, 16
#: bytes of a row whose programs leave room in the cache for few of them
LONG_ROW = 48 << 10

_TEXT = re.compile(r"(whole|held|walk|alone|points) (\d+(?:x\d+)*) w(\d+) p(\d+)")


@record
class Tiling:
    """How a kernel of a given form is cut: whether it holds rows "whole" or a part of them ("held"), "walk"s them, does so "alone" or nearly on its multiprocessor, or has "points" and no rows; how many
    elements each dimension of its tile has (points as the plan has them, then the row), warps, and tiles of a walk that are on their way at once."""

    rows: str
    blocks: tuple[int, ...]
    warps: int
    stages: int

    def text(self) -> str:
        """A name, by which a choice is kept."""
        return f"{self.rows} {'x'.join(map(str, self.blocks))} w{self.warps} p{self.stages}"


def parsed_tiling(text: str) -> Tiling:
    """The tiling of a name.

    >>> t = Tiling("walk", (1, 4096), 8, 2)
    >>> parsed_tiling(t.text()) == t
    True
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"not a tiling: {text!r}")
    return Tiling(found[1], tuple(map(int, found[2].split("x"))), int(found[3]), int(found[4]))


def tiling_of(plan: KernelPlan) -> Tiling:
    """How a plan is cut."""
    tiles = (*plan.points, plan.row) if plan.row is not None else plan.points
    walk = "held" if plan.held else "alone" if plan.streamed else "walk"
    rows = "points" if plan.row is None else "whole" if plan.whole else walk
    return Tiling(rows, tuple(tile.block for tile in tiles), plan.warps, plan.stages)


def planned_as(group: Group, buffers: dict[str, Buffer], tiling: Tiling | None) -> KernelPlan:
    """The plan of a group, cut so; as the rule says where it is None, or does not fit the group."""
    rule = plan = plan_kernel(group, buffers)
    if tiling is None or tiling == tiling_of(rule):
        return rule
    if rule.held:
        plan = plan_kernel(group, buffers, hold=False)
    if (tiling.rows == "whole") is not plan.whole and plan.row is not None:
        plan = _in_other_form(group, buffers) or rule
    if tiling.rows == "alone" and not plan.streamed and _walks_softmax_again(plan):
        plan = few_at_once(plan, 1, AT_ONCE)
    own = tiling_of(plan)
    if tiling == own:
        return plan
    if tiling.rows == "held" and rule.held:
        return _held_as(rule, tiling) or rule
    if (own.rows, len(own.blocks)) != (tiling.rows, len(tiling.blocks)) or not _fits(tiling, plan):
        return rule
    count = len(plan.points)
    points = tuple(
        dataclasses.replace(tile, block=block)
        for tile, block in zip(plan.points, tiling.blocks[:count], strict=True)
    )
    row = plan.row and dataclasses.replace(plan.row, block=tiling.blocks[count])
    return dataclasses.replace(plan, points=points, row=row, warps=tiling.warps, stages=tiling.stages)


def _held_as(plan: KernelPlan, tiling: Tiling) -> KernelPlan | None:
    """A plan that keeps as much of its rows in registers, in tiles of another size or by more or fewer threads; None where it would keep less."""
    points = tuple(tile.block for tile in plan.points)
    if plan.form is not Form.ROWS or plan.row is None or tiling.blocks[:-1] != points:
        return None
    block, length = tiling.blocks[-1], plan.row.extent.value
    if length is None or block < max(plan.vector, WARP) or not 1 <= tiling.warps <= MOST_WARPS:
        return None
    held = whole_tiles(plan, length, block) if plan.to_its_end else plan.held * plan.row.block // block
    if not 0 < held <= MOST_HELD or WARP * tiling.warps > block:
        return None
    row = dataclasses.replace(plan.row, block=block)
    made = dataclasses.replace(plan, row=row, held=held, warps=tiling.warps, stages=tiling.stages)
    return made if made.to_its_end is plan.to_its_end else None


def _in_other_form(group: Group, buffers: dict[str, Buffer]) -> KernelPlan | None:
    """The plan of a group that walks its rows where the rule holds them whole, or holds them where it walks; None where it cannot."""
    other = {GroupKind.PERSISTENT: GroupKind.LOOPED, GroupKind.LOOPED: GroupKind.PERSISTENT}
    kind = other.get(group.kind)
    if kind is None:
        return None
    plan = plan_kernel(dataclasses.replace(group, kind=kind), buffers, LONGEST, hold=False)
    if plan.whole is not (kind is GroupKind.PERSISTENT) or plan.row is None:
        return None
    # a walk of one tile holds its row whole
    return plan if plan.whole or likely_size(plan.row.extent) > plan.row.block else None


def tilings(group: Group, buffers: dict[str, Buffer]) -> tuple[Tiling, ...]:
    """The cuts worth a measurement, the rule's first and ``MOST_OTHERS`` at most.

    The rule's alone where times would depend on what memory holds, or a kernel writes over what it reads: it could not be run
    again, and would read in its second walk what it has written in the first.
    """
    plan = plan_kernel(group, buffers)
    rule = tiling_of(plan)
    by_memory = limit_of(group) is not None or any(a.indirect for a in accesses_of(group, buffers))
    # rows that begin anywhere lie in parts by where they begin: in another cut each part's sums are others'
    parted = plan.form is Form.MIXED and plan.begin is not None
    if by_memory or parted or writes_what_it_reads(group):
        return (rule,)
    found = [rule]
    if plan.held:
        plan = plan_kernel(group, buffers, hold=False)
        found.append(tiling_of(plan))
    found += [t for t in _others(plan) if _fits(t, plan)]
    if plan.row is not None:
        other = _in_other_form(group, buffers)
        found += [] if other is None else _of_other_form(tiling_of(other))
        found += _of_long_rows(plan, group, buffers)
    return tuple(dict.fromkeys(found))[: 1 + MOST_OTHERS]


def neighbours(group: Group, buffers: dict[str, Buffer], t: Tiling) -> tuple[Tiling, ...]:
    """The cuts that differ from one in one number alone: a side of its tile, its warps, or what of its walk is on its way at once."""
    plan = planned_as(group, buffers, t)
    if tiling_of(plan) != t:
        return ()
    found = [dataclasses.replace(t, warps=warps) for warps in (2 * t.warps, t.warps // 2)]
    # the last side of a tile that holds its row whole is the row
    sides = len(plan.points) if plan.whole or plan.row is None else len(t.blocks)
    for k in range(sides):
        found += [dataclasses.replace(t, blocks=_scaled(t.blocks, k, by)) for by in (2, 0.5)]
    if plan.form is Form.MIXED or (plan.row is not None and not plan.whole):
        found += [dataclasses.replace(t, stages=stages) for stages in (t.stages + 1, t.stages - 1)]
    return tuple(n for n in found if _is_cut(n, plan) and tiling_of(planned_as(group, buffers, n)) == n)


def _is_cut(t: Tiling, plan: KernelPlan) -> bool:
    """Whether a cut beside a plan's may be built at all."""
    return 1 <= t.stages <= MOST_STAGES and (plan.held > 0 or _fits(t, plan))


def _of_other_form(t: Tiling) -> list[Tiling]:
    """The cuts of a kernel in its other form: of long rows held whole by as many threads as there can be, too."""
    long = t.rows == "whole" and t.blocks[-1] > MAX_PERSISTENT
    return [t, dataclasses.replace(t, warps=MOST_WARPS)] if long else [t]


def _of_long_rows(plan: KernelPlan, group: Group, buffers: dict[str, Buffer]) -> Iterator[Tiling]:
    """Cuts whose programs are few at once, so that a second walk finds its row in the cache."""
    widest = max((a.itemsize for a in accesses_of(group, buffers)), default=1)
    if plan.row is None or plan.streamed or not _walks_softmax_again(plan):
        return
    for held in (AT_ONCE // 2, AT_ONCE):
        if max(held, LONG_ROW) <= likely_size(plan.row.extent) * widest:
            yield tiling_of(few_at_once(plan, widest, held))


def _walks_softmax_again(plan: KernelPlan) -> bool:
    """Whether programs walk rows for a maximum and a sum of powers, and again to store what follows."""
    kinds = {kind for each in plan.passes for kind in kinds_of(each.along)}
    return plan.unrolled == UNROLLED and kinds == {ReduceKind.ONLINE_SOFTMAX} and walks_again(plan.passes)


def _others(plan: KernelPlan) -> Iterator[Tiling]:
    """Four neighbours of a plan's cut: tiles twice and half as large, and as many elements for each thread half or twice."""
    t = tiling_of(plan)
    yield dataclasses.replace(t, warps=2 * t.warps)
    yield dataclasses.replace(t, warps=t.warps // 2)
    if plan.form is Form.COLUMNS and not plan.whole:
        x, r = t.blocks
        yield dataclasses.replace(t, blocks=(x // 2, 2 * r))
        yield dataclasses.replace(t, blocks=(2 * x, r // 2))
        return
    at = _stretched(plan)
    for blocks, warps in (
        (_scaled(t.blocks, at, 2), 2 * t.warps),
        (_scaled(t.blocks, at, 0.5), t.warps // 2),
    ):
        # what a program keeps down its columns is the same for few rows as for many: its warps stay
        yield dataclasses.replace(t, blocks=blocks, warps=t.warps if plan.form is Form.MIXED else warps)


def _stretched(plan: KernelPlan) -> int:
    """The dimension of a plan's tile that others have more or less of: the row where it is walked, else the first of the points."""
    return len(plan.points) if plan.row is not None and not plan.whole else 0


def _scaled(blocks: tuple[int, ...], at: int, by: float) -> tuple[int, ...]:
    return tuple(int(b * by) if k == at else b for k, b in enumerate(blocks))


def _fits(t: Tiling, plan: KernelPlan) -> bool:
    """Whether a tile is one, no larger than what it covers, and has something for each thread."""
    # rows that begin anywhere are walked one by one
    if plan.begin is not None and t.blocks[:-1] != tuple(tile.block for tile in plan.points):
        return False
    # programs take turns at tiles of rows: of some that do not divide a part of them a few programs have one more than others
    if plan.walked is not None and (plan.walked.value is None or plan.walked.value % max(t.blocks[0], 1)):
        return False
    size = 1
    tiles = (*plan.points, plan.row) if plan.row is not None else plan.points
    for tile, block in zip(tiles, t.blocks, strict=True):
        if block < 1 or block > max(tile.block, power(likely_size(tile.extent))):
            return False
        size *= block
    if plan.row is not None and not plan.whole and plan.form is Form.ROWS:
        if t.blocks[-1] < max(plan.vector, WARP) or t.blocks[-1] > LONGEST:
            return False
    else:
        most = LARGEST if t.rows != "whole" else LONGEST if t.blocks[0] == 1 else MAX_PERSISTENT
        if size > most:
            return False
    return 1 <= t.warps <= MOST_WARPS and WARP * t.warps <= max(size, WARP)
