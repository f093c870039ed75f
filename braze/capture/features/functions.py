"""``torch.autograd.Function``: its forward is captured; where gradients are wanted it is one node, with its own backward.

Autograd will run both halves of that node, once, on fakes. So they may only compute: a function that writes to objects or to
tensors that it is not given, in either half, ends the graph, as one does whose backward cannot be interpreted.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.purity import drawn_by, reaches, together, writes
from braze.capture.features.subgraphs import Traced, region, traced, versions, written_since
from braze.capture.features.torch_rules import grad_off
from braze.capture.python.attributes import load_attr
from braze.capture.state.handlers import Feature
from braze.capture.state.outside import Outside
from braze.capture.state.trace import GraphState, Trace
from braze.graph.calls.autograd_calls import applied
from braze.graph.operators.operators import OPERATORS, Family
from braze.graph.private.torch_compat import disable_functions, function_apply, storage_key

FEATURE = Feature()
rule = FEATURE.call

Function = torch.autograd.Function
Node = torch.fx.Node


WHAT = "an autograd function"


class Context:
    """What a forward gets as ``ctx``, for as long as the trace lasts."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()
        self.dirty: tuple[Any, ...] = ()
        self.plain: tuple[Any, ...] = ()
        self.materializes = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Nothing is differentiated in the trace, so that they need only be readable."""
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """As for the backward."""

    def mark_dirty(self, *tensors: Any) -> None:
        """Inputs that the forward writes are its outputs as they are."""
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Known to autograd when the node runs."""
        self.plain = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Known to autograd when the node runs."""
        self.materializes = value


@rule(function_apply)
def apply(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Interpret the forward; where autograd must see the function itself, put one call of it in its place."""
    cls, *inputs = args
    if t.graph.transforms:
        graph_break("BZ1019", "an autograd function has a derivative of its own")
    if t.graph.batched and not _batched_by_its_forward(t, cls):
        graph_break("BZ1019", "an autograd function says itself how it is batched, or does not say it")
    context = Context()
    if not torch.is_grad_enabled() or not any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    ):
        context.needs_input_grad = (False,) * len(inputs)
        return _forward(t, cls, inputs, kwargs, context)
    context.needs_input_grad = tuple([isinstance(x, torch.Tensor) and x.requires_grad for x in inputs])
    graph = t.graph.recorder.graph
    before = next(iter(reversed(graph.nodes)), None)
    with region(t, WHAT, (cls.forward, cls.backward, *inputs), tensors=False):
        given = [x for x in inputs if isinstance(x, torch.Tensor)]
        memory = {storage_key(x) for x in given}
        others, met = (
            [(x, v) for x, v in versions(t.graph) if storage_key(x) not in memory],
            len(t.outside.tree.inputs),
        )
        output = _forward(t, cls, inputs, kwargs, context)
        forward = _since(graph, before)
        backward = _backward(t, cls, context, output)
        inside = [*forward, *(backward.recorder.graph.nodes if backward else ())]
        if written_since(t, others, met, inside):
            graph_break("BZ1019", "it writes to tensors from outside")
        _refuse_tensors(t.graph, given, forward, backward)
        _refuse_numbers(t.outside, inputs, inside)
    drawn = drawn_by(forward)
    written = any(writes(node) and reaches(node, memory) for node in forward)
    t.graph.recorder.take_back(_since(graph, before))
    target = applied(cls)
    target.scales &= backward is not None and context.materializes and scales(backward)
    target.draws = drawn if target.draws is None else together((target.draws, drawn))
    target.writes |= written
    return t.graph.recorder.call(target, tuple(inputs), kwargs)


def _batched_by_its_forward(t: Trace, cls: Any) -> bool:
    """Whether ``vmap`` runs the forward on batches: not where the function has a rule in its place, nor where it refuses."""
    return (
        load_attr(t, cls, "generate_vmap_rule") is True
        and load_attr(t, cls, "vmap") is Function.vmap
        and load_attr(t, cls, "setup_context") is not Function.setup_context
    )


def _since(graph: torch.fx.Graph, before: Node | None) -> list[Node]:
    """What was recorded after a node, the last first."""
    nodes = itertools.takewhile(lambda n: n is not before, reversed(graph.nodes))
    return [n for n in nodes if n.op != "placeholder"]


