"""Every stage in order: from a torch-level graph to a function that runs its kernels.

What only a GPU's graphs need is imported where the first of them comes by.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch.fx

import braze
from braze import aot, decomp, small_steps
from braze.aot.facts.records import InputRole, Partition
from braze.aot.passes.chunked_losses import chunk_losses
from braze.autotune.product_times import measured_products
from braze.codegen import c as c_code
from braze.codegen.host import CUnits, footprint, generate_host
from braze.codegen.records import HostModule, KernelText
from braze.context import CompileContext
from braze.cudagraphs.plan import Plans
from braze.graph.calls.flex_ops import entries_of as attentions_of
from braze.graph.fakes.fakes import sizes_tell_strides
from braze.graph.operators.modes import with_modes
from braze.graph.private.holders import held_once
from braze.graph.private.torch_compat import dispatch_modes, is_shortage, leave_modes
from braze.graph_calls import (
    Later,
    keeping,
    run_eagerly,
    viewed_items,
    with_attributes,
    with_floats,
    with_inputs_written,
    with_subgraphs,
)
from braze.loops.dtypes import TORCH_NAME
from braze.loops.ir import BufferView, ExternCall, LoopProgram
from braze.loops.printer import print_program
from braze.loops.verify import require_fresh_writes, verify
from braze.lower.stage.program import lower
from braze.recorded_calls import Cutter, Recorder, for_recording, padded, recorder
from braze.recording_plans import Division, batch_of, divided, operators_of
from braze.runtime.call import loader
from braze.runtime.call.boxed import Boxed
from braze.runtime.libraries import build, cache
from braze.runtime.memory import heap
from braze.runtime.memory.arena import ArenaPool, pool_of
from braze.runtime.triton.kernel_facts import KernelWork
from braze.schedule import schedule
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.printer import GroupReport, print_schedule, report
from braze.schedule.facts.records import Schedule
from braze.schedule.facts.work import compiled_groups, work_of
from braze.support import trace
from braze.support.collector import collector_paused
from braze.support.errors import BrazeError, InternalError, Unsupported
from braze.support.log import logger, warn
from braze.support.record import record
from braze.symbolic.expr import Expr
from braze.target import cpu_target


@record
class CompiledInfo:
    """What a compile came to, for ``explain``. ``fixed``: kernels and calls that run only when a constant changes."""

    name: str
    kernels: tuple[str, ...]
    externs: tuple[str, ...]
    groups: tuple[GroupReport, ...]
    arena_bytes: str
    seconds: float
    fixed: tuple[str, ...] = ()


def compile_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], ctx: CompileContext
) -> Callable[..., Any]:
    """What the default backend does: ``gm`` as ``call(inputs)`` that runs kernels of ours."""
    ctx = for_recording(ctx)
    if ctx.target.kind == "cuda":
        from braze.runtime.triton import triton_load

        if why := triton_load.unusable(ctx.target.arch):
            raise Unsupported("BZ5011", "no kernels on this GPU", why=why)
        shapes = [getattr(value, "shape", None) for value in example_inputs]
        triton_load.expect(f"{gm.code}\n{shapes}", len(gm.graph.nodes))
    with collector_paused:
        partition = partition_graph(gm, example_inputs, ctx)
        half = of_forward(ctx) if partition.backward is not None else ctx
        try:
            made = scheduled(partition, half) if small_steps.may_be_left(gm, partition, ctx) else None
            if made is not None and is_carried_as_well(gm, partition, made[1], ctx):
                trace.count("steps_left_to_autograd")
                logger("aot").info("%s runs as captured: kernels would do too little of it", ctx.name)
                return small_steps.as_captured(gm)
            call = compile_partition(partition, half, made)
        except BrazeError as error:
            if error.code != "BZ5001":
                raise
            return run_eagerly(gm, error)
        if partition.backward is not None:
            call = aot.differentiable(
                partition,
                call,
                lambda backward: compile_backward(dataclasses.replace(partition, backward=backward), ctx),
                by_tangents=True,
                name=ctx.label,
            )
        return aot.wrap(partition, call, eager=gm.forward, verify=ctx.options.verify)


def is_carried_as_well(
    gm: torch.fx.GraphModule, partition: Partition, forward: Schedule, ctx: CompileContext
) -> bool:
    """Whether eager's nodes carry a step as well as one of ours, by the schedules of its halves."""
    backward = aot.backward_partition(partition)
    modules = partition.forward, backward.forward
    work = small_steps.work_of(partition.forward, forward)

    @functools.cache
    def of_backward_half() -> Schedule:
        return scheduled(backward, of_backward(ctx))[1]

    try:
        on_gpu = ctx.target.kind == "cuda"
        if small_steps.is_one_each_way(gm):
            return True
        if on_gpu and small_steps.is_as_quick_on_gpu(
            gm, partition, forward, of_backward_half, ctx.target.costs
        ):
            return True
        if not small_steps.is_little(work, modules):
            return False
        work += small_steps.work_of(backward.forward, of_backward_half())
    except (Unsupported, InternalError):  # said when it runs
        return False
    return small_steps.is_little(work, modules)


