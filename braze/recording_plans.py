"""What a recorder of calls must know of a compiled graph: where it is cut, and of each part its inputs' roles and sizes.

A graph is cut at what no recording can hold, after fusion (``schedule/stage/parts.py``). A part that is recorded is described by a
:class:`~braze.cudagraphs.plan.Plan`; the others run as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import torch

from braze.aot.facts.records import InputRole, Partition
from braze.codegen.host import large_values
from braze.codegen.host.externs import scalar_arguments
from braze.context import CompileContext
from braze.cudagraphs.device import LARGE
from braze.cudagraphs.plan import Batch, Plan, Plans, Refusal
from braze.cudagraphs.reasons import note
from braze.graph.nodes.specs import SymbolSpec, TensorSpec
from braze.graph.operators.operators import Family, operator_facts
from braze.loops.ir import BufferKind, BufferView, Condition, DType, ExternCall, LoopProgram, views_in
from braze.runtime.operators.purity import may_draw, named
from braze.schedule.facts.dependences import families
from braze.schedule.facts.records import Group, Schedule
from braze.schedule.stage.parts import Run, cut, launches, runs_of
from braze.support.record import record
from braze.symbolic.expr import Expr, Symbol

#: operators over subgraphs: what they launch hangs on data
_CONTROL_FLOW = frozenset({"braze.subgraphs", "braze.random_subgraphs", "braze.subgraph_gradients"})
#: namespaces of operators that launch on streams of their own
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})


@record
class Division:
    """A schedule as it is recorded: whole, by ``whole``, or in its parts, by their numbers. Neither: it is not recorded."""

    schedule: Schedule
    whole: Plan | None = None
    parts: tuple[tuple[int, Plan], ...] = ()

    @property
    def recorded(self) -> bool:
        """Whether something of it is recorded."""
        return self.whole is not None or bool(self.parts)

    @property
    def plans(self) -> Plans:
        """What is recorded, without its code."""
        return Plans(self.whole, self.parts)


def divided(
    partition: Partition, s: Schedule, ctx: CompileContext, failing: Mapping[str, str] = MappingProxyType({})
) -> Division:
    """Cut a schedule at what cannot be recorded, and tell where; a schedule with a fixed part is a part beside that.

    ``failing``: operators that turned out to fail while they were recorded, as "namespace.name", with the reasons.
    """
    reasons = dict(refusals(s, ctx.options.splitting_ops, failing))
    fewest = max(1, ctx.options.cudagraph_launches)
    count = sum(map(launches, s.groups))
    runs = runs_of(s.groups, {k: r.why for k, r in reasons.items()}, fewest)
    if all(run.why for run in runs):
        refusal = next(iter(reasons.values()), None)
        if refusal is None or count < fewest:
            refusal = Refusal("BZ6213", f"{count} launches are too few to gain by it (cudagraph_launches)")
        note(refusal.code, ctx.name, f"is not recorded: {refusal.why}")
        return Division(s)
    if len(runs) == 1 and s.fixed is None:
        return Division(s, whole=whole_plan(partition, s, ctx))
    parts = cut(s, runs, ctx)
    _tell_cuts(parts, reasons, runs, ctx)
    plans = [(k, part_plan(parts, k, partition, ctx)) for k, part in enumerate(parts.parts) if not part.why]
    return Division(parts, parts=tuple(plans))


def _tell_cuts(s: Schedule, reasons: dict[int, Refusal], runs: Sequence[Run], ctx: CompileContext) -> None:
    recorded = sum(not part.why for part in s.parts)
    for run in runs:
        why = list(dict.fromkeys(r.why for k, r in reasons.items() if run.start <= k < run.stop))
        if why:
            text = f"is cut, and {recorded} {'part is' if recorded == 1 else 'parts are'} recorded: {'; '.join(why)}"
            note("BZ6212", ctx.name, text)


def whole_plan(partition: Partition, s: Schedule, ctx: CompileContext) -> Plan:
    """The plan of a graph that is recorded in one piece."""
    program = s.program
    specs, names = partition.inputs, program.inputs
    fixed, constants = _fixed_inputs(partition, program), _constant_inputs(partition, program)
    used = _used_inputs(s) | fixed
    tensors = tuple(i for i, spec in enumerate(specs) if not isinstance(spec, SymbolSpec) and i in used)
    held = range(len(specs), len(names))
    layouts = {
        i: (s.sizes, s.strides) for i, s in enumerate(specs) if isinstance(s, TensorSpec) and i in used
    }
    sizes = [(i, d) for i, (n, _) in layouts.items() for d, size in enumerate(n) if isinstance(size, str)]
    sizes += [(i, -1) for i, spec in enumerate(specs) if isinstance(spec, SymbolSpec)]
    varying = {i for i, pair in layouts.items() if any(isinstance(n, str) for part in pair for n in part)}
    return Plan(
        ctx.name,
        program.device,
        (*tensors, *held),
        tuple(sizes),
        tuple(sorted(varying)),
        frozenset(constants),
        frozenset(fixed),
        bool(_written_inputs(program)),
        _draws(s.groups),
        ctx.consumes,
        kernels=_read_by_kernels(program, s.groups),
        products=_multiplies(s.groups),
        values=large_values(s, ctx, LARGE) or 0,
    )


def part_plan(whole: Schedule, number: int, partition: Partition, ctx: CompileContext) -> Plan:
    """The plan of one part: its tensors, then the sizes, which it gets as numbers."""
    part = whole.parts[number]
    program = part.schedule.program
    place = {name: k for k, name in enumerate(whole.program.inputs) if name}
    outside_fixed = _fixed_inputs(partition, whole.program)
    constants = _constant_inputs(partition, whole.program)
    tensors = range(len(part.takes))
    of = [place.get(name, -1) for name in part.takes]
    buffers = {b.name: b for b in program.buffers}
    varying = [
        i
        for i, name in enumerate(part.takes)
        if any(e.symbols() for e in (*buffers[name].sizes, *buffers[name].strides))
    ]
    fixed = {i for i in tensors if of[i] in outside_fixed or part.takes[i] in part.fixed}
    return Plan(
        f"{ctx.name}[{number}]",
        program.device,
        tuple(tensors),
        tuple((len(part.takes) + i, -1) for i in range(len(part.sizes))),
        tuple(varying),
        frozenset(i for i in tensors if of[i] in constants),
        frozenset(fixed),
        bool(part.fixed),
        _draws(part.schedule.groups),
        ctx.consumes,
        _read_by_kernels(program, part.schedule.groups),
        _multiplies(part.schedule.groups),
        large_values(part.schedule, ctx, LARGE) or 0,
    )


def batch_of(partition: Partition, program: LoopProgram) -> Batch | str | None:
    """Where the rows of a graph's batch are; a text: why it has none that could be filled up; None: nobody marked one."""
    names = _marked(partition)
    symbols = [x.symbol for x in program.sizes if x.symbol.name in names]
    if not symbols:
        return None
    if len(set(symbols)) > 1:
        return "it has several batches of sizes of their own"
    if partition.backward is not None or any(role is InputRole.TANGENT for role in partition.input_roles):
        return "it is trained"
    if _written_inputs(program):
        return "it writes to inputs"
    if any(_is_random(step.target) for step in program.steps if isinstance(step, ExternCall)):
        return "it draws random numbers"
    return _rows(program, symbols[0])


