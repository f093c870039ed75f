"""Which of a GPU's matrix products are the Triton template's, and in which tiles: measured under ``max-autotune``, kept on disk.

A product that nobody has measured on this kind of device is scheduled as a template. Each kernel that comes of it is built in all ways
worth a try, side by side in processes of their own, and timed in turn, as is the same work done by ATen's product and
the kernels around it. What is chosen is kept by kernel and device, and never measured again. Every compile reads what is kept;
only ``max-autotune`` measures.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf

import torch
import torch.fx

from braze.codegen.triton.gemm import gemm_kernel
from braze.codegen.triton.gemm_tiles import Means, Tiles
from braze.context import CompileContext
from braze.device_times import build, can_measure, keep, kept, machine
from braze.gemm_trials import PartsTrial, Trial
from braze.graph.products import device_product_of
from braze.loops.ir import Buffer, TemplateCall
from braze.products import DeviceProduct, Way, may_take_template, parts_of
from braze.runtime import cache
from braze.schedule.records import Group, Schedule
from braze.support import trace
from braze.support.log import logger

log = logger("kernels")

#: what parts of a sum must save, as a part of the others' time
_SAVED = 0.03
#: of the template: raise it when it becomes quicker, so that what was measured before does not count
_REVISION = 2


def with_products(
    graph: torch.fx.Graph, plan: Callable[[CompileContext], Schedule], ctx: CompileContext
) -> CompileContext:
    """The context with the choice of each product of a graph that is known, after measuring under ``max-autotune`` the others."""
    if ctx.target.kind != "cuda" or ctx.options.matmul_template is not None:
        return ctx
    found = dict.fromkeys(
        p for p in map(device_product_of, graph.nodes) if p is not None and may_take_template(p)
    )
    if not found:
        return ctx
    known = {p: Way(text) for p in found if (text := kept(_product_key(p, ctx)))}
    missing = [p for p in found if p not in known and p.rows is not None]
    if missing and ctx.options.max_autotune and can_measure():
        known |= _measured(missing, plan, _with(ctx, known))
    return _with(ctx, known)


def _with(ctx: CompileContext, known: Mapping[DeviceProduct, Way]) -> CompileContext:
    return dataclasses.replace(ctx, device_products=tuple(known.items()))


def with_tiles(plans: Sequence[Schedule], ctx: CompileContext) -> CompileContext:
    """The context with the tiles of each template's kernel that were found to be the quickest."""
    found = []
    for plan in plans:
        buffers = {b.name: b for b in plan.program.buffers}
        for group in _templates(plan):
            text = kept(_kernel_key(group, buffers, ctx))
            if text:
                found.append((group.name, text))
    return dataclasses.replace(ctx, tiles=tuple(found)) if found else ctx


def _templates(plan: Schedule) -> list[Group]:
    return [g for g in plan.groups if isinstance(g.call, TemplateCall) and g.device != "cpu"]


# -- what is kept -----------------------------------------------------------------------------------


def _product_key(p: DeviceProduct, ctx: CompileContext) -> cache.CacheKey:
    return cache.key("device_product", product=p, **machine(ctx, _REVISION))


def _kernel_key(group: Group, buffers: dict[str, Buffer], ctx: CompileContext) -> cache.CacheKey:
    """The key of a kernel, whatever its tiles and its name."""
    text = gemm_kernel(group, buffers, Tiles(Means.MULTIPLY, 1, 1, 16))
    return cache.key("tiles", kernel=text.source.replace(group.name, "kernel"), **machine(ctx, _REVISION))


# -- measuring --------------------------------------------------------------------------------------


def _measured(
    products: Sequence[DeviceProduct], plan: Callable[[CompileContext], Schedule], ctx: CompileContext
) -> dict[DeviceProduct, Way]:
    """Who is to compute each product, after timing every kernel that has one as a template."""
    forced = {**dict(ctx.device_products), **dict.fromkeys(products, Way.OURS)}
    found = plan(_with(ctx, forced))
    buffers = {b.name: b for b in found.program.buffers}
    groups = {_kernel_key(g, buffers, ctx).digest: g for g in _templates(found)}
    spent: dict[DeviceProduct, list[tuple[float, float]]] = {}
    with trace.stage("measure"), torch.no_grad(), torch.autocast("cuda", enabled=False):
        trials = [Trial(group, buffers, ctx.target) for group in groups.values()]
        parts = _parts(trials, set(products))
        texts = [t for trial in trials for t in trial.texts.values()]
        texts += [t for trial in parts.values() for t in trial.texts()]
        build(texts, ctx.options.autotune_seconds)
        for trial in trials:
            seconds = trial.seconds()
            theirs = seconds.pop(Way.ATEN.value, None)
            log.info("%s: ATen %s, %s", trial.group.name, theirs, json.dumps(seconds))
            trace.count("products_measured")
            if seconds:
                keep(_kernel_key(trial.group, buffers, ctx), min(seconds, key=seconds.__getitem__))
            if theirs is not None:
                spent.setdefault(trial.product(), []).append((min(seconds.values(), default=inf), theirs))
        made: dict[DeviceProduct, Way] = {}
        for p in products:
            if p in spent:
                made[p] = _quickest(spent[p], parts.get(p), ctx)
                keep(_product_key(p, ctx), made[p].value)
    return made


def _parts(trials: Sequence[Trial], products: Collection[DeviceProduct]) -> dict[DeviceProduct, PartsTrial]:
    """The products whose sums are worth cutting, each as it was met first."""
    found: dict[DeviceProduct, PartsTrial] = {}
    for trial in trials:
        p = trial.product()
        if p in products and p not in found and parts_of(p, trial.target.cores) > 1:
            found[p] = PartsTrial(trial.call, trial.buffers, trial.target)
    return found


def _quickest(times: Sequence[tuple[float, float]], parts: PartsTrial | None, ctx: CompileContext) -> Way:
    """Who is to compute a product. What follows parts is done by the kernel that adds them: they have to be quicker, without it, than the others with it."""
    ours, theirs = (sum(column) for column in zip(*times, strict=True))
    way, best = (Way.OURS, ours) if ours <= theirs else (Way.ATEN, theirs)
    if parts is None:
        return way
    seconds = parts.seconds()
    alone = seconds.pop(Way.ATEN.value, None)
    log.info("%s in %d parts: ATen %s, %s", parts.group.name, parts.count, alone, json.dumps(seconds))
    if alone is None or not seconds:
        return way
    tiles = min(seconds, key=seconds.__getitem__)
    if seconds[tiles] > (1 - _SAVED) * min(alone, best / len(times)):
        return way
    keep(_kernel_key(parts.group, {b.name: b for b in parts.plan.program.buffers}, ctx), tiles)
    return Way.PARTS
