"""SYMBOLIC sizes in the graph: a node for each SymInt that a recorded call takes."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.values import MISSING, NUMBER_OF, UnknownText
from braze.capture.graph import floats
from braze.capture.outside import texts
from braze.capture.state.handlers import HANDLERS
from braze.capture.state.trace import Recording
from braze.graph.private import torch_symbols
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.graph.sizes.numbers import FUNCTIONS

HASHED = (dict, set, frozenset)

#: in a tuple that is a key: what is not known now
KEYS_LATER = frozenset({*SYMBOLIC, UnknownText})


def as_key(value: Any) -> Any:
    """A key with the numbers that symbols in it stand for, which are guarded from here on: symbols have no hash."""
    kind = type(value)
    if kind in SYMBOLIC:
        return NUMBER_OF[kind](value)
    if kind is UnknownText:
        return texts.written(value)
    if (kind is tuple or kind is torch.Size) and any(
        type(v) in KEYS_LATER or type(v) is tuple for v in value
    ):
        return kind(map(as_key, value))
    return value


def node_for(recorder: Recording, value: Any) -> Any:
    """The FX node (or plain number) of a symbolic int, float or bool."""
    known = value.node.maybe_as_int() if isinstance(value, torch.SymInt) else None
    if known is not None:
        return known
    if isinstance(value, torch.SymFloat):
        written = floats.as_written(recorder.t.graph, value)
        value = value if written is MISSING else written
        number = floats.in_a_graph(recorder.t.graph, value)
        if number is not MISSING:
            return number
        if value.node._expr in recorder.symbols:
            return recorder.symbols[value.node._expr]
    made = of_expression(recorder, value.node.expr, value)
    # SymPy takes 0.0 * n for the integer 0
    return float(made) if isinstance(value, torch.SymFloat) and type(made) is int else made


def of_expression(recorder: Recording, expr: Any, value: Any = None) -> Any:
    """Nodes that compute a SymPy expression from sizes of inputs."""
    found = recorder.symbols.get(expr)
    if found is not None:
        return found
    if expr.is_Integer:
        return int(expr)
    if torch_symbols.is_condition(expr) and not expr.free_symbols:
        return bool(expr)
    if expr.is_Float or (expr.is_number and not expr.free_symbols):
        return float(expr)
    if expr.is_Symbol:
        node = of_symbol(recorder, expr)
    else:
        function = FUNCTIONS.get(expr.func.__name__)
        if function is None:
            graph_break("BZ1015", f"a symbolic size {expr} that braze cannot write into a graph")
        args = [of_expression(recorder, a) for a in expr.args]
        node = args[0]
        if len(args) == 1:
            node = recorder.graph.create_node("call_function", function, (node,), {})
        done = expr.args[0]
        for other, part in zip(args[1:], expr.args[1:], strict=True):
            if isinstance(node, torch.fx.Node) and "val" not in node.meta:
                node.meta["val"] = make_value(recorder, done)
            done = expr.func(done, part)
            node = recorder.graph.create_node("call_function", function, (node, other), {})
        node.meta["val"] = value if value is not None else make_value(recorder, expr)
        recorder.place(node)
    recorder.symbols[expr] = node
    return node


def of_symbol(recorder: Recording, symbol: Any) -> Any:
    """A symbol: an int input, or the size of a tensor input."""
    for place in recorder.t.outside.symbolic_places:
        if place.value.node.expr == symbol:
            return recorder.placeholder(place, place.value)
    for place in recorder.t.outside.tree.inputs:
        for dim, size in enumerate(place.value.shape):
            if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                return size_of(recorder, place.value, dim)
    if symbol in recorder.sized:
        return size_of(recorder, *recorder.sized[symbol])
    for node_of in HANDLERS.nodes:
        node = node_of(recorder, symbol)
        if node is not None:
            return node
    graph_break("BZ1015", f"a size {symbol} that is known only when the graph runs")


def tell_symbols(recorder: Recording, kept: set[torch.fx.Node]) -> None:
    """Keep inputs that tell the symbols in which sizes of the graph's other inputs are written: ``s + 4`` alone does not tell s.

    ``kept``: inputs that stay, whether anything in the graph reads them or not.
    """
    told, asked = set(), {}
    for node, place in recorder.placeholders:
        if node.users or node in kept:
            for expr in _sizes(place.value):
                told.add(expr)
                asked.update(dict.fromkeys(sorted(expr.free_symbols, key=str)))
    for symbol in asked:
        if symbol not in told:
            places = (p for p in recorder.t.outside.tree.inputs if symbol in _sizes(p.value))
            kept.update(recorder.node_of(place.value) for place in itertools.islice(places, 1))


def _sizes(value: Any) -> list[Any]:
    """The expressions of a tensor's symbolic sizes, or of a symbolic number."""
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return [size.node.expr for size in sizes if isinstance(size, torch.SymInt)]


def size_of(recorder: Recording, tensor: torch.Tensor, dim: int) -> torch.fx.Node:
    """The node of a tensor's size."""
    return recorder.make(torch.ops.aten.sym_size.int, (recorder.node_of(tensor), dim), tensor.shape[dim])


def make_value(recorder: Recording, expr: Any) -> Any:
    """A SymInt for an expression."""
    env = recorder.mode.env
    assert env is not None
    known = torch_symbols.hints(env)
    found = expr.xreplace({s: known[s] for s in expr.free_symbols if s in known})
    if found.free_symbols:  # of what only the data tell there is no hint
        found = None
    if torch_symbols.is_condition(expr):
        return torch_symbols.bool_of(env, expr)
    if expr.is_integer:
        return env.create_symintnode(expr, hint=None if found is None else int(found))
    return env.create_symfloatnode(expr, hint=None if found is None else float(found))
