"""From the end of a trace to its Capture: graph outputs, recipes, effects, guards, and the state at a break."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, NoReturn

import torch
import torch.fx

from braze.capture.facts import purity
from braze.capture.facts.breaks import FORMATTED, FORMATTED_NUMBER, BreakSignal, Retry, Unrebuildable
from braze.capture.facts.records import (
    Capture,
    Check,
    GraphBreak,
    Guard,
    IdentityKey,
    ShapeRelation,
    Source,
    Step,
    text_of,
)
from braze.capture.facts.values import UnknownText
from braze.capture.finish.effects import collect
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.finish.state_at_break import break_state
from braze.capture.finish.written_after import mark
from braze.capture.graph.sizes import tell_symbols
from braze.capture.outside import changes, told_apart
from braze.capture.python import data_errors
from braze.capture.python.raised import held_midway
from braze.capture.state.frames import Frames
from braze.capture.state.ledger import Ledger
from braze.capture.state.sources import Node
from braze.capture.state.trace import GraphState, Recording, Trace
from braze.graph.fakes.fakes import spec_of
from braze.graph.nodes.captured import Captured
from braze.graph.nodes.facts import facts, set_facts, settle_places
from braze.graph.nodes.specs import FloatSpec, SymbolSpec, TensorSpec
from braze.graph.private import torch_compat
from braze.support.errors import Origin


def at_return(t: Trace, value: Any) -> Capture:
    """The Capture of a trace that ran to its end."""
    table = RecipeTable(t)
    try:
        result = table.id_of(value)
        effects = collect(t, table)
    except Unrebuildable as error:
        retry_before(t.done, error)
    except RecursionError:
        run_as_it_is(t.frames)
    return assemble(t, table, result, effects, None)


def at_break(t: Trace) -> Capture:
    """The Capture of a trace that stopped before the instruction that broke."""
    if t.graph.inference:
        # the graph enters inference mode and leaves it: what breaks in between runs whole, as it is
        raise Retry(max(1, t.graph.inference[0][-1]))
    if (generator := held_midway(t.done)) is not None:
        retry_before(t.done, Unrebuildable(generator))
    table = RecipeTable(t)
    try:
        pending = break_state(t.frames, table)
        effects = collect(t, table)
    except Unrebuildable as error:
        retry_before(t.done, error)
    except RecursionError:
        run_as_it_is(t.frames)
    except BreakSignal:  # a symbolic number that no graph can compute: before it was made
        raise Retry(max(1, t.frames.steps - 1)) from None
    return assemble(t, table, None, effects, pending)


def retry_before(done: Ledger, error: Unrebuildable) -> NoReturn:
    """Trace again, to before the value was made that cannot be rebuilt."""
    step = done.birth(error.value) or 1
    if done.frames.break_at is None:
        from_value = type(error.value).__name__
        if type(error.value) is UnknownText:
            of_tensor = error.value.made is None
            done.frames.break_at = BreakSignal(*(FORMATTED if of_tensor else FORMATTED_NUMBER), skip=True)
            raise Retry(max(1, min(step, done.frames.steps - 1))) from None
        what = f"a {from_value} behind that braze cannot rebuild"
        if issubclass(type(error.value), torch.Tensor) and id(error.value) in done.leaves:
            what = "behind a tensor that it makes and that gradients may be asked for"
        done.frames.break_at = BreakSignal("BZ1014", f"the function leaves {what}", skip=True)
    raise Retry(max(1, min(step, done.frames.steps - 1))) from None


def run_as_it_is(frames: Frames) -> NoReturn:
    """The function runs as it is: it has made a value that holds values in values, deeper than anything here follows."""
    frames.break_at = BreakSignal(
        "BZ1016", "the function leaves containers that are nested too deeply", skip=True
    )
    raise Retry(1) from None


def assemble(
    t: Trace, table: RecipeTable, result: int | None, effects: Any, pending: GraphBreak | None
) -> Capture:
    """Close the graph and put everything together."""
    graph = t.graph.recorder.graph
    t.graph.mode.release()
    for place in t.outside.symbolic_places:  # bound as inputs, used by the graph or not
        table.kept.add(t.graph.recorder.placeholder_of(place))
    tell_symbols(t.graph.recorder, table.kept)
    inputs = []
    for node, place in t.graph.recorder.placeholders:
        if node.users or node in table.kept:
            inputs.append((node, place))
        else:
            graph.erase_node(node)
    drawn = drawn_inputs(t.graph.recorder)
    data_errors.verify(t.done, graph)
    module = close_graph(t.graph, table)
    if module is None:
        inputs = [
            (node, place)
            for node, place in inputs
            if node in table.kept and place in t.outside.symbolic_places
        ]
    if pending is not None and module is not None:
        mark(t.frames, [*(node for node, _ in inputs), *table.outputs])
    texts: dict[Any, str] = {}
    for node, place in inputs:
        set_facts(node, source=text_of(place.source, texts))
    t.outside.marked.verify()
    settle_floats(t)
    made = Capture(
        code=t.outside.function.__code__,
        name=t.outside.function.__qualname__,
        graph=module,
        inputs=tuple(place.source for _, place in inputs),
        specs=tuple([spec(t.graph, place.value) for _, place in inputs]),
        guards=tuple(guards(t)),
        recipes=tuple(table.recipes),
        effects=tuple(effects),
        result=result,
        graph_break=pending,
        instructions=t.frames.steps,
        examples=(*(place.value for _, place in inputs), *(node.meta["val"] for _, node in drawn)),
        inlined=tuple(t.outside.inlined),
        contents=tuple((place.source, held) for place, held in t.outside.contents.items()),
        draws=tuple(what for what, _, _ in t.done.draws),
        drawn=tuple(index for index, _ in drawn),
        apart=over_arrays(module, inputs) if module is not None else (),
    )
    if module is not None:
        resumed = getattr(t.outside.function, "__braze_resumed__", None) is not None
        module.meta["raises_alone"] = purity.raises_alone(made, resumed)
    return made


def drawn_inputs(recorder: Recording) -> list[tuple[int, torch.fx.Node]]:
    """The draws that the graph uses, as its last inputs; those that it does not use after all are taken out."""
    used = []
    for given, index in recorder.drawn.items():
        (read,) = given.users
        if read.users:
            recorder.mode.let_read()
            used.append((index, given))
            continue
        recorder.graph.erase_node(read)
        recorder.graph.erase_node(given)
    return used


def close_graph(state: GraphState, table: RecipeTable) -> torch.fx.GraphModule | None:
    """The graph with its output; None where it computes nothing."""
    graph = state.recorder.graph
    if not any(n.op != "placeholder" and not facts(n).setting for n in graph.nodes):
        return None
    output = graph.output(tuple(table.outputs))
    output.meta["val"] = tuple(n.meta.get("val") for n in table.outputs)
    drop_unread_parts(graph)
    drop_open_contexts(graph)
    settle_places(graph.nodes, origin)
    return Captured(graph, state.recorder.modules)


def drop_unread_parts(graph: torch.fx.Graph) -> None:
    """Remove what takes parts of results for nobody: each result of several tensors was taken apart when it was made."""
    for node in reversed(graph.nodes):
        if node.target is operator.getitem and not node.users:
            of = node.args[0]
            if isinstance(of, torch.fx.Node) and isinstance(of.meta.get("val"), (tuple, list)):
                graph.erase_node(node)


def drop_open_contexts(graph: torch.fx.Graph) -> None:
    """Remove what enters a context of autocast that is left behind the graph, or leaves one that was entered before: whether the graph runs as it is or not,
    the code around it counts those."""
    entered: list[torch.fx.Node] = []
    for node in list(graph.nodes):
        if node.target is torch.autocast_increment_nesting:
            entered.append(node)
        elif node.target is torch.autocast_decrement_nesting and entered:
            entered.pop()
        elif node.target is torch.autocast_decrement_nesting:
            graph.erase_node(node)
    for node in entered:
        graph.erase_node(node)


def origin(here: Any) -> Origin | None:
    """A place as a record."""
    decoded, at = here
    return decoded.origin(at)


def spec(graph: GraphState, value: Any) -> Any:
    """An input's metadata."""
    if isinstance(value, torch.Tensor):
        made = graph.specs[id(value)] = spec_of(value)
        return made
    kind = FloatSpec if isinstance(value, torch.SymFloat) else SymbolSpec
    return kind(str(value.node.expr), value.node.hint)


