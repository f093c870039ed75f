"""One matrix product of a GPU in every way worth a try, run and timed: the template's kernels, the same work apart, its sum in parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Protocol

import torch

from braze.autotune import device_times
from braze.autotune.device_times import (
    alike,
    chosen,
    fill,
    is_refusal,
    launcher,
    memory_of,
    number,
    seconds_in_turn,
)
from braze.codegen import triton as triton_code
from braze.codegen.records import KernelText
from braze.codegen.triton.gemm import gemm_kernel, tiles_of
from braze.context import CompileContext
from braze.graph.operators.products import layout_of
from braze.graph.private.torch_compat import is_out_of_memory
from braze.loops import build
from braze.loops.ir import (
    Axis,
    Buffer,
    BufferKind,
    BufferView,
    DType,
    ExternCall,
    LoopProgram,
    Store,
    TemplateCall,
)
from braze.options import Options
from braze.products import DeviceProduct, Way, parts_of
from braze.runtime.operators.operators import operator
from braze.schedule import schedule
from braze.schedule.facts.records import Group, Schedule
from braze.schedule.rewrites.long_sums import in_parts, product_of_call
from braze.schedule.rewrites.unfused import product_apart, unfused
from braze.support import trace
from braze.support.log import logger
from braze.symbolic.expr import ONE, ZERO, axis_symbol, linear
from braze.target import Target

log = logger("kernels")

#: bytes of right-hand matrices that launches read in turn, so that none is in the cache as it would not be in a model
_COLD = 160 << 20
#: copies of them at most
_MOST = 48
#: launches in one recording at least
_LEAST = 4

#: does the work once, with the right-hand matrix that it is given
Run = Callable[[torch.Tensor], None]


def is_template(group: Group, kind: str) -> bool:
    """Whether a group is a template's call of a kind on a GPU."""
    return isinstance(group.call, TemplateCall) and group.call.kind == kind and group.device != "cpu"


class TemplateTrial:
    """One template's kernel in every cut worth a try, and the same work apart (``_apart``).

    ``cold``: the buffer that launches read in turn, so that none finds it in the cache.
    """

    def __init__(
        self, group: Group, buffers: dict[str, Buffer], cold: str, texts: dict[str, KernelText]
    ) -> None:
        assert isinstance(group.call, TemplateCall)
        self.group, self.call, self.buffers = group, group.call, buffers
        self.cold, self.texts = cold, texts

    def seconds(self) -> dict[str, float]:
        """Seconds of each way that runs and gives ATen's results, by its name; nothing where memory does not suffice."""
        ways: dict[str, Callable[[Mapping[str, torch.Tensor]], Run]] = {Way.ATEN.value: self._apart}
        for name, text in self.texts.items():
            ways[name] = lambda memory, text=text: self._kernel(text, memory)  # type: ignore[misc]
        names = dict.fromkeys((*self.group.reads, *self.group.writes))
        buffers = [replace(self.buffers[n], kind=BufferKind.TEMPORARY) for n in names]
        return timed(self.group.name, buffers, self.cold, self.group.writes, ways)

    def _kernel(self, text: KernelText, memory: Mapping[str, torch.Tensor]) -> Run:
        launch, cold = launcher(text), self.cold
        return lambda given: launch(*(given if a == cold else memory[a] for a in text.args))

    def _apart(self, memory: Mapping[str, torch.Tensor]) -> Run:
        raise NotImplementedError


class Trial(TemplateTrial):
    """A matrix product's."""

    def __init__(self, group: Group, buffers: dict[str, Buffer], target: Target) -> None:
        assert isinstance(group.call, TemplateCall)
        texts = {t.text(): gemm_kernel(group, buffers, t) for t in tiles_of(group.call)}
        super().__init__(group, buffers, group.call.args[1].buffer, texts)
        self.target = target

    def product(self) -> DeviceProduct:
        """The product as the graph has it."""
        left, right, *others = self.call.args
        rows, inner = (e.value for e in left.sizes[-2:])
        columns = (right.sizes[-1].value or 0) * (1 + len(others))
        if self.call.batch is None:
            return DeviceProduct(left.dtype.label, rows, inner or 0, columns)
        layout = layout_of(*([e.value or 0 for e in v.strides] for v in (left, right)))
        return DeviceProduct(left.dtype.label, rows, inner or 0, columns, left.sizes[0].value or 0, layout)

    def _apart(self, memory: Mapping[str, torch.Tensor]) -> Run:
        """The product by ATen, with kernels before and after."""
        ctx = CompileContext(Options(matmul_template=False), self.target)
        plan = schedule(unfused(self.call, self.buffers), ctx)
        return run_of(plan, memory, self.cold, ctx)


