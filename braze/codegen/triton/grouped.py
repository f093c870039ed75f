"""Grouped products as a Triton kernel: rows that lie sorted by the matrix that multiplies each, a mixture's tokens by expert.

Where the rows of a matrix end only the device knows. There are as many programs as any ends could need: each counts the tiles of all matrices, finds its own tile among
them, and is done where there is none for it. All else is the matrix product's (``gemm.py``): tiles, what comes before on rows, what follows on results. Rows behind the last
end are a group of their own, of zeros: what follows is done on them too.
"""

from __future__ import annotations

from braze.codegen.records import KernelText
from braze.codegen.triton.emit import Value
from braze.codegen.triton.gemm import GemmWriter, X, shape_of
from braze.codegen.triton.gemm_tiles import Tiles
from braze.codegen.triton.grouped_tiles import grouped_candidates
from braze.loops.ir import Buffer, BufferView, TemplateCall
from braze.products import Grouped
from braze.schedule.facts.plans import blocks
from braze.schedule.facts.records import Group
from braze.schedule.gpu.far import is_wide
from braze.schedule.gpu.tile_sizes import power
from braze.symbolic.expr import ONE, Expr, Integer, floor_div
from braze.symbolic.guess import likely_size


def grouped_kernel(group: Group, buffers: dict[str, Buffer], tiles: Tiles | None = None) -> KernelText:
    """The kernel of a grouped product's group, cut as told or as the rule says."""
    call = group.call
    assert isinstance(call, TemplateCall)
    return _Grouped(group, call, buffers, tiles or grouped_tiles_of(call)[0], None, False).text()


def grouped_tiles_of(call: TemplateCall) -> tuple[Tiles, ...]:
    """The tiles of a call that are worth a measurement, the rule's first."""
    rows, inner, columns, rights, _ = shape_of(call)
    return grouped_candidates(rows, groups_of(call), inner, columns, rights)


def grouped_of_call(call: TemplateCall) -> Grouped:
    """What a call computes, by likely sizes where only a call tells; halves are one product."""
    left, right = call.args[0], call.rights[0]
    groups, inner, columns = (likely_size(e) for e in right.sizes)
    layout = "kn" if right.strides[2] is ONE else "kk"
    rows = likely_size(left.sizes[0])
    return Grouped(left.dtype.label, rows, groups, inner, columns * len(call.rights), layout)


def groups_of(call: TemplateCall) -> int:
    """How many matrices there are."""
    groups = call.rights[0].sizes[0].value
    assert groups
    return groups


class _Grouped(GemmWriter):
    """Writes one grouped product's kernel."""

    def _programs(self) -> Expr:
        """Tiles at most: each group, and the rows behind the last, has one that it does not fill."""
        rows, groups = self.m.extent, groups_of(self.call) + 1
        if rows.value is not None:
            groups = min(groups, rows.value)
            down: Expr = Integer((rows.value - groups) // self.tiles.rows + groups)
        else:
            down = floor_div(rows, Integer(self.tiles.rows)) + groups
        return down * blocks(self.n.extent, self.tiles.columns)

    def _begin_epilogue(self) -> None:
        """As of any product; zeros are zeros whatever the matrices hold."""
        for k in range(len(self.rights)):
            self.base.lines.append(f"    acc{k}_ = tl.where(some, acc{k}_, 0.0)")
        super()._begin_epilogue()

    def _one_block(self) -> bool:
        return False

    def _last_row(self) -> str:
        return "end"

    def _begin(self, view: BufferView) -> str:
        far = ".to(tl.int64)" if is_wide(self.buffers[view.buffer]) else ""
        return f"{self.emitter.text(view.offset)} + which{far} * ({self.emitter.text(view.strides[0])})"

    def _place(self) -> None:
        """The program's group, and its tile there: of a group's tiles a band of row blocks for each block of columns."""
        lines, emit, groups = self.base.lines, self.emitter, groups_of(self.call)
        ends, rows = self.call.args[-1], emit.text(self.m.extent)
        across, band = emit.text(blocks(self.n.extent, self.tiles.columns)), self.tiles.band
        table = f"{emit.pointers[ends.buffer]} + ({emit.text(ends.offset)})"
        (step,) = map(emit.text, ends.strides)
        lines += [
            f"    program = tl.program_id(0){'.to(tl.int64)' if self.plan.wide else ''}",
            f"    tile = program // ({across})",
            f"    group = tl.arange(0, {power(groups + 1)})",
            # none is beyond the rows that there are, whatever is told
            f"    ends = tl.load({table} + tl.minimum(group, {groups - 1}) * ({step}))",
            f"    ends = tl.where(group < {groups}, tl.minimum(tl.maximum(ends, 0), {rows}), {rows})",
            f"    begins = tl.load({table} + (tl.minimum(group, {groups}) - 1) * ({step}), mask=group > 0, other=0)",
            f"    begins = tl.minimum(tl.maximum(begins, 0), {rows})",
            "    counts = tl.maximum(ends - begins + (XBLOCK - 1), 0) // XBLOCK",
            f"    counts = tl.where(group <= {groups}, counts, 0)",
            "    upto = tl.cumsum(counts, 0)",
            "    if tile >= tl.sum(counts, 0):",
            "        return",
            "    which = tl.sum((upto <= tile).to(tl.int32), 0)",
            "    mine = group == which",
            "    begin = tl.sum(tl.where(mine, begins, 0), 0)",
            "    end = tl.sum(tl.where(mine, ends, 0), 0)",
            "    first = tl.sum(tl.where(mine, upto - counts, 0), 0)",
        ]
        if band == 1:
            lines += ["    xblock = tile - first", f"    yblock = program % ({across})"]
        else:
            lines += [
                f"    inside = program - first * ({across})",
                f"    lead = inside // ({band} * ({across})) * {band}",
                f"    height = tl.minimum(tl.sum(tl.where(mine, counts, 0), 0) - lead, {band})",
                f"    inside = inside % ({band} * ({across}))",
                "    xblock = lead + inside % height",
                "    yblock = inside // height",
            ]
        lines += [
            "    xoffset = begin + xblock * XBLOCK",
            "    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]",
            # of what is no group's nothing is read
            f"    xmask = xindex < tl.where(which < {groups}, end, 0)",
            f"    some = which < {groups}",
            f"    which = tl.minimum(which, {groups - 1})",
        ]
        emit.masks["x"] = True
        emit.symbols[self.m.symbol] = Value("xindex", X)