def compile_backward(partition: Partition, ctx: CompileContext) -> Boxed:
    """The backward graph of a partition as ``call(saved and tangents) -> gradients``.

    Where that cannot be had, the graph runs operator by operator: the forward has run by now.
    """
    assert partition.backward is not None
    named = of_backward(ctx)
    uncompiled = aot.eager_forward(partition.backward.graph)

    def compiled() -> Boxed:
        modes = dispatch_modes()
        try:
            with collector_paused:
                return compile_partition(aot.backward_partition(partition), named)
        finally:
            leave_modes(modes)

    start = time.perf_counter()
    try:
        return compiled()
    except (Unsupported, InternalError) as error:
        if ctx.options.verify and isinstance(error, InternalError):
            raise
        trace.count("graphs_run_as_captured")
        warn(f"BZ6015: {named.name} runs operator by operator, through ATen.\n{error}", "aot")
        return uncompiled
    except Exception as error:
        if not is_shortage(error):
            raise
        later = Later(named.name, compiled, uncompiled)
        later.note(start, error)
        return later


def of_forward(ctx: CompileContext) -> CompileContext:
    """The context of a forward that a backward follows."""
    return dataclasses.replace(ctx, lean=True)


def of_backward(ctx: CompileContext) -> CompileContext:
    """The context of a backward."""
    name, label = f"{ctx.name}_backward", f"{ctx.label} backward"
    return dataclasses.replace(of_forward(ctx), name=name, label=label, consumes=True)


def compile_partition(
    partition: Partition, ctx: CompileContext, made: tuple[LoopProgram, Schedule] | None = None
) -> Boxed:
    """The forward graph of a partition as ``call(inputs) -> outputs``; ``made``: what ``scheduled`` gave for it, if it was asked."""
    start = time.perf_counter()
    program, plan = made or scheduled(partition, ctx)
    if trace.collecting() and (ctx.consumes or partition.backward is not None):
        trace.emit("peak", peak_of_half(partition, plan, ctx))
    if ctx.options.cudagraphs:
        call = recorded_call(partition, program, plan, ctx)
    else:
        known = aot.likely_sizes(partition)
        call = load_code(generate_code(plan, ctx, known), ctx, known=known, plan=plan)
    if not ctx.consumes:
        call = aot.with_own_results(partition, call, viewed_items(program, ctx))
    if ctx.consumes and ctx.options.arena and program.device == "cpu":
        heap.keep(result_bytes(partition))
    call = with_inputs_written(call, program, plan.memory.renewed, partition)
    call = with_attributes(call, partition.forward, program.attributes, ctx.consumes)
    call = with_floats(call, partition, program, ctx.consumes)
    call = with_subgraphs(call, partition, lambda gm: compile_subgraph(gm, ctx))
    call = with_attention(call, partition, ctx)
    trace.emit("compiled", info(plan, ctx, time.perf_counter() - start))
    return call


