"""Schedule -> Triton: one kernel per group of a GPU that is no call."""

from __future__ import annotations

from braze.codegen.records import KernelText
from braze.codegen.triton.gemm import gemm_kernel
from braze.codegen.triton.gemm_tiles import parsed
from braze.codegen.triton.kernels import kernel
from braze.context import CompileContext
from braze.loops.ir import BufferKind
from braze.schedule.kernels import plan_kernel
from braze.schedule.records import GroupKind, Schedule

#: GPUs on which a kernel can begin before the one ahead of it on its stream has ended, and wait for that by itself
WAITING = frozenset({"sm_90"})


def generate(schedule: Schedule, ctx: CompileContext) -> tuple[KernelText, ...]:
    """The kernels of a schedule's groups on a GPU, in order; extern calls have none.

    Raises Unsupported (BZ5010) for a group that Triton cannot express.
    """
    chosen = {name: parsed(text) for name, text in ctx.tiles}
    buffers = {b.name: b for b in schedule.program.buffers}
    early = None
    if ctx.options.early_launches:
        written = {name for group in schedule.groups for name in group.writes}
        early = frozenset(n for n, b in buffers.items() if b.kind is BufferKind.CONSTANT and n not in written)
    # recordings keep their kernels in the plain order, for which alone they were measured
    waits = ctx.target.arch in WAITING and not ctx.options.cudagraphs
    return tuple(
        gemm_kernel(group, buffers, chosen.get(group.name), early)
        if group.kind is GroupKind.TEMPLATE
        else kernel(group, plan_kernel(group, buffers), schedule, waits=waits)
        for group in schedule.groups
        if group.kind is not GroupKind.EXTERN and group.device != "cpu"
    )
