"""What stands around the call of a graph's kernels: inputs under further names, tensors that the graph holds, floats."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx

from braze.aot.cut.min_cut import ancestors
from braze.aot.facts.records import Partition
from braze.context import CompileContext
from braze.graph.calls.subgraph_ops import entries_of
from braze.graph.nodes.specs import FloatSpec
from braze.graph.private.torch_compat import count_writes, is_shortage, take_back_counts
from braze.loops.ir import BufferView, ExternCall, LoopProgram
from braze.loops.verify import writes_of
from braze.runtime.call.boxed import Boxed, Holds, Written, boxed
from braze.runtime.operators.number_places import REQUIRE_PLACE, require_place
from braze.support import trace
from braze.support.errors import BrazeError
from braze.support.log import warn_once
from braze.support.shortage import Shortage


@boxed
class Later:
    """A graph for whose compile there was no memory: runs operator by operator, until a later try succeeds."""

    def __init__(self, name: str, compile: Callable[[], Boxed], uncompiled: Boxed) -> None:
        self.name = name
        self.compile = compile
        self.call = uncompiled
        self.done = False
        self.short = Shortage()

    def note(self, start: float, error: Exception) -> None:
        """One more try that failed."""
        self.short.note(self.name, "a backward", time.perf_counter() - start, error)

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if not self.done and not self.short.waits():
            start = time.perf_counter()
            try:
                self.call, self.done = self.compile(), True
            except Exception as error:
                if not is_shortage(error):
                    raise
                self.note(start, error)
        return self.call(inputs)


def with_inputs_written(
    call: Boxed, program: LoopProgram, renewed: Sequence[tuple[str, str]], partition: Partition
) -> Boxed:
    """``call`` given, once more under each further name, the inputs whose memory it writes; autograd counts the writes, here or (with a backward) by who calls.

    ``renewed``: (new contents, input) of those that it writes under their own names.
    """
    number = {name: k for k, name in enumerate(program.inputs) if name}
    places = tuple(number[root] for _, root in program.again)
    roots = tuple(dict.fromkeys((*places, *(number[old] for _, old in renewed))))
    if not roots:
        return call
    silent = {role.input for role in partition.mutations if not role.counted}
    unseen = tuple(k for k in roots if k in silent)
    what = Written(call, roots, places, unseen)
    if partition.backward is None:
        return that_writes(what)
    operators = _written_by_operators(program, renewed, number) if unseen else ()
    return _uncounted(what, tuple(k for k in unseen if k in operators))


def _written_by_operators(
    program: LoopProgram, renewed: Sequence[tuple[str, str]], number: Mapping[str, int]
) -> set[int]:
    """The inputs that operators of PyTorch's write, which count it."""
    root = {**dict(program.again), **dict(renewed)}
    names = {n for step in program.steps if isinstance(step, ExternCall) for n in writes_of(step)}
    return {number[root[name]] for name in names if name in root}


def _uncounted(what: Written, hidden: Sequence[int]) -> Boxed:
    """The forward of an operation of autograd's that writes inputs itself: what it keeps beside these is kept once who calls has counted.

    ``hidden``: those of which nobody counts the write, though what writes them would.
    """
    call, _, places, _ = what
    seen = what.seen

    @boxed
    def with_written(inputs: Sequence[Any]) -> Sequence[Any]:
        refuse_inference([inputs[k] for k in seen])
        given = _without_count(inputs, hidden) if hidden else inputs
        return call([*given, *[given[k] for k in places]] if places else given)

    return with_written


def _without_count(inputs: Sequence[Any], unseen: Sequence[int]) -> list[Any]:
    """The inputs, some as the same memory with a count of its own, which goes with the call."""
    given = list(inputs)
    for k in unseen:
        given[k] = given[k].data
    return given


def refuse_inference(written: Sequence[Any]) -> None:
    """Eager's error for a write to a tensor of inference mode outside of it."""
    if not torch.is_inference_mode_enabled():
        for x in written:
            if x.is_inference():
                x.copy_(x)


def that_writes(what: Written) -> Boxed:
    """The call of a graph that writes inputs itself: each write is one to autograd, as in eager, but those through ``.data``."""
    call, _, places, unseen = what
    seen = what.seen

    @boxed
    def with_written(inputs: Sequence[Any]) -> Sequence[Any]:
        if unseen:
            inputs = _without_count(inputs, unseen)
        written = [inputs[k] for k in seen]
        counted = [x for x in written if not x.is_inference()]
        if len(counted) < len(written):
            refuse_inference(written)
        if counted:
            count_writes(counted)
        try:
            return call([*inputs, *[inputs[k] for k in places]] if places else inputs)
        except Exception as error:
            take_back_counts(error, counted)
            raise

    with_written.written = what  # type: ignore[attr-defined]
    return with_written


def with_attributes(
    call: Boxed, module: torch.fx.GraphModule, names: tuple[str, ...], consumes: bool
) -> Boxed:
    """``call`` with the tensors that the graph itself holds given as its last inputs."""
    if not names:
        return call
    return holding(Holds(call, tuple(operator.attrgetter(name)(module) for name in names)), consumes)