def result_bytes(partition: Partition) -> int:
    """The bytes of a partition's results, but those of sizes that only a call tells."""
    results = (x.meta["val"] for x in partition.forward.graph.output_node().all_input_nodes)
    sizes = (x.numel() * x.element_size() for x in results if isinstance(x, torch.Tensor))
    return sum(bytes for bytes in sizes if isinstance(bytes, int))


def scheduled(partition: Partition, ctx: CompileContext) -> tuple[LoopProgram, Schedule]:
    """A partition's forward graph as loops, and these as kernels: with writes to inputs in place, if they stand proof."""
    parameters = [role is InputRole.PARAMETER for role in partition.input_roles]
    products = measured_products(partition.forward.graph, parameters, ctx)
    ctx = dataclasses.replace(ctx, products=products)
    if ctx.target.kind == "cuda":
        from braze.autotune.depthwise_times import with_depthwise
        from braze.autotune.gemm_times import with_products
        from braze.autotune.grouped_times import with_grouped

        def plan(c: CompileContext) -> Schedule:
            return schedule(lower(partition, c), c)

        graph = partition.forward.graph
        ctx = with_grouped(graph, plan, with_products(graph, plan, ctx))
        ctx = with_depthwise(graph, plan, ctx)
    program = lower_graph(partition, ctx)
    try:
        return program, schedule_program(program, ctx)
    except InternalError as error:
        if error.code != "BZ9006" or ctx.options.verify:
            raise
    trace.count("writes_in_place_disproved")
    program = lower_graph(partition, ctx, in_place=False)
    return program, schedule_program(program, ctx)


def recorded_call(partition: Partition, program: LoopProgram, plan: Schedule, ctx: CompileContext) -> Boxed:
    """The call of a schedule, divided into what is recorded and what is not."""
    borrowable = partition.backward is None and not ctx.consumes

    host: HostModule | None = None

    def make(failing: Mapping[str, str], cutter: Cutter) -> tuple[Boxed, Division]:
        nonlocal host
        division = divided(partition, plan, ctx, failing)
        record = Recorder(division, ctx, cutter, borrowable=borrowable)
        known = aot.likely_sizes(partition)
        host = generate_code(division.schedule, ctx, known)
        return record.whole(load_code(host, ctx, record.part, known=known, plan=division.schedule)), division

    cutter = Cutter(make, operators_of(plan))
    if cutter.division.recorded and isinstance(ctx.options.cudagraph_sizes, tuple):
        return padded(cutter.first(), batch_of(partition, program), program.device, ctx)
    call = cutter.first()
    if ctx.recorder is not None:  # who keeps the call: others record it, so that it is never cut anew
        call.host, call.plans = host, cutter.division.plans  # type: ignore[attr-defined]
    return call


def compile_subgraph(gm: torch.fx.GraphModule, ctx: CompileContext) -> Callable[..., Any] | None:
    """A subgraph as a function of its inputs; None where a stage cannot carry it."""
    examples = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    if not sizes_tell_strides(examples):
        return None
    try:
        call = compile_graph(gm, examples, dataclasses.replace(ctx, name=f"{ctx.name}_part", consumes=False))
    except Unsupported as error:
        warn(f"a subgraph of {ctx.name} runs eagerly, as captured.\n{error}", "aot")
        return None
    return lambda *inputs: call(inputs)


