"""Which of a GPU's grouped products are our template's, and in which tiles: measured under ``max-autotune`` beside ATen's, kept on disk.

As with depthwise convolutions (``depthwise_times.py``). How rows fall to groups is what data tell: they are measured as drawn for each row alone, which is how a
router that is trained to spread tokens spreads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.fx

from braze.autotune.device_times import can_measure, keep, kept, machine
from braze.autotune.gemm_trials import Run, TemplateTrial, is_template, measured, run_of, viewed
from braze.codegen.records import KernelText
from braze.codegen.triton.grouped import grouped_kernel, grouped_of_call, grouped_tiles_of
from braze.context import CompileContext
from braze.graph.operators.products import grouped_of
from braze.loops.ir import Buffer, TemplateCall
from braze.options import Options
from braze.products import Grouped, Way, grouped_by_rule, takes_grouped
from braze.runtime.libraries import cache
from braze.schedule import schedule
from braze.schedule.facts.records import Group, Schedule
from braze.schedule.rewrites.unfused import unfused

#: of the template and of what it is measured against: raise it when either becomes quicker
_REVISION = 1
#: GPUs on which ATen's reads no ends on the host, so that it can be recorded and timed
_RECORDED = frozenset({"sm_90", "sm_100"})


def with_grouped(
    graph: torch.fx.Graph, plan: Callable[[CompileContext], Schedule], ctx: CompileContext
) -> CompileContext:
    """The context with the choice of each grouped product of a graph that is known, after measuring under ``max-autotune`` the others."""
    if ctx.target.kind != "cuda" or ctx.options.grouped_template is not None:
        return ctx
    nodes = [p for n in graph.nodes if (p := grouped_of(n)) is not None]
    found = [p for p in dict.fromkeys(nodes) if takes_grouped(p, True, {}, ctx.target.arch)]
    if not found:
        return ctx
    known = {p: text for p in found if (text := kept(_key(p, ctx)))}
    missing = [p for p in found if p not in known and p.rows is not None]
    if missing and ctx.options.max_autotune and ctx.target.arch in _RECORDED and can_measure():
        known |= _measured(missing, plan, _with(ctx, known))
    return _with(ctx, known)


def with_grouped_tiles(plans: Sequence[Schedule], ctx: CompileContext) -> CompileContext:
    """The context with the tiles of each grouped product's kernel that were found to be the quickest."""
    found = []
    for group in (g for plan in plans for g in plan.groups if is_template(g, "grouped")):
        assert isinstance(group.call, TemplateCall)
        text = kept(_key(grouped_of_call(group.call), ctx))
        if text in {t.text() for t in grouped_tiles_of(group.call)}:
            found.append((group.name, text))
    return dataclasses.replace(ctx, tiles=(*ctx.tiles, *found)) if found else ctx


def _with(ctx: CompileContext, known: Mapping[Grouped, str]) -> CompileContext:
    ways = ((p, Way.ATEN if text == Way.ATEN.value else Way.OURS) for p, text in known.items())
    return dataclasses.replace(ctx, grouped=tuple(ways))


def _key(p: Grouped, ctx: CompileContext) -> cache.CacheKey:
    return cache.key("grouped", product=p, **machine(ctx, _REVISION))


def _measured(
    missing: Sequence[Grouped], plan: Callable[[CompileContext], Schedule], ctx: CompileContext
) -> dict[Grouped, str]:
    """Who is to compute each product, in which tiles."""
    forced = {**dict(ctx.grouped), **dict.fromkeys(missing, Way.OURS)}
    planned = plan(dataclasses.replace(ctx, grouped=tuple(forced.items())))
    firsts: dict[Grouped, str] = {}

    def trial(group: Group, buffers: dict[str, Buffer]) -> Trial:
        made = Trial(group, buffers, ctx)
        firsts.setdefault(made.of, next(iter(made.texts)))
        return made

    def ruled(p: Grouped) -> str:
        return firsts[p] if grouped_by_rule(p, ctx.target.arch) else Way.ATEN.value

    made = measured("grouped", missing, planned, trial, ruled, ctx.options.autotune_seconds)
    for p, text in made.items():
        keep(_key(p, ctx), text)
    return made


class Trial(TemplateTrial):
    """A grouped product's."""

    def __init__(self, group: Group, buffers: dict[str, Buffer], ctx: CompileContext) -> None:
        assert isinstance(group.call, TemplateCall)
        self.of, self.ctx = grouped_of_call(group.call), ctx
        texts = {t.text(): grouped_kernel(group, buffers, t) for t in grouped_tiles_of(group.call)}
        super().__init__(group, buffers, group.call.rights[0].buffer, texts)

    def _kernel(self, text: KernelText, memory: Mapping[str, torch.Tensor]) -> Run:
        self._spread(memory)
        return super()._kernel(text, memory)

    def _apart(self, memory: Mapping[str, torch.Tensor]) -> Run:
        """The products by ATen, with kernels before and after."""
        self._spread(memory)
        ctx = CompileContext(Options(), self.ctx.target)
        return run_of(schedule(unfused(self.call, self.buffers), ctx), memory, self.cold, ctx)

    def _spread(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Write where groups end."""
        ends = viewed(memory, self.call.args[-1])
        ends.copy_(ends_of(self.of.rows or 0, self.of.groups))


def ends_of(rows: int, groups: int) -> torch.Tensor:
    """Where groups end of which each row has one at random, always the same."""
    generator = torch.Generator().manual_seed(0)
    which = torch.randint(0, groups, (rows,), generator=generator)
    return torch.bincount(which, minlength=groups).cumsum(0)
