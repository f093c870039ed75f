"""Captured graph -> Partition: ATen graphs without writes, whose inputs and outputs have roles.

In order: trace to ATen (with gradients, where results need them: the joint graph), remove writes, say what each output is
(a value, a view of an input, of another output, a constant), clean the graph, and cut a joint graph in two.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from braze.aot.calls.promises import require_promised
from braze.aot.cut.min_cut import Choice, ancestors
from braze.aot.facts.records import (
    ASTRAY,
    Backward,
    InputRole,
    JointGraph,
    OutputKind,
    OutputRole,
    Partition,
    SavedFrom,
)
from braze.aot.facts.roles import (
    placeholders,
    role_of_input,
    roles_of_results,
    tell_backward,
    tell_forward,
)
from braze.aot.facts.views import bytes_of, has_overlap, is_empty, is_view
from braze.aot.functional.functionalize import Functional, functionalize
from braze.aot.functional.proof import check, observe
from braze.aot.functional.proof_terms import LIMIT, QUICK
from braze.aot.joint.joint import Differentiation, Inseparable, check_as_captured
from braze.aot.joint.missing_tangents import apart
from braze.aot.joint.outputs import Outputs, own_copies, separate
from braze.aot.joint.partition_functions import PartitionFn, Weigh, divide
from braze.aot.passes.epilogues import fuse_epilogues
from braze.aot.passes.joined import Keeps, join_products
from braze.aot.passes.layouts import lay_out_convolutions
from braze.aot.passes.padding import pad_products
from braze.aot.trace.trace import Traced, trace
from braze.context import CompileContext
from braze.graph.calls.autograd_calls import holds_functions
from braze.graph.fakes.fakes import FakeMode, on_fakes, spec_of, was_given_history
from braze.graph.nodes.facts import argument, facts, set_facts
from braze.graph.nodes.passes import DEFAULT, FILLING, drop_unread_of_program, run_passes
from braze.graph.nodes.printer import print_graph
from braze.graph.nodes.specs import Dialect, FloatSpec, SymbolSpec, TensorSpec
from braze.graph.private import torch_compat
from braze.support import trace as tracing
from braze.support.errors import Unsupported
from braze.support.nested import every
from braze.support.record import record

aten = torch.ops.aten
#: what operations of their own make again
_VIEWS = (OutputKind.ALIAS, OutputKind.ALIAS_OF_OUTPUT)


def partition(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    ctx: CompileContext,
    decompositions: Mapping[OpOverload, Callable[..., Any]] | None = None,
    choice: Choice | None = None,
    partition_fn: PartitionFn | None = None,
    free_layouts: bool = False,
    keeps: Keeps | None = None,
    weigh: Callable[[Partition], float | None] | None = None,
    between: bool = False,
) -> Partition:
    """The Partition of a captured graph; with a backward where grad mode is on and a result needs a gradient.

    ``decompositions``: operator -> function of simpler operators. ``choice`` or ``partition_fn`` decides what
    the forward saves (neither: as the options partition and memory_budget say). ``free_layouts``: whoever
    compiles the graphs lays values out as the fakes say; ``keeps``: whether they keep so much, made by so many steps of parameters
    only, between calls; ``weigh``: they tell how many bytes both halves take at most. ``between``: a result from which others are
    computed may stand between two operations of autograd's (``Backward.apart``).
    """
    how = _How(ctx, decompositions or {}, choice, partition_fn, free_layouts, keeps, weigh)
    with tracing.stage("aot"):
        _refuse_unusual_tensors(gm)
        try:
            part = _partition(gm, example_inputs, how, between)
        except Inseparable:
            part = _partition(gm, example_inputs, how, False)
    _dump(part, ctx.name)
    return part


@record
class _How:
    """What :func:`partition` is told beside the graph."""

    ctx: CompileContext
    decompositions: Mapping[OpOverload, Callable[..., Any]]
    choice: Choice | None
    partition_fn: PartitionFn | None
    free_layouts: bool
    keeps: Keeps | None
    weigh: Callable[[Partition], float | None] | None


def _partition(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], how: _How, between: bool
) -> Partition:
    ctx, inputs = how.ctx, tuple(map(_input_spec, example_inputs))
    joint = Differentiation(holds_functions(gm), between) if needs_gradients(gm) else None
    if joint is not None and gm.meta.get("differentiated_twice"):
        raise Unsupported(
            "BZ2023",
            "a graph whose gradients the function differentiates (create_graph=True)",
            why="the backward of a compiled graph has no derivative",
            hints=["nothing, results are eager's; torch.func.grad, jacrev and hessian are compiled"],
        )
    if joint is not None:
        _refuse_views_given_memory(gm)
    traced = _traced(gm, example_inputs, how.decompositions, joint, ctx.options.fallback_random)
    module, mode = traced.module, traced.mode
    outputs = joint.outputs if joint is not None else Outputs(module.graph, traced.outputs, traced.ways)
    gradients = [node for node in traced.extras if node is not None]
    with tracing.stage("aot.functionalize"), on_fakes(mode):
        functional = _without_writes(traced, [*outputs.wanted(), *gradients], ctx, unite=joint is None)
        roles, mutations, results = outputs.assign(functional, mode)
    dialect = Dialect.CORE if how.decompositions else Dialect.FUNCTIONAL
    if joint is not None:  # before equal values become one, and of what stands for them behind that
        before = roles_of_results(mutations, roles, len(results), outputs.whole_specs)
        _tell_written_after(gm, results, roles, before)
        own = own_copies(results, len(mutations))
    _simplify(module, (*results, *(functional.latest[node] for node in gradients)), dialect, ctx)
    with on_fakes(mode):
        separate(module, outputs, mutations, mode, results=len(results))
        if joint is not None:
            mutations = joint.with_histories(mutations)
        if how.free_layouts:
            long_sums = ctx.options.channels_last is True
            recorded = bool(ctx.options.cudagraphs) or ctx.recordable
            lay_out_convolutions(
                module,
                mode,
                training=joint is not None,
                long_sums=long_sums,
                recorded=recorded,
                constant=_constants(module, functional) if joint is None else frozenset(),
                once=ctx.options.hoist,
            )
    known = roles_of_results(mutations, roles, len(results), outputs.whole_specs)
    whole = None
    if joint is not None:
        whole = dataclasses.replace(_joint_graph(traced, joint, mutations, known), own=own)
        _tell_written_after(gm, module.graph.output_node().args[0], roles, known)
    part = Partition(
        forward=module,
        dialect=dialect,
        inputs=(*inputs, *(spec_of(each.base.meta["val"]) for each in functional.shared)),
        input_roles=tuple(_roles(module, joint is not None)),
        mutations=mutations,
        outputs=roles,
        made=traced.made,
        shared=tuple(each.inputs for each in functional.shared),
        anchored=_anchors(functional.anchored, placeholders(module)),
        beyond=functional.beyond,
        turned=(turned := _turned(traced, placeholders(module))),
        ordered=_ordered(roles, mutations, turned, placeholders(module)),
    )
    if joint is not None and whole is not None:
        for role in mutations:
            if facts(given := placeholders(gm)[role.input]).moved_after:
                raise _given_memory(given)
        halves = divide(whole, ctx.options, how.partition_fn, how.choice, _weighing(part, how.weigh))
        part = _with_halves(part, joint, known, *halves)
    if how.free_layouts:
        _reshape_products(part, mode, how.keeps, ctx)
    if joint is not None and joint.operations.taken:
        part = _with_parts(part)
    if part.backward is not None:
        part = _as_results_are_used(gm, part, known)
    _settle(part, known)
    return part


def _constants(module: torch.fx.GraphModule, functional: Functional) -> frozenset[torch.fx.Node]:
    """The parameters that a graph does not write, and what they are in other types."""
    written = {node for node, *_ in functional.mutated}
    own = {n for n in placeholders(module) if facts(n).role is InputRole.PARAMETER and n not in written}
    copies = module.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    return frozenset(own.union(n for n in copies if n.args[0] in own))


def _traced(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    decompositions: Mapping[OpOverload, Callable[..., Any]],
    joint: Differentiation | None,
    eager_random: bool,
) -> Traced:
    """The captured graph as ATen, with the gradients that ``joint`` asks for."""
    if joint is not None:
        _refuse_windows_on_inputs(gm)
    with tracing.stage("aot.trace"):
        traced = trace(gm, example_inputs, decompositions, joint, eager_random)
    if joint is not None:
        if traced.mode.env is not None:  # fakes of symbolic sizes do not follow lazy conjugates
            _refuse_unusual_tensors(traced.module)
        check_as_captured(gm, traced.outputs, joint.outputs)
    return traced


def _without_writes(
    traced: Traced, wanted: list[torch.fx.Node], ctx: CompileContext, *, unite: bool
) -> Functional:
    """The graph without writes, proved to do what the one with them does."""
    module = traced.module
    program = observe(module.graph, wanted, LIMIT if ctx.options.verify else QUICK)
    functional = functionalize(module, traced.mode, wanted, unite=unite)
    check(program, module.graph, functional, strict=ctx.options.verify > 0)
    return functional


def _simplify(module: torch.fx.GraphModule, results: Any, dialect: Dialect, ctx: CompileContext) -> None:
    """Give a graph its results, and let the passes over graphs without writes run."""
    module.graph.output_node().args = (results,)
    drop_unread_of_program(module.graph)
    passes = DEFAULT if ctx.deterministic else (FILLING, *DEFAULT)
    run_passes(module, passes, dialect, verify_level=ctx.options.verify)


def _settle(part: Partition, known: Any) -> None:
    """Tell the finished forward what is known of its results, and write its code."""
    tell_forward(part.forward, known)
    require_promised(part)
    part.forward.recompile()


def _with_halves(
    part: Partition,
    joint: Differentiation,
    known: Sequence[OutputRole],
    forward: torch.fx.GraphModule,
    backward: Backward,
) -> Partition:
    """The partition with both halves of its joint graph; ``known``: what its results are."""
    depends = zip(backward.gradients, backward.depends, strict=True)
    reaching = dict(zip(joint.owners(part.mutations), joint.reaching, strict=True))
    items: Any = forward.graph.output_node().args[0]
    behind = len(items) - backward.results  # hidden results are behind what is saved, too
    guarded = [i for i, role in enumerate(known) if role.guard and role.guard != ASTRAY]
    # of one value that an operation gives twice autograd knows the last place alone
    guarded += [i for i in range(len(part.mutations)) if items[i] in items[i + 1 : len(known)]]

    def moved(i: int) -> int:
        return i + behind if i >= backward.results else i

    backward = dataclasses.replace(
        backward,
        tangents=tuple(map(moved, backward.tangents)),
        gradients=tuple(i if i >= 0 else ~moved(~i) for i in backward.gradients),
        apart=joint.operations.groups,
        saving=joint.operations.saving,
        depends=tuple(tuple(sorted({*own, *reaching[i]})) for i, own in depends),
        guarded=tuple(guarded),
    )
    tell_backward(backward)
    return dataclasses.replace(part, forward=forward, backward=backward)


def _with_parts(part: Partition) -> Partition:
    """The partition whose backward has its parts, as it must where one operation takes what another gives."""
    assert part.backward is not None
    parts = apart(part.backward)
    if not parts:
        raise Inseparable
    return dataclasses.replace(part, backward=dataclasses.replace(part.backward, parts=parts))


def _reshape_products(part: Partition, mode: FakeMode, keeps: Keeps | None, ctx: CompileContext) -> None:
    template = None if ctx.options.matmul_template is False else ctx.target.arch
    with on_fakes(mode):
        if part.backward is None and keeps is not None:
            join_products(part.forward, mode, keeps)
        for half in [part.forward] if part.backward is None else [part.forward, part.backward.graph]:
            pad_products(half, mode, training=part.backward is not None, template=template)
            fuse_epilogues(half, mode)


def _dump(part: Partition, name: str) -> None:
    if tracing.dumping():
        tracing.dump(f"{name}_aten", "py", print_graph(part.forward))
        if part.backward is not None:
            tracing.dump(f"{name}_backward_aten", "py", print_graph(part.backward.graph))


def _anchors(nodes: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node]) -> tuple[tuple[int, int], ...]:
    """Where in their memory inputs begin here, and must in each call; of varying sizes the fakes do not tell."""
    offsets = [node.meta["val"].storage_offset() for node in nodes]
    if any(type(n) is not int for n in offsets):
        raise Unsupported("BZ2031", "an as_strided view of an input of which it varies where it begins")
    return tuple((inputs.index(node), n) for node, n in zip(nodes, offsets, strict=True))


def _turned(traced: Traced, inputs: Sequence[torch.fx.Node]) -> tuple[int, ...]:
    """The inputs of which views were changed in place."""
    known = {id(value) for value in traced.ways.turned}
    return tuple(i for i, node in enumerate(inputs) if id(node.meta["val"]) in known)


def _ordered(
    outputs: Sequence[OutputRole],
    mutations: Sequence[OutputRole],
    turned: Sequence[int],
    inputs: Sequence[torch.fx.Node],
) -> tuple[tuple[int, int], ...]:
    """Inputs with histories whose views tell whether they are older than a write, beside each written one whose write the order did not count.

    Where both are of one memory in a call, autograd counts the write for the views, too. Those under ``no_grad`` were ordered by the memory
    that inputs have here. Of an input whose elements share memory autograd makes older views again as windows, which give each element of it the
    mean of the gradients of its place: the trace, in which no two inputs have a count in common, has their own.
    """
    written = sorted({role.input for role in mutations}.union(turned))
    derived = {role.input for role in mutations if role.differentiable}
    seen = {role.input for role in outputs if role.way} - {-1}
    viewed = {role.input for role in outputs if any(not step.grad for step in role.way)} - {-1}
    values = {i: inputs[i].meta["val"] for i in seen.union(written)}
    # without elements they overlap with none, so that what lies in one memory here has no order either
    empty = {i for i in seen if is_empty(values[i])}
    memory = {i: torch_compat.storage_key(value) for i, value in values.items()}
    watched = [i for i in sorted(viewed | empty) if values[i].requires_grad or i in derived]
    apart = [(i, k) for i in watched for k in written if memory[i] != memory[k] or (i in empty and i != k)]
    folded = _folded(inputs) if written else ()
    return tuple(dict.fromkeys([*apart, *((i, k) for i in folded for k in written if i != k)]))


def _folded(inputs: Sequence[torch.fx.Node]) -> list[int]:
    """Inputs with histories of which elements share memory, or are of a tensor of which some do."""
    values = [node.meta["val"] for node in inputs]
    return [
        i
        for i, value in enumerate(values)
        if isinstance(value, torch.Tensor)
        and value.requires_grad
        and has_overlap(value if value._base is None else value._base)
    ]


def _weighing(part: Partition, weigh: Callable[[Partition], float | None] | None) -> Weigh | None:
    """``weigh`` for the halves alone; ``part``: what else a partition is."""
    if weigh is None:
        return None
    return lambda module, backward: weigh(dataclasses.replace(part, forward=module, backward=backward))


def _joint_graph(
    traced: Traced,
    joint: Differentiation,
    mutations: tuple[OutputRole, ...],
    known: tuple[OutputRole, ...],
) -> JointGraph:
    """The traced graph with what its division must know; roles are on the nodes."""
    owners = [i for i, node in zip(joint.owners(mutations), traced.extras, strict=True) if node is not None]
    written = tuple(joint.outputs.placeholders[role.input] for role in mutations)
    for node in written:
        set_facts(node, written=True)
    for node in joint.tangents:
        set_facts(node, role=InputRole.TANGENT)
    items: Any = traced.module.graph.output_node().args[0]
    forward = ancestors(items[: len(known)])
    for node in traced.module.graph.nodes:
        beside = node.target is operator.getitem and node.args[0] in forward
        # partition functions written for functorch look at it
        node.meta["partitioner_tag"] = "is_forward" if node in forward or beside else "is_backward"
    tell_forward(traced.module, known, owners)
    positions = joint.positions(mutations)
    return JointGraph(
        traced.module, len(known), written, tuple(joint.tangents), positions, tuple(owners), traced.mode
    )


def _tell_written_after(
    gm: torch.fx.GraphModule, items: Any, roles: Sequence[OutputRole], known: Sequence[OutputRole]
) -> None:
    """What the capture knows of its results that are written, or given other memory, once the graph has run, told to the nodes (``items``) that they are."""
    given: Any = gm.graph.output_node().args[0]
    values = {role.output: i for i, role in enumerate(known) if role.kind is OutputKind.VALUE}
    for i, node in enumerate(given if isinstance(given, (tuple, list)) else (given,)):
        if not isinstance(node, torch.fx.Node) or not facts(node).written_after or i >= len(roles):
            continue
        first = roles[i].output if roles[i].kind is OutputKind.SAME else i
        if first in values:
            value, moved = items[values[first]], facts(node).moved_after
            if moved and (is_view(value) or facts(value).copy_in_layout) and _is_read_with_gradients(node):
                raise _given_memory(node)  # what is kept is what it is made of, which is given nothing
            set_facts(value, written_after=True, moved_after=moved)
        elif roles[first].kind is OutputKind.ALIAS_OF_OUTPUT:
            set_facts(items[roles[first].output], written_after=True)


def backward_partition(part: Partition) -> Partition:
    """The backward of a Partition as a Partition of its own, which has no backward."""
    backward = part.backward
    assert backward is not None
    ours = [saved.source is SavedFrom.OUTPUT and saved.index >= backward.results for saved in backward.saved]
    items: Any = part.forward.graph.output_node().args[0]
    results = {n for n in items[len(part.mutations) : backward.results] if isinstance(n, torch.fx.Node)}
    return Partition(
        forward=backward.graph,
        dialect=part.dialect,
        inputs=backward.inputs,
        input_roles=tuple(map(_role_in_backward, backward.inputs, [*ours, *[True] * len(backward.tangents)])),
        mutations=(),
        outputs=tuple(OutputRole(OutputKind.VALUE) for _ in backward.gradients),
        beside=int(sum(map(bytes_of, results))),
    )


def _role_in_backward(spec: TensorSpec | SymbolSpec | FloatSpec, ours: bool) -> InputRole:
    """``ours``: nobody but the backward holds it; what is saved of the caller's own tensors is theirs."""
    if not isinstance(spec, TensorSpec):
        return InputRole.SYMBOL
    return InputRole.SAVED if ours else InputRole.USER


