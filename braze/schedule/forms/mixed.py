"""Rows and columns of the same numbers, reduced from one read of them: the backward of a norm.

One kernel takes sums along each row and writes what follows from them; another sums the same tensors down their columns, for the
weight's gradient. Both read everything. Here programs take turns at tiles of rows: each tile is reduced along its rows as before, and
what is summed down its columns is kept from tile to tile. A small second kernel adds what the programs leave, in their order, so
that results are the same each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from braze.loops.ir import Axis, Buffer, BufferKind, BufferView, LoopNest, LoopProgram, Node, Op
from braze.loops.rewrite import Substitution, nest_with_nodes, rewriter, roots, walk
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.dependences import families
from braze.schedule.facts.passes import (
    accesses_of,
    covering,
    kinds_of,
    over_row,
    passes_of,
    writes_what_it_reads,
)
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group, GroupKind, Walked
from braze.schedule.forms.split import Splitter, inside
from braze.schedule.fusion.canonical import borders
from braze.schedule.gpu.cuts import Cut
from braze.schedule.gpu.kernels import (
    are_long_rows,
    plan_kernel,
    tile_down,
    tiles_down,
    vectors_down,
)
from braze.schedule.gpu.tile_sizes import PLAIN
from braze.symbolic.expr import Expr, Integer, floor_div
from braze.symbolic.guess import likely_size

#: programs that each multiprocessor has, and rows of one program, at least
PROGRAMS, ROWS = 2, 8
#: warps that each multiprocessor has: as many as their registers leave room for, half as many where rows begin between vectors, or are long and many are on their way (of several tiles, ``held.DOWN_CUTS`` says)
WARPS = 16


def mix_groups(
    groups: Sequence[Group], program: LoopProgram, choices: Choices, cores: int
) -> tuple[list[Group], list[Buffer]]:
    """Groups of a GPU with pairs that reduce the same numbers both ways as one kernel; and the buffers that this takes.

    The kernels that add what programs leave are marked ``whole``: they are not to be cut again.
    """
    out, made = list(groups), list[Buffer]()
    if program.made:
        return out, made
    buffers, family = {b.name: b for b in program.buffers}, families(program)
    kept = {b.name for b in program.buffers if b.kind is not BufferKind.TEMPORARY}
    kept |= {o.buffer for o in program.outputs if isinstance(o, BufferView)}
    found = True
    while found:
        found = False
        downwards = _by_matrix(out)
        for rows in out:
            alike = downwards.get(_matrix(rows.device, rows.axes, rows.row_axes), ())
            columns = next((g for g in alike if _match(rows, g, buffers, family, choices, cores)), None)
            place = None if columns is None else _place(out, rows, columns, family)
            if columns is None or place is None:
                continue
            others = {n for g in out if g not in (rows, columns) for n in g.reads} | kept
            both, new = _mixed(rows, columns, buffers, choices, cores, others)
            out = [x for g in out for x in (both if g is place else () if g in (rows, columns) else (g,))]
            made += new
            buffers |= {b.name: b for b in new}
            family |= {b.name: b.name for b in new}
            found = True
            break
    return out, made


Matrix = tuple[str, tuple[Expr, ...], tuple[Expr, ...]]


def _matrix(device: str, rows: Sequence[Axis], columns: Sequence[Axis]) -> Matrix:
    """The device and the extents of what a group runs over, as the key of those that run over the same."""
    return device, tuple(a.extent for a in rows), tuple(a.extent for a in columns)


def _by_matrix(groups: Sequence[Group]) -> dict[Matrix, list[Group]]:
    """The groups that run down one axis of rows, by their matrix, in their order."""
    found: dict[Matrix, list[Group]] = {}
    for g in groups:
        if len(g.row_axes) == 1:
            found.setdefault(_matrix(g.device, g.row_axes, g.axes), []).append(g)
    return found


def _match(
    rows: Group,
    columns: Group,
    buffers: Mapping[str, Buffer],
    family: Mapping[str, str],
    choices: Choices,
    cores: int,
) -> bool:
    """Whether two groups over one matrix, the first along its rows, the second down its columns, read mostly the same."""
    if (
        rows.device == "cpu"
        or rows is columns
        or rows.kind is not GroupKind.PERSISTENT
        or len(rows.axes) != 1
    ):
        return False
    if likely_size(rows.axes[0].extent) < PROGRAMS * ROWS * cores or not _sums_down(columns):
        return False
    if writes_what_it_reads(rows) or writes_what_it_reads(columns) or _meet_elsewhere(rows, columns, family):
        return False
    plans = plan_kernel(rows, dict(buffers)), plan_kernel(columns, dict(buffers))
    if plans[0].form is not Form.ROWS or not plans[0].whole or plans[1].form is not Form.COLUMNS:
        return False
    read = {name: choices.bytes_of(buffers[name]) for name in columns.reads}
    return 2 * sum(read[name] for name in _read_alike(rows, columns)) > sum(read.values())


def _sums_down(group: Group) -> bool:
    """Whether a group is one walk of plain reductions, and what follows of them at the points."""
    along = any(not s.reductions and over_row(s, group.row_axes) for s in group.steps)
    plain = kinds_of(group.steps) <= PLAIN
    return plain and not along and len(passes_of(group.steps, group.row_axes)) == 1


def _meet(a: Group, b: Group, family: Mapping[str, str]) -> bool:
    """Whether one of two groups writes what the other touches."""
    sides = [({family[n] for n in g.writes}, {family[n] for n in (*g.reads, *g.writes)}) for g in (a, b)]
    return bool(sides[0][0] & sides[1][1] or sides[1][0] & sides[0][1])


def _meet_elsewhere(rows: Group, columns: Group, family: Mapping[str, str]) -> bool:
    """Whether the columns' kernel touches what the rows' writes, other than by reading it at the very point."""
    shared = set(rows.writes) & set(columns.reads)
    apart = dataclasses.replace(rows, writes=tuple(n for n in rows.writes if n not in shared))
    touched = {*rows.reads, *rows.writes, *columns.reads, *columns.writes}
    again = any(family[n] == family[m] for n in shared for m in touched if m != n)
    if again or _meet(apart, columns, family):
        return True
    turned = _turned(rows, columns)
    stored = {(s.buffer, s.index) for step in rows.steps for s in step.stores if not s.args}
    for step in columns.steps:
        for node in map(turned.node, walk(*roots(step))):
            if node.op is Op.LOAD and node.attr[0] in shared and (node.args or node.attr not in stored):
                return True
    return False


def _read_alike(rows: Group, columns: Group) -> set[str]:
    """The buffers of which both read the same element at the same point, and those that the columns' kernel reads as the rows' writes them."""
    turned = _turned(rows, columns)
    here = set().union(*(_direct(walk(*roots(s))) for s in rows.steps))
    there = set().union(*(_direct(map(turned.node, walk(*roots(s)))) for s in columns.steps))
    return {node.attr[0] for node in here & there} | (set(rows.writes) & set(columns.reads))


def _direct(nodes: object) -> set[Node]:
    return {n for n in nodes if n.op is Op.LOAD and not n.args}  # type: ignore[attr-defined]


def _turned(rows: Group, columns: Group) -> Substitution:
    """The symbols of the columns' group as those of the rows'."""
    ours, theirs = (*rows.row_axes, *rows.axes), (*columns.axes, *columns.row_axes)
    return Substitution({b.symbol: a.symbol for a, b in zip(ours, theirs, strict=True)})


def _place(groups: Sequence[Group], rows: Group, columns: Group, family: Mapping[str, str]) -> Group | None:
    """Which of the two may come to where the other is; None where a group between them stands in the way."""
    first, second = sorted((rows, columns), key=groups.index)
    between = groups[groups.index(first) + 1 : groups.index(second)]
    if not any(_meet(first, g, family) for g in between):
        return second
    return first if not any(_meet(second, g, family) for g in between) else None


def _mixed(
    rows: Group,
    columns: Group,
    buffers: Mapping[str, Buffer],
    choices: Choices,
    cores: int,
    others: Collection[str],
) -> tuple[list[Group], list[Buffer]]:
    """The kernel of both, and the one that adds what its programs leave; with the buffers between them.

    ``others``: what others read, or see later.
    """
    x, width, warps = tile_down(rows, (buffers[n].dtype.itemsize for n in (*rows.reads, *columns.reads)))
    found = list(accesses_of(rows, dict(buffers)))
    tiles = {a.buffer: a.itemsize for a in covering(rows, found) if not a.store}
    vectors = vectors_down(rows, found, columns.steps)
    filled = tiles_down(rows, tiles.values()) if vectors is None else None
    if vectors is not None:
        x, programs = 1, max(1, WARPS // 2 // vectors.warps)
    elif filled is not None:
        x, programs = 1, filled.programs
    elif are_long_rows(x, width, tiles.values()):
        programs = max(1, min(WARPS // 4, WARPS // 2 // warps))
    else:
        programs = max(PROGRAMS, min(WARPS // 2, WARPS // warps))
    cut = _cut(columns.row_axes[0], x, programs * cores, 1 if vectors is None else vectors.vector)
    splitter = Splitter(columns, buffers, choices, cut)
    (part, *rest), made = splitter.run()
    turned = _turned(rows, columns)
    points = (splitter.part, *rows.row_axes)
    said = rewriter(_said_alike)
    steps = tuple(nest_with_nodes(turned.nest(step, points, step.reduce_axes), said) for step in part.steps)
    needed = {n for n in rows.writes if n in others or n not in columns.reads} | {*part.writes}
    internal, reads, writes = borders((*rows.steps, *steps), needed)
    reads = tuple(n for n in reads if n not in rows.writes)  # at their points they are at hand
    both = dataclasses.replace(
        rows, name=rows.name.replace("_per_", "_mix_", 1), kind=GroupKind.MIXED,
        steps=(*rows.steps, *steps), internal=internal, reads=reads, writes=writes,
        walked=Walked(splitter.part, splitter.within),
        reason="; ".join(filter(None, (rows.reason, columns.reason, f"columns from the same read, in {cut.count} parts"))),
    )  # fmt: skip
    return [both, *(dataclasses.replace(g, whole=True) for g in rest)], made


def _said_alike(node: Node) -> Node:
    """x - y for x + (-y), which is the same number: what a kernel of rows and one of columns were to say each in its own words is computed once here."""
    if node.op is Op.ADD and node.args[1].op is Op.NEG:
        return Node(Op.SUB, node.dtype, (node.args[0], node.args[1].args[0]))
    return node


def down_columns(group: Group) -> tuple[LoopNest, ...]:
    """The steps that reduce down the columns, with values as they are at a row and column of the whole; rows past the end do not count."""
    walked = group.walked
    assert walked is not None
    row = group.axes[0]
    known = Substitution({walked.within.symbol: row.symbol - walked.part.symbol * walked.within.extent})
    edge = inside(walked.row, row)

    def value(node: Node) -> Node:
        return known.node(node.args[1] if node.op is Op.MASKED and node.args[0] is edge else node)

    return tuple(
        dataclasses.replace(
            step, reductions=tuple(dataclasses.replace(r, value=value(r.value)) for r in step.reductions)
        )
        for step in group.steps
        if step.reduce_axes == (walked.within,)
    )


def _cut(axis: Axis, tile: int, programs: int, alike: int) -> Cut:
    """The rows in as many parts as there are programs, a multiple of ``alike``, which take turns at tiles of rows: so what all read at once lies side by side."""
    programs = max(1, programs // alike) * alike
    extent = axis.extent.value
    if extent is None:
        tiles = floor_div(axis.extent + (programs * tile - 1), Integer(programs * tile))
        return Cut(axis, programs, tiles * tile, False, True)
    count = min(programs, -(-extent // (tile * alike)) * alike)
    size = -(-extent // (count * tile)) * tile
    return Cut(axis, count, Integer(size), count * size == extent, True)
