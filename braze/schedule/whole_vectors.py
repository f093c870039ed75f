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


def of_whole_vectors(group: Group, buffers: Mapping[str, Buffer]) -> Group:
    """A group of a GPU; one that walks its rows where that reads them in whole vectors and still only once."""
    if group.device == "cpu" or group.kind is not GroupKind.PERSISTENT or len(group.row_axes) != 1:
        return group
    if group.walked is not None or group.whole or group.row_axes[0].extent.value not in SHORT:
        return group
    if writes_what_it_reads(group):
        return group
    walking = read_once(dataclasses.replace(group, kind=GroupKind.LOOPED))
    return walking if plan_kernel(walking, dict(buffers)).to_its_end else group