def with_attention(call: Boxed, partition: Partition, ctx: CompileContext) -> Boxed:
    """``call`` with kernels for its flex_attention, kept alive; what no kernel can be made of runs by PyTorch's operators."""
    entries = attentions_of(partition.forward.graph)
    if not entries:
        return call
    from braze.flex_kernels import attach

    inner = dataclasses.replace(ctx, name=f"{ctx.name}_function", consumes=False)

    def lowered(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> LoopProgram:
        return lower_graph(partition_graph(gm, examples, inner), inner)

    for entry in entries:
        try:
            with torch.no_grad():
                attach(entry, lowered, ctx.consumes or partition.backward is not None)
        except Unsupported as error:
            warn(
                f"flex_attention in {ctx.name} runs by PyTorch's operators, all scores in memory.\n{error}",
                "aot",
            )
    return keeping(call, entries)


def partition_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], ctx: CompileContext
) -> Partition:
    """Trace to ATen, functionalize, decompose."""
    if trace.dumping():
        trace.dump(f"{ctx.name}_graph", "py", gm.print_readable(print_output=False))
    gm = chunk_losses(gm, ctx.options.chunk_losses)
    table = decomp.table(dict(ctx.options.decompositions), eager_random=ctx.options.fallback_random)
    return aot.partition(
        gm,
        example_inputs,
        ctx,
        table,
        free_layouts=ctx.options.channels_last is not False,
        keeps=Choices(ctx.options, ctx.target.costs).worth_a_look,
        weigh=lambda partition: peak_of(partition, ctx),
        between=True,
    )


def peak_of(partition: Partition, ctx: CompileContext) -> int | None:
    """The most bytes that both halves of a partition take, as they would be scheduled; None where a stage cannot carry one."""
    try:
        return max(
            peak_of_half(half, schedule(lower(half, within), within), within)
            for half, within in (
                (partition, of_forward(ctx)),
                (aot.backward_partition(partition), of_backward(ctx)),
            )
        )
    except (Unsupported, InternalError) as error:
        logger("aot").info("a division cannot be weighed: %s", error)
        return None


def peak_of_half(half: Partition, plan: Schedule, ctx: CompileContext) -> int:
    """The most bytes that a scheduled half takes, beside its inputs but those that it alone holds."""
    return footprint(plan, ctx, aot.likely_sizes(half), half.beside)


def lower_graph(partition: Partition, ctx: CompileContext, *, in_place: bool = True) -> LoopProgram:
    """ATen to loops."""
    program = lower(partition, ctx, in_place=in_place)
    if trace.dumping():
        trace.dump(f"{ctx.name}_loops", "py", print_program(program))
    if ctx.options.verify:
        verify(program)
    else:
        require_fresh_writes(program)
    return program


def schedule_program(program: LoopProgram, ctx: CompileContext) -> Schedule:
    """Loops to groups, in order, with their memory."""
    with trace.stage("schedule"):
        plan = schedule(program, ctx)
    if trace.dumping():
        trace.dump(f"{ctx.name}_schedule", "txt", print_schedule(plan))
    log = logger("schedule")
    if log.isEnabledFor(20):
        log.info("%s", print_schedule(plan))
    return plan


def generate_code(
    plan: Schedule, ctx: CompileContext, known: Mapping[str, int] = MappingProxyType({})
) -> HostModule:
    """Groups to kernels, and the module that calls them. ``known``: what sizes are likely to be, by name, for who asks what kernels do."""
    with trace.stage("codegen"):
        on_cpu = ctx if ctx.target.kind == "cpu" else dataclasses.replace(ctx, target=cpu_target())
        plans = [part.schedule for part in plan.parts] or [plan]
        plans += [plan.fixed] if plan.fixed is not None else []
        if ctx.target.kind == "cuda":
            from braze.autotune.depthwise_times import with_strips
            from braze.autotune.gemm_times import with_tiles
            from braze.autotune.grouped_times import with_grouped_tiles
            from braze.autotune.kernel_times import with_tilings

            ctx = with_grouped_tiles(plans, with_tiles(plans, ctx))
            ctx = with_tilings(plans, with_strips(plans, ctx))
        kernels = tuple(k for p in plans for k in (*c_code.generate(p, on_cpu), *triton_kernels(p, ctx)))
        host = generate_host(plan, kernels, ctx, CUnits(c_code.assemble, c_code.split))
    if trace.collecting():
        trace.emit("work", work(plan, kernels, ctx.label, known))
    trace.dump(f"{ctx.name}_host", "py", host.source)
    for k, unit in enumerate(host.units):
        trace.dump(f"{ctx.name}_kernels{k}", "c", unit)
    texts = [text for text in kernels if text.language == "triton"]
    for text in texts:
        trace.dump(f"{ctx.name}_{text.name}", "py", text.source)
    told = host.source, *(text.source for text in texts), *host.units
    logger("output_code").info("%s", "\n".join(told))
    return host


