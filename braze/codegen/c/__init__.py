"""Schedule -> C: one function per group, as ``schedule/cpu/processors.py`` has planned it, from vector extensions and our own small math library."""

from __future__ import annotations

from braze.codegen.c.gemm import gemm_kernel
from braze.codegen.c.order import require_stores_first
from braze.codegen.c.pointwise import pointwise_kernel
from braze.codegen.c.prelude import assemble, split
from braze.codegen.c.split_rows import row_kernel
from braze.codegen.records import KernelText
from braze.context import CompileContext
from braze.loops.ir import Buffer, TemplateCall
from braze.schedule.facts.records import Group, GroupKind, Schedule

__all__ = ["assemble", "generate", "kernel", "split"]


def generate(schedule: Schedule, ctx: CompileContext) -> tuple[KernelText, ...]:
    """The kernels of a schedule's CPU groups, in order; extern calls have none."""
    buffers = {b.name: b for b in schedule.program.buffers}
    return tuple(
        kernel(group, buffers, ctx)
        for group in schedule.groups
        if group.kind is not GroupKind.EXTERN and group.device == "cpu"
    )


def kernel(group: Group, buffers: dict[str, Buffer], ctx: CompileContext) -> KernelText:
    """The kernel of one group."""
    if isinstance(group.call, TemplateCall):
        return gemm_kernel(group, buffers, ctx)
    made = (row_kernel if group.row_axes else pointwise_kernel)(group, buffers, ctx)
    if ctx.options.verify:
        require_stores_first(made, group)
    return made
