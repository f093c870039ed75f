"""Which of a GPU's depthwise convolutions are our template's, and in which strips: measured under ``max-autotune`` beside ATen's, kept on disk.

As with products (``gemm_times.py``): what nobody has measured on this kind of device is scheduled as a template, each kernel that comes of it is built in all
cuts worth a try, and timed in turn with ATen's call and the loops around it. One choice is kept for a convolution, whatever stands around it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.fx

from braze.autotune.device_times import can_measure, keep, kept, machine
from braze.autotune.gemm_trials import Run, TemplateTrial, is_template, measured, run_of, viewed
from braze.codegen.triton.depthwise import depthwise_kernel, depthwise_of
from braze.codegen.triton.depthwise_tiles import strips_of
from braze.context import CompileContext
from braze.graph.operators import products as graph_products
from braze.loops.ir import Buffer, TemplateCall
from braze.options import Options
from braze.products import Depthwise, Way, depthwise_by_rule, takes_depthwise
from braze.runtime.libraries import cache
from braze.schedule import schedule
from braze.schedule.facts.records import Group, Schedule
from braze.schedule.rewrites.unfused import depthwise_after

#: of the template and of what it is measured against: raise it when either becomes quicker
_REVISION = 1


def with_depthwise(
    graph: torch.fx.Graph, plan: Callable[[CompileContext], Schedule], ctx: CompileContext
) -> CompileContext:
    """The context with the choice of each depthwise convolution of a graph that is known, after measuring under ``max-autotune`` the others."""
    if ctx.target.kind != "cuda" or ctx.options.depthwise_template is not None:
        return ctx
    nodes = [d for n in graph.nodes if (d := graph_products.depthwise_of(n)) is not None]
    found = [d for d in dict.fromkeys(nodes) if takes_depthwise(d, True, {}, ctx.target.arch)]
    if not found:
        return ctx
    known = {d: text for d in found if (text := kept(_key(d, ctx)))}
    missing = [d for d in found if d not in known and d.samples is not None]
    if missing and ctx.options.max_autotune and can_measure():
        known |= _measured(missing, plan, _with(ctx, known))
    return _with(ctx, known)


def with_strips(plans: Sequence[Schedule], ctx: CompileContext) -> CompileContext:
    """The context with the strips of each convolution's kernel that were found to be the quickest."""
    found = []
    for group in (g for plan in plans for g in plan.groups if is_template(g, "depthwise")):
        assert isinstance(group.call, TemplateCall)
        text = kept(_key(depthwise_of(group.call), ctx))
        if text and text != Way.ATEN.value:
            found.append((group.name, text))
    return dataclasses.replace(ctx, tiles=(*ctx.tiles, *found)) if found else ctx


def _with(ctx: CompileContext, known: Mapping[Depthwise, str]) -> CompileContext:
    ways = ((d, Way.ATEN if text == Way.ATEN.value else Way.OURS) for d, text in known.items())
    return dataclasses.replace(ctx, depthwise=tuple(ways))


def _key(d: Depthwise, ctx: CompileContext) -> cache.CacheKey:
    return cache.key("depthwise", windows=d, **machine(ctx, _REVISION))


def _measured(
    missing: Sequence[Depthwise], plan: Callable[[CompileContext], Schedule], ctx: CompileContext
) -> dict[Depthwise, str]:
    """Who is to compute each convolution, in which strips."""
    forced = {**dict(ctx.depthwise), **dict.fromkeys(missing, Way.OURS)}
    planned = plan(dataclasses.replace(ctx, depthwise=tuple(forced.items())))

    def ruled(d: Depthwise) -> str:
        return strips_of(d)[0].text() if depthwise_by_rule(d, ctx.target.arch) else Way.ATEN.value

    made = measured(
        "depthwise", missing, planned, lambda g, b: Trial(g, b, ctx), ruled, ctx.options.autotune_seconds
    )
    for d, text in made.items():
        keep(_key(d, ctx), text)
    return made


class Trial(TemplateTrial):
    """A depthwise convolution's."""

    def __init__(self, group: Group, buffers: dict[str, Buffer], ctx: CompileContext) -> None:
        assert isinstance(group.call, TemplateCall)
        self.of, self.ctx = depthwise_of(group.call), ctx
        texts = {s.text(): depthwise_kernel(group, buffers, s) for s in strips_of(self.of)}
        super().__init__(group, buffers, group.call.args[0].buffer, texts)

    def _apart(self, memory: Mapping[str, torch.Tensor]) -> Run:
        """The convolution by ATen, with a kernel behind it."""
        program, product = depthwise_after(self.call, self.buffers)
        plan = schedule(program, CompileContext(Options(), self.ctx.target))
        pictures, weights = self.call.args
        windows = viewed(memory, weights).unsqueeze(1).contiguous()
        words, groups = self.call.window, int(windows.shape[0])
        assert words is not None
        after: list[Run] = []

        def run(x: torch.Tensor) -> None:
            given = viewed({pictures.buffer: x}, pictures)
            made = torch.convolution(
                given, windows, None, words.stride, words.padding, words.dilation, False, (0, 0), groups
            )
            strides = [e.value or 0 for e in product.strides]
            if list(made.stride()) != strides:
                made = torch.empty_strided(made.shape, strides, dtype=made.dtype, device=made.device).copy_(
                    made
                )
            if not after:
                after.append(run_of(plan, memory, product.name, self.ctx))
            after[0](made)

        return run
