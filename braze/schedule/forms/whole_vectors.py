"""Short rows that begin anywhere, as those of 1,025 numbers do, as rows that are walked: along whole vectors, of which all stays in registers.

A tile that holds a row whole begins where the row does and ends where it does. Between vectors it is read, and written, number by number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from braze.loops.ir import Buffer
from braze.loops.rewrite import loads, roots
from braze.schedule.facts.passes import over_row, writes_what_it_reads
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.forms.online import read_once
from braze.schedule.gpu.held import SHORT
from braze.schedule.gpu.kernels import plan_kernel
from braze.schedule.gpu.short_sums import SHORT_SUMS
from braze.symbolic.expr import product
from braze.symbolic.guess import likely_size

#: elements of all rows that are worth it (on an H200, us, before behind): layer norm of 1,024 rows of 4,097 in bfloat16 takes 14.2 (17.7), with the kernel
#: that lays out what they share, but of 256 rows 10.8 (8.6); a softmax of 256 takes 7.3 (7.1)
LEAST = 1 << 22


def of_whole_vectors(group: Group, buffers: Mapping[str, Buffer]) -> Group:
    """A group of a GPU; one that walks its rows where that reads them in whole vectors and still only once."""
    if group.device == "cpu" or group.kind is not GroupKind.PERSISTENT or len(group.row_axes) != 1:
        return group
    length = group.row_axes[0].extent.value
    if length is None or not (length in SHORT or length in SHORT_SUMS):
        return group
    if group.walked is not None or group.whole or writes_what_it_reads(group):
        return group
    if likely_size(product([a.extent for a in group.axes])) * length < LEAST:
        return group
    walking = dataclasses.replace(group, kind=GroupKind.LOOPED)
    if not _sums_what_it_keeps(walking):
        walking = read_once(walking)
    return walking if plan_kernel(walking, dict(buffers)).to_its_end else group


def _sums_what_it_keeps(group: Group) -> bool:
    """Whether a value along the row is both summed and wanted again, as a softmax's powers are: they are made once, below a maximum that is known."""
    summed = {name for step in group.steps if step.reductions for name in loads(*roots(step))}
    again = {name for step in group.steps if not step.reductions for name in loads(*roots(step))}
    kept = {s.buffer for step in group.steps if over_row(step, group.row_axes) for s in step.stores}
    return bool(kept & summed & again & {*group.internal})
