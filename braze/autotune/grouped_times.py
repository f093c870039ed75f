"""Which of a GPU's grouped products are our template's, and in which tiles: measured under ``max-autotune`` beside ATen's, kept on disk.

As with depthwise convolutions (``depthwise_times.py``). How rows fall to groups is what data tell: they are measured as drawn for each row alone, which is how a
router that is trained to spread tokens spreads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.fx

from braze.autotune.device_times import build, can_measure, keep, kept, launcher, machine
from braze.autotune.gemm_trials import Run, is_template, quickest_of_all, run_of, timed, viewed
from braze.codegen.triton.grouped import grouped_kernel, grouped_of_call, grouped_tiles_of
from braze.context import CompileContext
from braze.graph.products import grouped_of
from braze.loops.ir import Buffer, TemplateCall
from braze.options import Options
from braze.products import Grouped, Way, grouped_by_rule, takes_grouped
from braze.runtime import cache
from braze.schedule import schedule
from braze.schedule.records import Group, Schedule
from braze.schedule.unfused import unfused
from braze.support import trace

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
    """Who is to compute each product, in which tiles: the quickest in all kernels that have one."""
    forced = {**dict(ctx.grouped), **dict.fromkeys(missing, Way.OURS)}
    found = plan(dataclasses.replace(ctx, grouped=tuple(forced.items())))
    buffers = {b.name: b for b in found.program.buffers}
    rules: dict[Grouped, str] = {}
    with trace.stage("measure"), torch.no_grad(), torch.autocast("cuda", enabled=False):
        trials = [Trial(g, buffers, ctx) for g in found.groups if is_template(g, "grouped")]
        trials = [t for t in {t.canonical: t for t in trials}.values() if t.of in missing]
        build([text for t in trials for text in t.texts.values()], ctx.options.autotune_seconds)
        for t in trials:
            ours = grouped_by_rule(t.of, ctx.target.arch)
            rules.setdefault(t.of, next(iter(t.texts)) if ours else Way.ATEN.value)
        made = quickest_of_all(trials, rules.__getitem__)
        trace.count("products_measured", len(trials))
    for p, text in made.items():
        keep(_key(p, ctx), text)
    return made


class Trial:
    """One template's kernel in every cut worth a try, and the same work apart."""

    def __init__(self, group: Group, buffers: dict[str, Buffer], ctx: CompileContext) -> None:
        assert isinstance(group.call, TemplateCall)
        self.group, self.call, self.buffers, self.ctx = group, group.call, buffers, ctx
        self.of = grouped_of_call(self.call)
        self.texts = {t.text(): grouped_kernel(group, buffers, t) for t in grouped_tiles_of(self.call)}
        self.canonical = next(iter(self.texts.values())).canonical

    def seconds(self) -> dict[str, float]:
        """Seconds of each way that runs and gives ATen's results, by its name; nothing where memory does not suffice."""
        ways: dict[str, Callable[[Mapping[str, torch.Tensor]], Run]] = {Way.ATEN.value: self._apart}
        for name, text in self.texts.items():
            ways[name] = lambda memory, text=text: self._kernel(text, memory)  # type: ignore[misc]
        buffers = [self.buffers[n] for n in dict.fromkeys((*self.group.reads, *self.group.writes))]
        return timed(self.group.name, buffers, self.call.rights[0].buffer, self.group.writes, ways)

    def _kernel(self, text: object, memory: Mapping[str, torch.Tensor]) -> Run:
        launch, right = launcher(text), self.call.rights[0].buffer  # type: ignore[arg-type]
        self._spread(memory)
        return lambda matrix: launch(*(matrix if a == right else memory[a] for a in text.args))  # type: ignore[attr-defined]

    def _apart(self, memory: Mapping[str, torch.Tensor]) -> Run:
        """The products by ATen, with kernels before and after."""
        self._spread(memory)
        ctx = CompileContext(Options(), self.ctx.target)
        return run_of(
            schedule(unfused(self.call, self.buffers), ctx), memory, self.call.rights[0].buffer, ctx
        )

    def _spread(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Write where groups end."""
        ends = viewed(memory, self.call.args[-1])
        ends.copy_(ends_of(self.of.rows or 0, self.of.groups))


def ends_of(rows: int, groups: int) -> torch.Tensor:
    """Where groups end of which each row has one at random, always the same."""
    generator = torch.Generator().manual_seed(0)
    which = torch.randint(0, groups, (rows,), generator=generator)
    return torch.bincount(which, minlength=groups).cumsum(0)