def work(
    plan: Schedule, kernels: Sequence[KernelText], graph: str, known: Mapping[str, int]
) -> tuple[KernelWork, ...]:
    """What each kernel does in a call, in order. Equal ones are launched as the first of them."""
    texts = {text.name: text for text in kernels}
    same: dict[str, str] = {}
    rows = []
    for group, buffers in compiled_groups(plan):
        text, does = texts[group.name], work_of(group, buffers, known)
        function = same.setdefault(text.canonical or text.source, text.name)
        path = str(cache.source_file(texts[function].source)) if text.language == "triton" else ""
        done = does.read, does.written, does.operations, does.flops, does.product
        rows.append(KernelWork(graph, group.name, function, group.device, *done, path))
    return tuple(rows)


def triton_kernels(plan: Schedule, ctx: CompileContext) -> tuple[KernelText, ...]:
    """The kernels of a schedule's groups on a GPU."""
    if all(group.device == "cpu" for group in plan.groups):
        return ()
    from braze.codegen import triton

    return triton.generate(plan, ctx)


def whole(number: int, call: Boxed) -> Boxed:
    """A part of a call as it is."""
    return call


def load_code(
    host: HostModule,
    ctx: CompileContext,
    part: Callable[[int, Boxed], Boxed] = whole,
    *,
    known: Mapping[str, int] = MappingProxyType({}),
    plan: Schedule | None = None,
) -> Boxed:
    """Build what the cache does not have, load it, bind the host module.

    ``known``: what sizes are likely to be, by name; ``plan``: what the module was written of, where that is at hand.
    """
    library = None
    if host.units:
        with trace.stage("build"), build.this_machine():
            path = library_file(host)
        with trace.stage("load"), build.this_machine():
            library = build.load(str(path))
    with trace.stage("load"):
        triton = load_triton([k for k in host.kernels if k.launch is not None], host.device, known, plan)
        pool = pool_of(host.device) if ctx.options.arena else ArenaPool(keep=False, device=host.device)
        device = recorder(host.device)
        launches = device if ctx.options.cudagraphs or ctx.recordable else None
        turns = device.lock if device is not None else None
        graphs = ctx.options.launch_graphs
        runtime = loader.Runtime(library, pool, triton, held_once(), launches, part, turns, graphs)
        call: Boxed = loader.load_host(host.name, host.source, runtime)
        call = with_modes(call) if host.calls_aten else call
    call.host = host  # type: ignore[attr-defined]  # all that it is made of, for who keeps it
    return call


def load_kept(host: HostModule, ctx: CompileContext, plans: Plans | None) -> Boxed:
    """The call of a host module that another process has made for a machine like this; ValueError where it is for another.

    ``plans``: what of it the context's recorder records.
    """
    ctx = for_recording(ctx)
    if host.target != ctx.target.arch:
        raise ValueError(f"kernels for {host.target}, and this is {ctx.target.arch}")
    if ctx.target.kind == "cuda":
        from braze.runtime.triton import triton_load

        if why := triton_load.unusable(ctx.target.arch):
            raise ValueError(why)
    if plans is None:
        return _loaded_again(host, ctx)
    if ctx.recorder is None:
        raise ValueError("it is recorded, and nobody is there to record it")
    record, parts = ctx.recorder, dict(plans.parts)

    def part(number: int, call: Boxed) -> Boxed:
        return record(call, parts[number]) if number in parts else call

    call = _loaded_again(host, ctx, part)
    return call if plans.whole is None else record(call, plans.whole)


