"""What a GPU computes once, and only copies (weights turned, or in another type), is left to ATen: a kernel takes longer to build than it would ever save."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from braze.loops.ir import Axis, Buffer, BufferView, ExternCall, LoopNest, LoopProgram, Node, Op, StoreMode
from braze.loops.verify import writes_of
from braze.symbolic.expr import ZERO, Expr

COPY = "aten.copy_.default"


def copied_by_aten(program: LoopProgram) -> LoopProgram:
    """The program with calls in place of the loops that only copy."""
    buffers = {b.name: b for b in program.buffers}
    writes = [name for step in program.steps for name in writes_of(step)]
    alone = {name for name in writes if writes.count(name) == 1}
    copies = (_copy(step, buffers, alone) if isinstance(step, LoopNest) else None for step in program.steps)
    steps = tuple(copy or step for copy, step in zip(copies, program.steps, strict=True))
    return dataclasses.replace(program, steps=steps)


def _copy(nest: LoopNest, buffers: Mapping[str, Buffer], alone: set[str]) -> ExternCall | None:
    """The call that does what the loops do, where they make one buffer of one other."""
    if nest.reductions or len(nest.stores) != 1:
        return None
    (store,) = nest.stores
    target = buffers[store.buffer]
    source = _source(store.value, target, buffers)
    if source is None or store.mode is not StoreMode.PLAIN or store.args or store.buffer not in alone:
        return None
    read = view_at(buffers[source.attr[0]], source.attr[1], nest.axes)
    written = view_at(target, store.index, nest.axes)
    if read is None or written is None or read.buffer == written.buffer:
        return None
    return ExternCall(
        nest.name,
        COPY,
        (written, read),
        (),
        ("",),
        mutates=(store.buffer,),
        device=nest.device,
        ops=nest.ops,
        origin=nest.origin,
    )


def _source(value: Node, target: Buffer, buffers: Mapping[str, Buffer]) -> Node | None:
    """The load whose value is stored as it is, or rounded to another floating type."""
    load = value.args[0] if value.op is Op.CAST else value
    if load.op is not Op.LOAD or load.args or value.dtype is not target.dtype:
        return None
    kept = buffers[load.attr[0]].dtype, load.dtype, target.dtype
    return load if len(set(kept)) == 1 or (kept[0] is kept[1] and all(d.is_float for d in kept)) else None


def view_at(buffer: Buffer, index: Expr, axes: tuple[Axis, ...]) -> BufferView | None:
    """The elements at an index, in the axes' order; None unless ATen can have a view of them."""
    strides, rest = [], index
    for axis in axes:
        step = index.coefficient(axis.symbol)
        if step is None or step.value is None or step.value < 0 or not axis.extent.is_constant:
            return None
        strides.append(step)
        rest = rest - axis.symbol * step
    if rest.value is None or rest.value < 0:
        return None
    sizes = tuple(axis.extent for axis in axes)
    return BufferView(buffer.name, sizes, tuple(strides), ZERO + rest, buffer.dtype)