def likely_sizes(part: Partition) -> dict[str, int]:
    """The values that size symbols had when tracing, by name, as far as inputs tell."""
    found: dict[str, int] = {}
    for node in placeholders(part.forward):
        value = node.meta["val"]
        for number in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(number, torch.SymInt) and number.node.hint is not None:
                found[str(number.node.expr)] = int(number.node.hint)
    return found


def needs_gradients(gm: torch.fx.GraphModule) -> bool:
    """Whether a result, or the new contents of an input, carry gradients."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if node.op == "output":
            for used in node.all_input_nodes:
                # an input that is returned as it is needs nothing of us
                if used.op != "placeholder":
                    if any(t.requires_grad for t in every(torch.Tensor, used.meta.get("val"))):
                        return True
        elif node.op == "placeholder" and isinstance(value, torch.Tensor):
            if was_given_history(value):
                return True
            if value.requires_grad and facts(node).requires_grad is False:
                return True
    return False


def _refuse_unusual_tensors(gm: torch.fx.GraphModule) -> None:
    """A lazy conjugate or negation is a flag that sizes and strides do not tell; a meta tensor has no memory."""
    for node in gm.graph.nodes:
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor):
            continue
        if val.is_conj() or val.is_neg():
            raise Unsupported(
                "BZ2003",
                "a lazily conjugated or negated tensor",
                hints=["call .resolve_conj().resolve_neg()"],
                origin=facts(node).origin,
            )
        if val.device.type == "meta":
            raise Unsupported(
                "BZ2003", "a tensor without data, on the meta device", origin=facts(node).origin
            )


def _refuse_views_given_memory(gm: torch.fx.GraphModule) -> None:
    """What the program gives other memory once the graph has run (``v.data = y``), where autograd records what reads views of it, or of what it views.

    Eager keeps the view itself for its backward, which reads what that holds by then; here the backward has what it is a view of. And where what it
    is a view of was written since, eager makes its history when it is asked for it, by how the view lies by then: in its new memory.
    """
    given = [node for node in gm.graph.nodes if facts(node).moved_after]
    for node in given:
        view = node.meta["val"]
        if torch_compat.is_view(view) and view.requires_grad and view._version:
            raise _given_memory(node)
    moved = {torch_compat.storage_key(node.meta["val"]) for node in given}
    first: dict[Any, int] = {}
    for node in gm.graph.nodes if moved else ():
        for value in every(torch.Tensor, node.meta.get("val")):
            memory = torch_compat.storage_key(value)
            if memory not in moved or first.setdefault(memory, id(value)) == id(value):
                continue
            if _is_read_with_gradients(node):
                raise _given_memory(node)


def _as_results_are_used(gm: torch.fx.GraphModule, part: Partition, known: Sequence[OutputRole]) -> Partition:
    """What the program does to results once the graph has run that eager's operations, of one result each, let it do.

    What is given other memory eager's backward reads as it is by then: here it has inputs as they are, and what one operation of autograd's takes of
    another. What keeps its gradient PyTorch looks for at the wrong place once it is written, where it is no operation's first result (it asserts, or
    the process dies): it is given an operation of its own. Who writes it (a function that gets it, a list) the code behind the graph need not say.
    """
    backward = part.backward
    assert backward is not None
    values = {role.output: i for i, role in enumerate(known) if role.kind is OutputKind.VALUE}
    alone = {backward.tangents[k] for (k, *more) in backward.apart if not more}
    alone |= set(backward.tangents) if len(backward.tangents) == 1 else set()
    kept = {saved.index for saved in backward.saved if saved.source is SavedFrom.OUTPUT}
    followed = alone & kept & {~i for i in backward.gradients if i < 0}
    found, retained = _first_results(backward), set()
    given: Any = gm.graph.output_node().args[0]
    for i, node in enumerate(given):
        if not isinstance(node, torch.fx.Node) or node.op == "placeholder":
            continue
        first = part.outputs[i].output if part.outputs[i].kind is OutputKind.SAME else i
        place = values.get(first)
        if facts(node).moved_after and place not in followed and _is_read_with_gradients(node):
            raise _given_memory(node)
        if not facts(node).retained_after or place in found or part.outputs[first].kind in _VIEWS:
            continue
        locked = place is None or known[place].guard or known[place].locked
        if locked or place not in backward.tangents or facts(node).moved_after:
            raise Unsupported(
                "BZ2030",
                "a result over other memory that keeps its gradient (retain_grad), and may be written in place",
                origin=facts(node).origin,
            )
        retained.add(place)
    return dataclasses.replace(part, backward=dataclasses.replace(backward, retained=tuple(sorted(retained))))


def _first_results(backward: Backward) -> set[int]:
    """The results that are the first of an operation of autograd's."""
    if backward.parts or apart(backward):
        return {backward.tangents[group[0]] for group in backward.apart}
    return {0}


