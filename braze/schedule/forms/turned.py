"""What a long row's kernel stores across the order that it reads in, as a kernel of squares.

Group norm of a picture whose channels are innermost reads pixel after pixel and stores, as eager does, channel after channel. A row
that no program holds is read again for that anyway: the second walk is no dearer as a kernel of its own, which reads and writes whole sectors
where a walk along the row would take a few bytes of each.
"""

from __future__ import annotations

from collections.abc import Mapping

from braze.loops.ir import Buffer
from braze.schedule.facts.passes import passes_of, writes_what_it_reads
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.forms.split import in_order, inlined
from braze.schedule.fusion.canonical import part_of
from braze.schedule.gpu.kernels import plan_kernel


def stored_apart(group: Group, buffers: Mapping[str, Buffer]) -> list[Group]:
    """The group, or its reductions and a kernel of squares that stores what follows along the row."""
    if group.kind is not GroupKind.LOOPED or group.walked is not None or writes_what_it_reads(group):
        return [group]
    passes = passes_of(inlined(group, buffers), group.row_axes)
    last = passes[-1]
    stored_before = any(not step.reductions for each in passes[:-1] for step in each.along)
    if len(passes) < 2 or last.reduces or last.behind or stored_before:
        return [group]
    axes = in_order(last.along, (*group.axes, *group.row_axes))
    needed, why = set(group.writes), "stored across the rows"
    squares = part_of(group, "turned", GroupKind.POINTWISE, last.along, axes, (), needed, why)
    if plan_kernel(squares, dict(buffers)).form is not Form.TILED:
        return [group]
    reducing = [step for each in passes[:-1] for step in (*each.along, *each.behind)]
    needed |= set(squares.reads)
    return [part_of(group, "sums", group.kind, reducing, group.axes, group.row_axes, needed, why), squares]
