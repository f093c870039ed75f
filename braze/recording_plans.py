"""What a recorder of calls must know of a compiled graph: its inputs' roles and sizes, and what of it no recording can hold."""

from __future__ import annotations

import torch

from braze.aot.records import InputRole, Partition
from braze.codegen.host.externs import overload, scalar_arguments
from braze.context import CompileContext
from braze.cudagraphs.plan import Plan, Refusal
from braze.graph.specs import SymbolSpec, TensorSpec
from braze.graph.subgraph_ops import entries_of
from braze.loops.ir import BufferView, ExternCall, LoopProgram
from braze.runtime.purity import may_draw
from braze.schedule.records import Schedule


def recording_plan(partition: Partition, program: LoopProgram, plan: Schedule, ctx: CompileContext) -> Plan:
    """What a recorder must know of a graph's call."""
    specs, names = partition.inputs, program.inputs
    tensors = tuple(i for i, spec in enumerate(specs) if not isinstance(spec, SymbolSpec))
    held = range(len(specs), len(names))
    layouts = {i: (s.sizes, s.strides) for i, s in enumerate(specs) if isinstance(s, TensorSpec)}
    sizes = [(i, d) for i, (n, _) in layouts.items() for d, size in enumerate(n) if isinstance(size, str)]
    sizes += [(i, -1) for i, spec in enumerate(specs) if isinstance(spec, SymbolSpec)]
    varying = {i for i, pair in layouts.items() if any(isinstance(n, str) for part in pair for n in part)}
    roots = {root for _, root in program.again}
    written = {i for i, name in enumerate(names) if name and name in {*program.mutated, *roots}}
    again = range(len(names) - len(program.again), len(names))
    fixed = {*written, *again, *(i for i, _ in partition.anchored)}
    if partition.beyond or partition.shared:
        fixed.update(tensors)
    roles = enumerate(partition.input_roles)
    return Plan(
        ctx.name,
        program.device,
        (*tensors, *held),
        tuple(sizes),
        tuple(sorted(varying)),
        frozenset({*held, *(i for i, role in roles if role is InputRole.PARAMETER)}),
        frozenset(fixed),
        bool(written),
        any(may_draw(overload(g.call.target)) for g in plan.groups if isinstance(g.call, ExternCall)),
        ctx.consumes,
        recording_refusal(partition, program, plan),
    )


def recording_refusal(partition: Partition, program: LoopProgram, plan: Schedule) -> Refusal | None:
    """What of a graph no recording can hold."""
    device = program.device
    for name in filter(None, program.inputs):
        if program.buffer(name).device != device:
            return Refusal("BZ6203", f"input {name} is on {program.buffer(name).device}")
    if entries_of(partition.forward.graph):
        return Refusal("BZ6204", "what runs depends on data (control flow)")
    for group in plan.groups:
        if group.device != device:
            return Refusal("BZ6204", f"{group.name} runs on {group.device}")
        call = group.call
        if not isinstance(call, ExternCall):
            continue
        tags = overload(call.target).tags
        if call.makes or torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
            return Refusal("BZ6204", f"sizes or numbers that only data tell ({call.target})")
        numbers = scalar_arguments(call)
        if any(isinstance(a, BufferView) and i in numbers for i, a in [*enumerate(call.args), *call.kwargs]):
            return Refusal("BZ6204", f"{call.target} takes a number that is computed on the device")
        if torch.Tag.cudagraph_unsafe in tags:
            return Refusal("BZ6204", f"{call.target} is tagged cudagraph_unsafe")
    return None