def holding(what: Holds, consumes: bool = False) -> Boxed:
    """The call of a graph that holds tensors itself."""
    call, held = what

    @boxed
    def with_held(inputs: Sequence[Any]) -> Sequence[Any]:
        return call(_taken(inputs, consumes, held))

    with_held.holds = what  # type: ignore[attr-defined]  # for who keeps it
    return with_held


def with_subgraphs(
    call: Boxed, partition: Partition, compile: Callable[[torch.fx.GraphModule], Callable[..., Any] | None]
) -> Boxed:
    """``call`` with the subgraphs of its control flow compiled too, and kept alive."""
    entries = entries_of(partition.forward.graph)
    if not entries:
        return call
    for entry in entries:
        entry.compile(compile)
    return keeping(call, entries)


def keeping(call: Boxed, held: object) -> Boxed:
    """``call`` that keeps something alive."""

    @boxed
    def with_held(inputs: Sequence[Any]) -> Sequence[Any]:
        return call(inputs)

    with_held.held = held  # type: ignore[attr-defined]
    return with_held


def _taken(inputs: Sequence[Any], consumes: bool, more: tuple[Any, ...] = ()) -> list[Any]:
    """The inputs in a list of its own, and ``more``; a call that consumes its inputs empties their list."""
    values = [*inputs, *more]
    if consumes:
        inputs.clear()  # type: ignore[attr-defined]
    return values


def viewed_items(program: LoopProgram, ctx: CompileContext) -> frozenset[int]:
    """The items of what a program's call gives that may be views: what ATen makes of memory that it is given, or rows of a larger batch."""
    if isinstance(ctx.options.cudagraph_sizes, tuple):
        return frozenset(range(len(program.outputs)))
    by_aten = {
        name
        for step in program.steps
        if isinstance(step, ExternCall) and step.aliases
        for name in step.outputs
    }
    return frozenset(
        i for i, x in enumerate(program.outputs) if isinstance(x, BufferView) and x.buffer in by_aten
    )


def with_floats(call: Boxed, partition: Partition, program: LoopProgram, consumes: bool) -> Boxed:
    """``call`` with Python floats among its inputs and outputs, which the kernels see as doubles in memory."""
    given = tuple(i for i, spec in enumerate(partition.inputs) if isinstance(spec, FloatSpec))
    output: Any = partition.forward.graph.output_node()
    made = tuple(
        i
        for i, node in enumerate(output.args[0])
        if isinstance(node, torch.fx.Node) and isinstance(node.meta["val"], torch.SymFloat)
    )
    look = look_at_floats(partition.forward.graph)  # which may be made of integers
    if not given and not made and look is None:
        return call
    devices = {b.name: b.device for b in program.buffers}
    places = tuple((i, devices[program.inputs[i]]) for i in given)

    @boxed
    def with_doubles(inputs: Sequence[Any]) -> Sequence[Any]:
        if look is not None:
            look(inputs)
        values = _taken(inputs, consumes)
        for i, device in places:
            values[i] = torch.tensor(values[i], dtype=torch.float64, device=device)
        results = call(values)
        if made:
            results = list(results)
            for i in made:
                results[i] = results[i].item()
        return results

    return with_doubles


def look_at_floats(graph: torch.fx.Graph) -> Callable[[Sequence[Any]], None] | None:
    """What checks, before a graph runs, that types hold the floats (and known numbers) which it puts into tensors; None where there is none to check.

    What is computed of a number read out of a tensor is not known to the host: it is let be.
    """
    number = {node: k for k, node in enumerate(graph.find_nodes(op="placeholder"))}
    known = set(number)
    for node in graph.nodes:
        plain = isinstance(node.meta.get("val"), (torch.SymFloat, torch.SymInt))
        if plain and node.op == "call_function" and all(x in known for x in node.all_input_nodes):
            known.add(node)
    checks = [
        node
        for node in graph.find_nodes(op="call_function", target=REQUIRE_PLACE)
        if all(x in known for x in node.all_input_nodes)
        and not (
            isinstance(node.args[0], torch.fx.Node) and isinstance(node.args[0].meta["val"], torch.SymInt)
        )
    ]
    if not checks:
        return None
    needed = ancestors(checks)
    given = tuple((node, k) for node, k in number.items() if node in needed)
    # past the dispatcher, which costs more than the comparison
    steps = tuple(
        (node, require_place if node.target is REQUIRE_PLACE else node.target, node.args)
        for node in graph.nodes
        if node in needed and node not in number
    )

    def look(inputs: Sequence[Any]) -> None:
        values = {node: inputs[k] for node, k in given}
        for node, function, args in steps:
            values[node] = function(*[values.get(a, a) for a in args])

    return look


def run_eagerly(gm: torch.fx.GraphModule, error: BrazeError) -> Boxed:
    """Without a compiler the captured graph itself is the program."""
    warn_once(
        "BZ5001",
        f"BZ5001: {error.what}: graphs run through ATen, without kernels of braze. "
        "Install gcc or clang (Debian: apt install gcc), or point CC at one.",
        "kernels",
    )
    trace.count("graphs_run_eagerly")

    @boxed
    def call(inputs: Sequence[Any]) -> Sequence[Any]:
        return gm.forward(*inputs)

    return call