def settle_floats(t: Trace) -> None:
    """A number that the graph took for what it is now, rather than for any, must be that at each call."""
    settled = t.graph.mode.settled_floats()
    for place in t.outside.symbolic_places:
        if isinstance(place.value, torch.SymFloat) and t.graph.mode.name_of(place.value) in settled:
            place.guards.append((Check.EQUAL, place.real))


def tell_decisions(t: Trace) -> list[Guard]:
    """What was decided by floats, over symbols which the places of these bind."""
    decisions = t.graph.mode.decided.told(t.graph.mode.env)
    named = {name for _, names in decisions for name in names}
    for place in t.outside.symbolic_places:
        if isinstance(place.value, torch.SymFloat) and t.graph.mode.name_of(place.value) in named:
            place.guards.append((Check.EQUAL, FloatSpec(t.graph.mode.name_of(place.value), place.real)))
    return [Guard(None, Check.RANGE, ShapeRelation(text, names)) for text, names in decisions]


def guards(t: Trace) -> list[Guard]:
    """Everything the trace assumed, parents before children."""
    decisions = tell_decisions(t)
    found = [Guard(None, check, expected) for check, expected in t.outside.settings.guards()]
    seen: set[Node] = set()
    for node in t.outside.tree.order:
        if node not in seen:
            add_guards(t, node, found, seen)
    if t.frames.break_at is not None:
        found += t.frames.break_at.guards
    sources = [n.source for n in t.outside.tree.inputs]
    if sources or t.outside.unfaked:
        found.append(Guard(DUAL_LEVEL, Check.EQUAL, t.outside.settings.dual_level))
    if len(sources) > 1:
        found.append(Guard(sources[0], Check.DISTINCT, tuple(sources[1:])))
    tensors = set(sources)
    pairs = {(a.source, b.source): None for a, b in t.outside.tree.apart}
    found += [Guard(a, Check.DISTINCT, (b,)) for a, b in pairs if a not in tensors or b not in tensors]
    asked = [n.source for n in told_apart.kept_apart(t.outside)]
    if len(asked) > 1:
        found.append(Guard(asked[0], Check.DISTINCT, tuple(asked[1:])))
    found += [Guard(group[0], Check.DISTINCT, group[1:]) for group in changes.may_be_one(t)]
    for expression, names in t.graph.mode.shape_relations():
        if not set(names) <= t.graph.mode.symbols.keys() | t.graph.mode.floats.keys():
            continue  # about a size that only the data decides (``nonzero``): no call is told by it
        found.append(Guard(None, Check.RANGE, ShapeRelation(expression, tuple(names))))
    return found + decisions