def _loaded_again(
    host: HostModule, ctx: CompileContext, part: Callable[[int, Boxed], Boxed] = whole
) -> Boxed:
    try:
        return load_code(host, ctx, part)
    except Unsupported as error:  # kernels that this machine refuses
        raise ValueError(str(error)) from error


def load_triton(
    kernels: Sequence[KernelText], device: str, known: Mapping[str, int], plan: Schedule | None
) -> dict[str, Callable[..., None]]:
    """The launchers of Triton kernels by name. They are built when it returns, with what operators of ours launch for known sizes."""
    calls = calls_with_kernels(plan) if plan is not None else []
    if not kernels and not calls:
        return {}
    from braze.autotune.device_times import job_of
    from braze.runtime.triton import triton_load

    ahead = triton_load.ahead()
    launches = []
    jobs = []
    for kernel in kernels:
        launch = kernel.launch
        assert launch is not None
        job = job_of(kernel)
        launches.append(triton_load.launch_of(job, kernel.sizes, launch.grid, ahead))
        jobs.append((job, kernel.sizes))
    found = {launch.job.name: launch.launcher() for launch in launches}
    if ahead is not None and device != "cpu":
        with trace.stage("build"):
            ahead.add(jobs)
            wanted = [each for call in calls for each in launched_by(call, torch.device(device))]
            shared = triton_load.begin_shared(wanted, ahead)
            triton_load.require_ready([*triton_load.with_sizes(launches, known), *shared], device)
    return found


def calls_with_kernels(plan: Schedule) -> list[ExternCall]:
    """The calls of operators of ours that launch kernels."""
    if plan.program.device == "cpu":
        return []
    from braze.runtime.triton.triton_load import LAUNCHED

    plans = [part.schedule for part in plan.parts] or [plan]
    calls = (group.call for p in plans for group in p.groups)
    return [call for call in calls if isinstance(call, ExternCall) and call.target in LAUNCHED]


def launched_by(
    call: ExternCall, device: torch.device
) -> Sequence[tuple[Callable[..., None], tuple[int, ...]]]:
    """The kernels that such a call launches, with their numbers; none where a size is not known yet."""
    from braze.runtime.triton.triton_load import LAUNCHED

    arguments: list[Any] = []
    for value in call.args:
        sizes = value.sizes if isinstance(value, BufferView) else (value,) if isinstance(value, Expr) else ()
        known = tuple(size.value for size in sizes if size.value is not None)
        if len(known) < len(sizes):
            return ()
        if isinstance(value, BufferView):
            value = torch.empty(known, dtype=getattr(torch, TORCH_NAME[value.dtype]), device="meta")
        arguments.append(known[0] if isinstance(value, Expr) else value)
    return LAUNCHED[call.target](device, *arguments)


def library_file(host: HostModule) -> Any:
    """The shared library of a host module, from the cache or the compiler."""
    key = cache.key(
        "kernels",
        source="\0".join(host.units),
        flags=build.flags(host.target),
        target=host.target,
        compiler=build.compiler_id(),
        braze=getattr(braze, "__version__", "0"),
    )

    def make() -> bytes:
        trace.count("kernels_built", len(host.kernels))
        return build.build_c(host.units, host.target)

    return cache.DiskCache().file(key, make, "so")


def info(plan: Schedule, ctx: CompileContext, seconds: float) -> CompiledInfo:
    """The record of one compile."""
    groups = report(plan)
    externs = tuple(g.call.target for g in plan.groups if isinstance(g.call, ExternCall))
    kernels = tuple(g.name for g in plan.groups if not isinstance(g.call, ExternCall))
    fixed = tuple(g.name for g in plan.fixed.groups) if plan.fixed is not None else ()
    return CompiledInfo(ctx.name, kernels, externs, groups, str(plan.memory.arena_bytes), seconds, fixed)
