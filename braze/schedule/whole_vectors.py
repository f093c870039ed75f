"""Short rows that begin anywhere, as those of 1,025 numbers do, as rows that are walked: along whole vectors, of which all stays in registers.

A tile that holds a row whole begins where the row does and ends where it does. Between vectors it is read, and written, number by number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from braze.loops.ir import Buffer
from braze.schedule.kernels import SHORT, plan_kernel
from braze.schedule.online import read_once
from braze.schedule.passes import writes_what_it_reads
from braze.schedule.records import Group, GroupKind
from braze.schedule.shifted import shared_loads
from braze.symbolic.expr import product
from braze.symbolic.guess import likely_size

#: elements of all rows that keep a GPU busy with the few warps of each, and that are worth a kernel that lays out what they share, too
LEAST, LEAST_COPIED = 1 << 20, 1 << 22


def of_whole_vectors(group: Group, buffers: Mapping[str, Buffer]) -> Group:
    """A group of a GPU; one that walks its rows where that reads them in whole vectors and still only once."""
    if group.device == "cpu" or group.kind is not GroupKind.PERSISTENT or len(group.row_axes) != 1:
        return group
    length = group.row_axes[0].extent.value
    if length is None or length not in SHORT:
        return group
    if group.walked is not None or group.whole or writes_what_it_reads(group):
        return group
    least = LEAST_COPIED if shared_loads(group, buffers) else LEAST
    if likely_size(product([a.extent for a in group.axes])) * length < least:
        return group
    walking = read_once(dataclasses.replace(group, kind=GroupKind.LOOPED))
    return walking if plan_kernel(walking, dict(buffers)).to_its_end else group
