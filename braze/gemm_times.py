"""Which of a GPU's matrix products are the Triton template's, and in which tiles: measured under ``max-autotune``, kept on disk.

A product that nobody has measured on this kind of device is scheduled as a template. Each kernel that comes of it is built in all ways
worth a try, side by side in processes of their own, and timed in turn, as is the same work done by ATen's product and
the kernels around it. What is chosen is kept by kernel and device, and never measured again. Every compile reads what is kept;
only ``max-autotune`` measures.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.fx

from braze.codegen import triton as triton_code
from braze.codegen.records import KernelText
from braze.codegen.triton.gemm import gemm_kernel, shape_of
from braze.codegen.triton.gemm_tiles import Means, Tiles, candidates
from braze.context import CompileContext
from braze.device_times import (
    build,
    can_measure,
    keep,
    kept,
    launcher,
    machine,
    memory_of,
    number,
    recorded_seconds,
)
from braze.graph.products import device_product_of
from braze.loops.ir import Buffer, BufferView, ExternCall, TemplateCall
from braze.options import Options
from braze.products import DeviceProduct, Way, may_take_template
from braze.runtime import cache
from braze.runtime.operators import operator
from braze.schedule import schedule
from braze.schedule.records import Group, Schedule
from braze.schedule.unfused import unfused
from braze.support import trace
from braze.support.errors import BrazeError
from braze.support.log import logger
from braze.target import Target

log = logger("kernels")

#: bytes of right-hand matrices that launches read in turn, so that none is in the cache as it would not be in a model
_COLD = 160 << 20
#: copies of them at most
_MOST = 48
#: of the template: raise it when it becomes quicker, so that what was measured before does not count
_REVISION = 1


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
        build([t for trial in trials for t in trial.texts.values()], ctx.options.autotune_seconds)
        for trial in trials:
            seconds = trial.seconds()
            ours = min((s for name, s in seconds.items() if name != Way.ATEN.value), default=float("inf"))
            theirs = seconds.get(Way.ATEN.value, float("inf"))
            log.info("%s: %s", trial.group.name, json.dumps(seconds))
            trace.count("products_measured")
            if ours < float("inf"):
                best = min((n for n in seconds if n != Way.ATEN.value), key=lambda n: seconds[n])
                keep(_kernel_key(trial.group, buffers, ctx), best)
            spent.setdefault(trial.product(), []).append((ours, theirs))
    made: dict[DeviceProduct, Way] = {}
    for p in products:
        times = spent.get(p)
        if times is not None:
            way = Way.OURS if sum(a for a, _ in times) <= sum(b for _, b in times) else Way.ATEN
            made[p] = way
            keep(_product_key(p, ctx), way.value)
    return made


class Trial:
    """One template's kernel in every way worth a try, and the same work apart."""

    def __init__(self, group: Group, buffers: dict[str, Buffer], target: Target) -> None:
        assert isinstance(group.call, TemplateCall)
        self.target = target
        self.group, self.call, self.buffers = group, group.call, buffers
        self.texts = {t.text(): gemm_kernel(group, buffers, t) for t in candidates(*shape_of(self.call))}

    def product(self) -> DeviceProduct:
        """The product as the graph has it."""
        left, right, *others = self.call.args
        columns = (right.sizes[1].value or 0) * (1 + len(others))
        return DeviceProduct(left.dtype.label, left.sizes[0].value, left.sizes[1].value or 0, columns)

    def seconds(self) -> dict[str, float]:
        """Seconds of each way that runs, by its name."""
        memory = memory_of([self.buffers[n] for n in (*self.group.reads, *self.group.writes)])
        right = self.call.args[1].buffer
        copies = _copies(memory[right])
        spent: dict[str, float] = {}
        ways: dict[str, Callable[[], Callable[[torch.Tensor], None]]] = {
            Way.ATEN.value: lambda: self._apart(memory)
        }
        for name, text in self.texts.items():
            ways[name] = lambda text=text: self._kernel(text, memory)  # type: ignore[misc]
        for name, make in ways.items():
            try:
                run = make()
                spent[name] = recorded_seconds([lambda w=w: run(w) for w in copies])  # type: ignore[misc]
            except (
                RuntimeError,
                BrazeError,
                ValueError,
            ) as error:  # too much shared memory, a kernel that is not built
                log.info("%s as %s is left out: %s", self.group.name, name, error)
            except Exception as error:
                if type(error).__module__.split(".")[0] != "triton":
                    raise
                log.info("%s as %s is left out: %s", self.group.name, name, error)
        return spent

    def _kernel(self, text: KernelText, memory: Mapping[str, torch.Tensor]) -> Callable[[torch.Tensor], None]:
        launch, right = launcher(text), self.call.args[1].buffer
        return lambda matrix: launch(*(matrix if a == right else memory[a] for a in text.args))

    def _apart(self, memory: Mapping[str, torch.Tensor]) -> Callable[[torch.Tensor], None]:
        """The product by ATen, with kernels before and after."""
        program = unfused(self.call, self.buffers)
        ctx = CompileContext(Options(matmul_template=False), self.target)
        plan = schedule(program, ctx)
        made = {b.name: b for b in plan.program.buffers}
        own = {**memory_of([b for b in made.values() if b.name not in memory]), **memory}
        texts = {t.name: t for t in triton_code.generate(plan, ctx)}
        launches = {name: launcher(text) for name, text in texts.items()}
        right = self.call.args[1].buffer

        def run(matrix: torch.Tensor) -> None:
            at = {**own, right: matrix}
            for group in plan.groups:
                if isinstance(group.call, ExternCall):
                    a, b = (_viewed(at, v) for v in group.call.args)
                    operator(group.call.out_variant)(a, b, out=at[group.call.outputs[0]])
                else:
                    launches[group.name](*(at[name] for name in texts[group.name].args))

        return run


def _viewed(memory: Mapping[str, torch.Tensor], v: BufferView) -> torch.Tensor:
    sizes, strides = [number(e) for e in v.sizes], [number(e) for e in v.strides]
    return memory[v.buffer].as_strided(sizes, strides, number(v.offset))


def _copies(matrix: torch.Tensor) -> list[torch.Tensor]:
    size = max(matrix.numel() * matrix.element_size(), 1)
    count = max(2, min(_MOST, -(-_COLD // size)))
    return [matrix, *(matrix.clone() for _ in range(count - 1))]