def _marked(partition: Partition) -> set[str]:
    """The names of the sizes that ``mark_batch`` has marked."""
    for node in partition.forward.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        if isinstance(value, torch.Tensor):
            batches = value.fake_mode.owner.batches  # type: ignore[attr-defined]
            return {str(size.node.expr) for size in batches}
    return set()


def _is_random(target: str) -> bool:
    return torch.Tag.nondeterministic_seeded in named(target).tags


def _rows(program: LoopProgram, batch: Symbol) -> Batch | str:
    """The dimensions that are as long as a batch, or a multiple of it."""
    buffers = {b.name: b for b in program.buffers}
    inputs: list[tuple[int, int]] = []
    for i, name in enumerate(program.inputs):
        if name:
            found = _batch_dims(buffers[name].sizes, buffers[name].strides, batch)
            if found is None or any(each != 1 for _, each in found) or len(found) > 1:
                return f"rows of input {name} are not the outermost in memory"
            inputs += [(i, dim) for dim, _ in found]
    outputs: list[tuple[int, int, int]] = []
    for k, o in enumerate(program.outputs):
        if isinstance(o, BufferView):
            found = _batch_dims(o.sizes, o.strides, batch)
            if found is None or len(found) > 1 or batch in o.offset.symbols():
                return f"rows of output {k} are not the outermost in memory"
            outputs += [(k, dim, each) for dim, each in found]
        elif isinstance(o, (Expr, Condition)) and batch in o.symbols():
            return f"output {k} is the number of rows"
    numbers = tuple(x.input for x in program.sizes if x.symbol is batch and x.dim < 0)
    return Batch(tuple(inputs), numbers, tuple(outputs)) if inputs else "no input has its rows"


def _batch_dims(
    sizes: Sequence[Expr], strides: Sequence[Expr], batch: Symbol
) -> list[tuple[int, int]] | None:
    """(dimension, entries for each row) of a layout's sizes that hang on a batch; None where more does."""
    if any(batch in e.symbols() for e in strides):
        return None
    found = []
    for dim, size in enumerate(sizes):
        if batch not in size.symbols():
            continue
        each = size.evaluate({batch: 1}) if size.symbols() == {batch} else 0
        if each < 1 or any(size.evaluate({batch: n}) != n * each for n in (2, 3, 7, 64)):
            return None
        found.append((dim, each))
    return found


def _written_inputs(program: LoopProgram) -> set[int]:
    """Inputs that a program writes, by place."""
    roots = {root for _, root in program.again}
    return {i for i, name in enumerate(program.inputs) if name and name in {*program.mutated, *roots}}


def _fixed_inputs(partition: Partition, program: LoopProgram) -> set[int]:
    """Inputs of a graph for which no copy can stand."""
    count = len(program.inputs)
    again = {i for i, name in enumerate(program.inputs) if name in dict(program.again)}
    fixed = {*_written_inputs(program), *again, *(i for i, _ in partition.anchored)}
    if partition.beyond or partition.shared:
        fixed.update(i for i in range(count) if program.inputs[i])
    return fixed


