"""Which of a GPU's matrix products are the Triton template's, and in which tiles: measured under ``max-autotune``, kept on disk.

A product that nobody has measured on this kind of device is scheduled as a template. Each kernel that comes of it is built in all ways
worth a try, side by side in processes of their own, and timed in turn, as is the same work done by ATen's product and
the kernels around it. What is chosen is kept by kernel and device, and never measured again; a product has the tiles of its first kernel wherever other
work stands around it. Every compile reads what is kept; only ``max-autotune`` measures.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf

import torch
import torch.fx

from braze.autotune import device_times
from braze.autotune.device_times import can_measure, chosen, keep, kept, machine
from braze.autotune.gemm_trials import PartsTrial, Trial, is_template
from braze.codegen.triton.gemm import gemm_kernel, tiles_of
from braze.codegen.triton.gemm_tiles import Means, Tiles
from braze.context import CompileContext
from braze.graph.operators.products import device_product_of
from braze.loops.ir import Buffer, TemplateCall
from braze.products import DeviceProduct, Way, may_take_template, parts_of, pays_by_rule
from braze.runtime.libraries import cache
from braze.schedule.facts.records import Group, Schedule
from braze.support import trace
from braze.support.log import logger
from braze.symbolic.expr import ONE

log = logger("kernels")

#: what parts of a sum must save of the time of two kernels, and of one: their time is taken without what they do for what follows, and without a launch between kernels
_SAVED, _SAVED_OF_ONE = 0.03, 0.15
#: of the template and of what it is measured against: raise it when either becomes quicker, so that what was measured before does not count
_REVISION = 4


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
            text = kept(_kernel_key(group, buffers, ctx)) or _tiles_of_product(group.call, ctx)
            if text:
                found.append((group.name, text))
    return dataclasses.replace(ctx, tiles=tuple(found)) if found else ctx


def _templates(plan: Schedule) -> list[Group]:
    return [g for g in plan.groups if is_template(g, "gemm")]


def _is_sized(group: Group, buffers: Mapping[str, Buffer]) -> bool:
    """Whether no size of a kernel's memory is one that only a call tells."""
    own = [buffers[name] for name in (*group.reads, *group.writes)]
    return all(e.value is not None for b in own for e in (*b.sizes, *b.strides))


# -- what is kept -----------------------------------------------------------------------------------


def _product_key(p: DeviceProduct, ctx: CompileContext) -> cache.CacheKey:
    return cache.key("device_product", product=p, **machine(ctx, _REVISION))


def _tiles_key(call: TemplateCall, ctx: CompileContext) -> cache.CacheKey:
    """The key of a product's tiles, whatever stands around it: its sizes, and how its matrices lie."""
    views = [(v.dtype.label, [*map(str, v.sizes)], [*map(str, v.strides)]) for v in call.args]
    return cache.key("product_tiles", views=views, **machine(ctx, _REVISION))


def _tiles_of_product(call: object, ctx: CompileContext) -> str:
    """The tiles of a call's product, as they were measured in another kernel; nothing where they were not."""
    assert isinstance(call, TemplateCall)
    text = kept(_tiles_key(call, ctx))
    return text if text in {t.text() for t in tiles_of(call)} else ""


def _kernel_key(group: Group, buffers: dict[str, Buffer], ctx: CompileContext) -> cache.CacheKey:
    """The key of a kernel, whatever its tiles and its name.

    Sizes have a part of their own: the text has a number of rows or of a batch only where it is masked by it, and in tiles of one row nothing is.
    """
    text = gemm_kernel(group, buffers, Tiles(Means.MULTIPLY, 1, 1, 16))
    call = group.call
    assert isinstance(call, TemplateCall)
    sizes = [str(e) for e in (*(a.extent for a in call.axes), *(e for v in call.args for e in v.sizes))]
    return cache.key("tiles", kernel=text.work, sizes=sizes, **machine(ctx, _REVISION))


# -- measuring --------------------------------------------------------------------------------------


def _measured(
    products: Sequence[DeviceProduct], plan: Callable[[CompileContext], Schedule], ctx: CompileContext
) -> dict[DeviceProduct, Way]:
    """Who is to compute each product, after timing every kernel that has one as a template."""
    forced = {**dict(ctx.device_products), **dict.fromkeys(products, Way.OURS)}
    found = plan(_with(ctx, forced))
    buffers = {b.name: b for b in found.program.buffers}
    groups = {_kernel_key(g, buffers, ctx).digest: g for g in _templates(found) if _is_sized(g, buffers)}
    spent: dict[DeviceProduct, list[tuple[float, float]]] = {}
    ruled: set[DeviceProduct] = set()
    with trace.stage("measure"), torch.no_grad(), torch.autocast("cuda", enabled=False):
        trials = [Trial(group, buffers, ctx.target) for group in groups.values()]
        parts = _parts(trials, set(products))
        texts = [t for trial in trials for t in trial.texts.values()]
        texts += [t for trial in parts.values() for t in trial.texts()]
        device_times.build(texts, ctx.options.autotune_seconds)
        for trial in trials:
            seconds = trial.seconds()
            theirs = seconds.pop(Way.ATEN.value, None)
            log.info("%s: ATen %s, %s", trial.group.name, theirs, json.dumps(seconds))
            trace.count("products_measured")
            ours = inf
            if seconds:
                tiles = chosen(seconds, next(iter(trial.texts)))
                ours = seconds[tiles]
                keep(_kernel_key(trial.group, buffers, ctx), tiles)
                if not kept(_tiles_key(trial.call, ctx)):
                    keep(_tiles_key(trial.call, ctx), tiles)
            p = trial.product()
            if pays_by_rule(p, p.rows, ctx.target.arch) and (p.batch or trial.call.args[1].strides[0] is ONE):
                ruled.add(p)
            if theirs is not None:
                spent.setdefault(p, []).append((ours, theirs))
        made: dict[DeviceProduct, Way] = {}
        for p in products:
            if p in spent:
                made[p] = _quickest(spent[p], parts.get(p), p in ruled, ctx)
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


def _quickest(
    times: Sequence[tuple[float, float]], parts: PartsTrial | None, ruled: bool, ctx: CompileContext
) -> Way:
    """Who is to compute a product; ``ruled``: whether it is the template's by the rule. What follows parts is done by the kernel that adds them: they have to be quicker, without it, than the others with it."""
    ours, theirs = (sum(column) for column in zip(*times, strict=True))
    rule = Way.OURS if ruled else Way.ATEN
    # of kernels that take as long, one is launched sooner than two
    way = (
        Way.OURS
        if ours <= theirs
        else Way(chosen({Way.OURS.value: ours, Way.ATEN.value: theirs}, rule.value))
    )
    best = ours if way is Way.OURS else theirs
    if parts is None:
        return way
    seconds = parts.seconds()
    alone = seconds.pop(Way.ATEN.value, None)
    log.info("%s in %d parts: ATen %s, %s", parts.group.name, parts.count, alone, json.dumps(seconds))
    if alone is None or not seconds:
        return way
    tiles = min(seconds, key=seconds.__getitem__)
    saved = _SAVED_OF_ONE if way is Way.OURS else _SAVED
    if seconds[tiles] > min((1 - _SAVED) * alone, (1 - saved) * best / len(times)):
        return way
    keep(_kernel_key(parts.group, {b.name: b for b in parts.plan.program.buffers}, ctx), tiles)
    return Way.PARTS
