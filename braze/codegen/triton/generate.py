"""Schedule -> Triton: one kernel per group of a GPU that is no call."""

from __future__ import annotations

from itertools import zip_longest

from braze.codegen.records import KernelText, relaunched
from braze.codegen.triton.asserts import unasserted
from braze.codegen.triton.combos import combo_kernel
from braze.codegen.triton.depthwise import depthwise_kernel
from braze.codegen.triton.depthwise_tiles import parsed_strips
from braze.codegen.triton.gemm import gemm_kernel
from braze.codegen.triton.gemm_tiles import parsed
from braze.codegen.triton.grouped import grouped_kernel
from braze.codegen.triton.kernels import kernel
from braze.codegen.triton.waits import Early, early_of, is_between, require_turns, require_wait_first
from braze.context import CompileContext
from braze.loops.ir import Buffer, TemplateCall
from braze.schedule.facts.records import Group, GroupKind, Schedule
from braze.schedule.forms.combos import plan_members
from braze.schedule.gpu.tilings import parsed_tiling, planned_as


def generate(schedule: Schedule, ctx: CompileContext) -> tuple[KernelText, ...]:
    """The kernels of a schedule's groups on a GPU, in order; extern calls have none.

    Raises Unsupported (BZ5010) for a group that Triton cannot express.
    """
    chosen = dict(ctx.tiles)
    buffers = {b.name: b for b in schedule.program.buffers}
    early = early_of(schedule, ctx)
    nvidia = ctx.target.arch.startswith("sm_")
    texts = tuple(
        _kernel(
            group, behind, buffers, schedule, early, chosen.get(group.name), ctx.target.cores, nvidia=nvidia
        )
        for group, behind in zip_longest(schedule.groups, schedule.groups[1:])
        if group.kind is not GroupKind.EXTERN and group.device != "cpu"
    )
    require_turns(schedule, texts, is_between(ctx))
    if ctx.options.numerics == "eager":  # whose products and sums are kernels of their own
        texts = tuple(relaunched(text, contracts=False) for text in texts)
    return texts if ctx.options.assert_indices else tuple(map(unasserted, texts))


def _kernel(
    group: Group,
    behind: Group | None,
    buffers: dict[str, Buffer],
    schedule: Schedule,
    early: Early,
    tiles: str | None,
    cores: int,
    *,
    nvidia: bool,
) -> KernelText:
    ahead = frozenset[str]()
    if group.kind is GroupKind.TEMPLATE:
        text = _template(group, buffers, early, tiles)
        ahead = early.constants
    elif group.members:
        waits, triggers = early.waits(group), early.triggers(group, behind)
        plans = plan_members(group, buffers, cores)
        text = combo_kernel(group, plans, schedule, nvidia=nvidia, waits=waits, triggers=triggers)
    else:
        plan = planned_as(group, buffers, None if tiles is None else parsed_tiling(tiles))
        waits, triggers = early.waits(group), early.triggers(group, behind)
        text = kernel(group, plan, schedule, nvidia=nvidia, waits=waits, triggers=triggers)
    require_wait_first(text, ahead)
    return text


def _template(group: Group, buffers: dict[str, Buffer], early: Early, tiles: str | None) -> KernelText:
    call = group.call
    if isinstance(call, TemplateCall) and call.kind == "depthwise":
        return depthwise_kernel(group, buffers, None if tiles is None else parsed_strips(tiles))
    told = None if tiles is None else parsed(tiles)
    if isinstance(call, TemplateCall) and call.kind == "grouped":
        return grouped_kernel(group, buffers, told)
    return gemm_kernel(group, buffers, told, early.ahead(group), triggers=group.name in early.lets)