def _used_inputs(s: Schedule) -> set[int]:
    """Inputs that a call looks at, by place; another may be missing, as what a part of a backward does not read."""
    program = s.program
    names = {name for g in s.groups for name in (*g.reads, *g.writes)}
    names |= {o.buffer for o in program.outputs if isinstance(o, BufferView)}
    return {i for i, name in enumerate(program.inputs) if name in names} | {x.input for x in program.sizes}


def _constant_inputs(partition: Partition, program: LoopProgram) -> set[int]:
    """Inputs of a graph that keep their addresses as a rule: parameters, what the graph holds, what is computed once."""
    roles = enumerate(partition.input_roles)
    held = range(len(partition.inputs), len(program.inputs))
    return {*held, *(i for i, role in roles if role is InputRole.PARAMETER)}


def _read_by_kernels(program: LoopProgram, groups: Sequence[Group]) -> frozenset[int]:
    """Inputs that no operator of PyTorch reads, by place, nor any memory that is theirs, too."""
    family = families(program)
    others = {
        family[name]
        for g in groups
        if isinstance(g.call, ExternCall)
        for name in (*g.reads, *g.writes, *g.call.aliases, *(v.buffer for v in views_in(g.call.given)))
    }
    read = {name for g in groups for name in g.reads}
    return frozenset(i for i, n in enumerate(program.inputs) if n in read and family[n] not in others)


def _draws(groups: Sequence[Group]) -> bool:
    return any(may_draw(named(g.call.target)) for g in groups if isinstance(g.call, ExternCall))


def _multiplies(groups: Sequence[Group]) -> bool:
    """Whether an operator may have cuBLAS multiply matrices; convolutions are cuDNN's as a rule."""
    calls = [named(g.call.target) for g in groups if isinstance(g.call, ExternCall)]
    facts = [operator_facts(op) for op in calls if op is not torch.ops.aten.convolution.default]
    return any(known is None or known.family is Family.PRODUCT for known in facts)


def operators_of(s: Schedule) -> frozenset[str]:
    """The operators that a schedule calls, as "namespace.name"."""
    return frozenset(_packet(g.call) for g in s.groups if isinstance(g.call, ExternCall))


def _packet(call: ExternCall) -> str:
    return call.target.rpartition(".")[0]


def refusals(
    s: Schedule, splitting: Sequence[str], failing: Mapping[str, str]
) -> Iterator[tuple[int, Refusal]]:
    """The groups that no recording can hold, by number, and at which the user wants the graph cut."""
    program = s.program
    given = {b.name: b for b in program.buffers if b.kind in (BufferKind.INPUT, BufferKind.CONSTANT)}
    places = {b.name: b.device for b in program.buffers}
    for k, group in enumerate(s.groups):
        refusal = None
        if isinstance(group.call, ExternCall):
            refusal = refusal_of(group.call, splitting)
            why = failing.get(_packet(group.call))
            if refusal is None and why is not None:
                refusal = Refusal("BZ6208", f"{group.call.target} fails while it is recorded ({why})")
        elsewhere = [
            n for n in (*group.reads, *group.writes) if places.get(n, program.device) != program.device
        ]
        if refusal is None and group.device != program.device:
            refusal = Refusal("BZ6204", f"{group.name} runs on {group.device}")
        if refusal is None and elsewhere:
            name = elsewhere[0]
            what = "input " if name in given else ""
            refusal = Refusal("BZ6203", f"{what}{name} is on {places[name]}")
        if refusal is not None:
            yield k, refusal


def refusal_of(call: ExternCall, splitting: Sequence[str]) -> Refusal | None:
    """Why one call cannot be in a recording, or is not to be."""
    op = named(call.target)
    packet = _packet(call)
    if {call.target, packet} & {name.replace("::", ".") for name in splitting}:
        return Refusal("BZ6204", f"splitting_ops names {call.target}")
    if packet in _CONTROL_FLOW:
        return Refusal("BZ6204", "what runs depends on data (control flow)")
    if packet.partition(".")[0] in _COLLECTIVES:
        return Refusal("BZ6204", f"{call.target} runs on a stream of its own")
    if call.makes or torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags:
        return Refusal("BZ6204", f"sizes or numbers that only data tell ({call.target})")
    numbers = scalar_arguments(call)
    if any(isinstance(a, BufferView) and i in numbers for i, a in [*enumerate(call.args), *call.kwargs]):
        return Refusal("BZ6204", f"{call.target} takes a number that is computed on the device")
    if packet in ("aten.index_put", "aten.index_put_", "aten._index_put_impl_", "aten._unsafe_index_put"):
        if any(view.dtype is DType.BOOL for view in views_in(call.args[1])):
            return Refusal("BZ6204", f"{call.target} by a mask makes the host wait for the device")
    if torch.Tag.cudagraph_unsafe in op.tags:
        return Refusal("BZ6204", f"{call.target} is tagged cudagraph_unsafe")
    return None