class PartsTrial:
    """The product of a template's call alone: its sum in parts, which are cut in every way worth a try, and by ATen."""

    def __init__(self, call: TemplateCall, buffers: dict[str, Buffer], target: Target) -> None:
        product, right = product_apart(call)
        left = call.args[0]
        self.out, self.views = product.name, (left, right)
        m, columns = call.axes[0], product.sizes[1]
        axes = (m, Axis(axis_symbol("n", columns), columns))
        index = linear([ZERO if a.extent is ONE else a.symbol for a in axes], product.strides, ZERO)
        store = Store(product.name, index, build.cast(build.reduced(0, DType.F32), product.dtype))
        plain = TemplateCall(call.name, "gemm", self.views, axes, (store,), False, call.device, ("mm",))
        wanted = product_of_call(plain)
        assert wanted is not None, "a product of known sizes"
        self.count = parts_of(wanted, target.cores)
        self.ctx = CompileContext(Options(), target)
        template, added, between = in_parts(plain, self.count)
        given = [replace(buffers[v.buffer], kind=BufferKind.INPUT) for v in self.views]
        made = replace(product, kind=BufferKind.OUTPUT)
        output = BufferView(made.name, made.sizes, made.strides, ZERO, made.dtype)
        names = tuple(b.name for b in given)
        self.plan = schedule(
            LoopProgram("parts", (*given, between, made), (template, added), names, (output,)), self.ctx
        )
        self.group = next(g for g in self.plan.groups if isinstance(g.call, TemplateCall))
        assert isinstance(self.group.call, TemplateCall)
        self.tiles = [t.text() for t in tiles_of(self.group.call)]

    def texts(self) -> list[KernelText]:
        """The kernels of all ways."""
        return list(
            dict.fromkeys(x for t in self.tiles for x in triton_code.generate(self.plan, self._cut(t)))
        )

    def _cut(self, tiles: str) -> CompileContext:
        return replace(self.ctx, tiles=((self.group.name, tiles),))

    def seconds(self) -> dict[str, float]:
        """Seconds of ATen's product, and of the parts in each way that runs and gives the same, by the tiles' name."""
        right = self.views[1].buffer
        ways: dict[str, Callable[[Mapping[str, torch.Tensor]], Run]] = {Way.ATEN.value: self._aten}
        for name in self.tiles:
            ways[name] = lambda memory, t=name: run_of(self.plan, memory, right, self._cut(t))  # type: ignore[misc]
        buffers = [self.plan.buffer(name) for name in (*self.plan.program.inputs, self.out)]
        return timed(self.group.name, buffers, right, (self.out,), ways)

    def _aten(self, memory: Mapping[str, torch.Tensor]) -> Run:
        left, right = self.views
        function = operator("aten.mm.out")

        def run(matrix: torch.Tensor) -> None:
            at = {**memory, right.buffer: matrix}
            function(viewed(at, left), viewed(at, right), out=memory[self.out])

        return run


def timed(
    what: str,
    buffers: Sequence[Buffer],
    right: str,
    written: Sequence[str],
    ways: Mapping[str, Callable[[Mapping[str, torch.Tensor]], Run]],
) -> dict[str, float]:
    """Seconds of each way that runs, and gives what the first gives; nothing where memory does not suffice."""
    try:
        memory = memory_of(buffers)
        for tensor in memory.values():
            fill(tensor)
        copies = _copies(memory[right])
        runs = _that_run(what, memory, copies[0], written, ways)
        return seconds_in_turn({n: [lambda r=r, w=w: r(w) for w in copies] for n, r in runs.items()}, _LEAST)  # type: ignore[misc]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        log.info("%s is not measured: %s", what, error)
        return {}