def _refuse_tensors(
    graph: GraphState, given: list[Any], forward: list[Node], backward: Traced | None
) -> None:
    """Break where the backward reads other tensors than it is given: later ones would not be seen."""
    known = {*forward, *[graph.recorder.nodes[id(x)][1] for x in given if id(x) in graph.recorder.nodes]}
    for value in backward.recorder.lifted if backward else ():
        if isinstance(value, torch.Tensor) and graph.recorder.node_of(value) not in known:
            graph_break("BZ1019", "its backward uses tensors from outside")


def _refuse_numbers(outside: Outside, inputs: list[Any], nodes: list[Node]) -> None:
    """Break where it reads a number from outside that is a symbol: it will read the number itself, once, when it is traced."""
    read = names_of(place.value for place in outside.symbolic_places) - names_of(inputs)
    if read and not read.isdisjoint(names_of(n.meta.get("val") for x in nodes for n in x.all_input_nodes)):
        graph_break("BZ1019", "it uses a number from outside that changes")


def names_of(values: Iterable[Any]) -> set[str]:
    """The symbols in numbers."""
    numbers = [x for x in values if isinstance(x, torch.SymInt | torch.SymFloat)]
    return {str(symbol) for x in numbers for symbol in x.node.expr.free_symbols}


def _forward(t: Trace, cls: Any, inputs: list[Any], kwargs: Any, context: Context) -> Any:
    forward, setup = load_attr(t, cls, "forward"), load_attr(t, cls, "setup_context")
    with grad_off(t):
        if setup is Function.setup_context:
            output = t.call(forward, (context, *inputs), kwargs)
        else:
            bound = inspect.signature(cls.forward).bind(*inputs, **kwargs)
            bound.apply_defaults()
            output = t.call(forward, bound.args, bound.kwargs)
            t.call(setup, (context, bound.args, output), None)
    if isinstance(output, tuple):
        return tuple(_fresh(t.graph, x, inputs, context) for x in output)
    return _fresh(t.graph, output, inputs, context)


def _backward(t: Trace, cls: Any, context: Context, output: Any) -> Traced | None:
    """Interpret the backward for what it reads, which is guarded, and for what it may not do."""
    if cls.backward is Function.backward:
        return None  # there is none, or one under its old name: known to autograd when the node runs
    gradients: list[Any] = []
    for x in output if isinstance(output, tuple) else (output,):
        if not isinstance(x, torch.Tensor) or (
            not context.materializes and any(x is y for y in context.plain)
        ):
            gradients.append(None)
            continue
        with disable_functions(), t.graph.mode:
            gradients.append(torch.empty_like(x, requires_grad=False))
    own = [x for x in gradients if x is not None]
    with grad_off(t):
        return traced(t, load_attr(t, cls, "backward"), (context, *gradients), own)


#: operations that give zeros if any argument is zero
PRODUCTS = frozenset({"mul", "matmul", "mm", "bmm"})
#: operations that give zeros if all arguments are
SUMS = frozenset({"add", "sub", "cat", "stack"})
#: operations that give zeros if the first argument is, beside views
OF_FIRST = frozenset(
    {
        "neg", "clone", "contiguous", "view_as", "reshape_as", "flatten", "expand_as", "getitem", "chunk", "sum", "mean", "to",
        "float", "double", "half", "bfloat16", "type_as", "tril", "triu", "div", "truediv",
    }
)  # fmt: skip


def is_of_first(name: str) -> bool:
    """Whether an operation gives zeros if its first argument is zeros."""
    known = OPERATORS.get(name)
    return name in OF_FIRST or (known is not None and known.family is Family.VIEW)


def scales(part: Traced) -> bool:
    """Whether a backward surely makes zeros of gradients that are zero: it only scales, moves and adds them."""
    behind = {part.recorder.node_of(x) for x in part.recorder.own}
    for node in part.recorder.graph.nodes:
        given = node.all_input_nodes
        if node.op == "placeholder" or behind.isdisjoint(given):
            continue
        name = getattr(node.target, "__name__", str(node.target)).strip("_")
        if name in PRODUCTS:
            zero = True
        elif name in SUMS:
            zero = behind.issuperset(given) and not any(isinstance(x, float | int) for x in node.args[:2])
        else:
            zero = is_of_first(name) and node.args[0] in behind and behind.isdisjoint(given[1:])
        if not zero:
            return False
        behind.add(node)
    return True


def _fresh(graph: GraphState, output: Any, inputs: list[Any], context: Context) -> Any:
    """An output; an input that comes out unchanged is a view of itself."""
    if isinstance(output, torch.Tensor) and any(output is x for x in inputs):
        if not any(output is x for x in context.dirty):
            return graph.recorder.call(torch.Tensor.view_as, (output, output), {})
    return output