def _is_read_with_gradients(node: torch.fx.Node) -> bool:
    """Whether autograd records what reads a node's value."""
    results = (every(torch.Tensor, user.meta.get("val")) for user in node.users if user.op != "output")
    return any(value.requires_grad for values in results for value in values)


def _given_memory(node: torch.fx.Node) -> Unsupported:
    return Unsupported(
        "BZ2009",
        "a tensor that the program gives other memory (.data = ...) once the graph has run",
        why="eager's backward reads what the tensor holds by then, or takes its gradient to where it lies by then",
        hints=["nothing, results are eager's; copy into it where its numbers alone are to change"],
        origin=facts(node).origin,
    )


_WINDOWS = ("as_strided", "as_strided_", torch.as_strided)


def _refuse_windows_on_inputs(gm: torch.fx.GraphModule) -> None:
    """The gradient of ``as_strided`` counts from where an input's data starts in its memory: in each call elsewhere."""
    inputs = {
        torch_compat.storage_key(n.meta["val"])
        for n in placeholders(gm)
        if isinstance(n.meta.get("val"), torch.Tensor)
    }
    for node in gm.graph.nodes:
        if node.target not in _WINDOWS or not isinstance(node.args[0], torch.fx.Node):
            continue
        offset = argument(node, 3, "storage_offset")
        base = node.args[0].meta["val"]
        if offset is not None and base.requires_grad and torch_compat.storage_key(base) in inputs:
            raise Unsupported(
                "BZ2031", "the gradient of as_strided over an input's memory", origin=facts(node).origin
            )


def _input_spec(value: Any) -> TensorSpec | SymbolSpec | FloatSpec:
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    if isinstance(value, torch.SymInt):
        return SymbolSpec(str(value.node.expr), value.node.hint)
    if isinstance(value, torch.SymFloat):
        return FloatSpec(str(value.node.expr), value.node.hint)
    if isinstance(value, int):
        return SymbolSpec(str(value), value)
    raise Unsupported("BZ2018", f"a graph input of type {type(value).__name__}")


def _roles(module: torch.fx.GraphModule, training: bool) -> list[InputRole]:
    """``training``: weights change between calls, nothing is worth keeping that is made of them."""
    told = {InputRole.SYMBOL} if training else {InputRole.SYMBOL, InputRole.PARAMETER}
    inputs = [n for n in placeholders(module) if facts(n).role is not InputRole.TANGENT]
    return [role if role in told else InputRole.USER for role in map(role_of_input, inputs)]