def as_read(graph: GraphState, node: Node) -> TensorSpec:
    """A tensor's metadata before the program changed it."""
    spec = graph.specs.get(id(node.value)) or spec_of(node.value)
    if spec.requires_grad is not node.real.requires_grad:  # by requires_grad_ in the trace
        spec = dataclasses.replace(spec, requires_grad=node.real.requires_grad)
    return spec


def add_guards(t: Trace, node: Node, found: list[Guard], seen: set[Node]) -> None:
    """The guards of a place, once, and before them those of the places that lead to it."""
    if node in seen:
        return
    seen.add(node)
    parent = node.parent
    if parent is not None and parent not in seen:
        add_guards(t, parent, found, seen)
    here, source, where, real = node.origin, node.source, None, node.real
    if here is not None:
        decoded, at = here
        where = decoded.origins.get(at) or decoded.origin(at)
    is_tensor = issubclass(type(real), torch.Tensor) and issubclass(type(node.value), torch.Tensor)
    for check, expected in node.guards:
        if check is ALIAS:
            is_tensor, expected = False, expected.source
        found.append(Guard(source, check, expected, where))
    if is_tensor and id(real) not in t.outside.unfaked:
        found.append(Guard(source, Check.TENSOR, as_read(t.graph, node), where))
    if node.absent:
        found.append(Guard(source, Check.ABSENT, tuple(node.absent), where))


#: where PyTorch keeps whether tensors have tangents of forward-mode differentiation
_module, _name = torch_compat.DUAL_LEVEL
DUAL_LEVEL = Source(Step.DICT, _name, Source(Step.CONSTANT, IdentityKey(_module)))

#: read once: until Python 3.12 each look-up of a member runs Python code of its enumeration
ALIAS = Check.ALIAS


def over_arrays(graph: torch.fx.GraphModule, inputs: Any) -> tuple[int, ...]:
    """Which inputs of a graph that writes are over arrays' memory: where they overlap others, no tensor says so."""
    made = tuple([i for i, (_, place) in enumerate(inputs) if place.step is Step.TENSOR_OF])
    if not made or sum(isinstance(place.value, torch.Tensor) for _, place in inputs) == 1:
        return ()
    parts = [part.graph for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]
    return made if any(purity.writes(node) for part in parts for node in part.nodes) else ()