def _that_run(
    what: str,
    memory: Mapping[str, torch.Tensor],
    right: torch.Tensor,
    written: Sequence[str],
    ways: Mapping[str, Callable[[Mapping[str, torch.Tensor]], Run]],
) -> dict[str, Run]:
    """The ways that run and give what the first gives."""
    found: dict[str, Run] = {}
    wanted: list[torch.Tensor] | None = None
    for name, make in ways.items():
        try:
            run = make(memory)
            for out in written:
                fill(memory[out])
            run(right)
            made = [memory[out].clone() for out in written]
            wanted = made if wanted is None else wanted
            if not all(alike(ours, theirs, right.dtype) for ours, theirs in zip(made, wanted, strict=True)):
                log.warning("%s as %s is left out: it gives other results", what, name)
                continue
            found[name] = run
        except Exception as error:  # too much shared memory, a kernel that is not built
            if is_out_of_memory(error) or not is_refusal(error):
                raise
            log.info("%s as %s is left out: %s", what, name, error)
    return found


class Timed(Protocol):
    """A trial of what ``of`` says, in kernels of several cuts and by ATen."""

    texts: dict[str, KernelText]

    @property
    def of(self) -> Any: ...

    @property
    def group(self) -> Group: ...

    def seconds(self) -> dict[str, float]: ...


def measured(
    kind: str,
    missing: Sequence[Any],
    planned: Schedule,
    trial: Callable[[Group, dict[str, Buffer]], Timed],
    ruled: Callable[[Any], str],
    budget: float,
) -> dict[Any, str]:
    """Who is to do each that is missing, in which cut: the quickest in all kernels of the plan that have one as a template of that kind."""
    buffers = {b.name: b for b in planned.program.buffers}
    with trace.stage("measure"), torch.no_grad(), torch.autocast("cuda", enabled=False):
        # kernels with the same texts are one
        every = (trial(g, buffers) for g in planned.groups if is_template(g, kind))
        found = {next(iter(t.texts.values())).canonical: t for t in every}
        trials = [t for t in found.values() if t.of in missing]
        device_times.build([text for t in trials for text in t.texts.values()], budget)
        made = _quickest(trials, ruled)
        trace.count("products_measured", len(trials))
    return made


def _quickest(trials: Iterable[Timed], ruled: Callable[[Any], str]) -> dict[Any, str]:
    """The way of each that trials are of that is the quickest in all of its kernels, unless the rule's is about as quick; without those that ATen could not do."""
    spent: dict[Any, list[dict[str, float]]] = {}
    for trial in trials:
        seconds = trial.seconds()
        log.info("%s: %s", trial.group.name, json.dumps(seconds))
        if Way.ATEN.value in seconds:
            spent.setdefault(trial.of, []).append(seconds)
    made = {}
    for of, times in spent.items():
        total = {name: sum(t.get(name, inf) for t in times) for name in times[0]}
        made[of] = chosen(total, ruled(of))
    return made


def run_of(plan: Schedule, memory: Mapping[str, torch.Tensor], right: str, ctx: CompileContext) -> Run:
    """The kernels and calls of a schedule, one after the other."""
    made = {b.name: b for b in plan.program.buffers}
    own = {**memory_of([b for b in made.values() if b.name not in memory]), **memory}
    texts = {t.name: t for t in triton_code.generate(plan, ctx)}
    launches = {name: launcher(text) for name, text in texts.items()}

    def run(matrix: torch.Tensor) -> None:
        at = {**own, right: matrix}
        for group in plan.groups:
            if isinstance(group.call, ExternCall):
                given = (viewed(at, v) for v in group.call.args)
                (output,) = group.call.outputs
                if group.call.out_variant:
                    operator(group.call.out_variant)(*given, out=at[output])
                else:
                    at[output] = operator(group.call.target)(*given)
                    # for who compares; in recordings, which are timed, ATen's own memory is as good
                    recording = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
                    if output in memory and not recording:
                        memory[output].copy_(at[output])
            else:
                launches[group.name](*(at[name] for name in texts[group.name].args))

    return run


def viewed(memory: Mapping[str, torch.Tensor], v: BufferView) -> torch.Tensor:
    sizes, strides = [number(e) for e in v.sizes], [number(e) for e in v.strides]
    return memory[v.buffer].as_strided(sizes, strides, number(v.offset))


def _copies(matrix: torch.Tensor) -> list[torch.Tensor]:
    size = max(matrix.numel() * matrix.element_size(), 1)
    count = max(2, min(_MOST, -(-_COLD // size)))
    return [matrix, *(matrix.clone() for _ in range(count - 1))]
