"""Arithmetic of Python on floats that are inputs of the graph: a node for each operation, in the order written.

The algebra that serves sizes may not be used here: it takes ``(k + 1e16) - 1e16`` for ``k``. Each result is a symbol of
its own, whose value is computed by its node.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.state.trace import GraphState
from braze.graph import torch_symbols

#: operations that never raise, whatever the floats are
TOTAL = {
    operator.add: operator.add, operator.iadd: operator.add, operator.sub: operator.sub, operator.isub: operator.sub,
    operator.mul: operator.mul, operator.imul: operator.mul, operator.neg: operator.neg, operator.pos: operator.pos,
    operator.truediv: operator.truediv, operator.itruediv: operator.truediv, abs: abs,
}  # fmt: skip


def is_input(graph: GraphState, value: Any) -> bool:
    """Whether a value is a float of the program's, or computed from such floats alone."""
    return type(value) is torch.SymFloat and graph.mode.depends_on_floats(value)


def combine(graph: GraphState, function: Any, *operands: Any) -> Any:
    """``function`` of operands of which one is a float of the program's."""
    operands = tuple(known(v) for v in operands)
    kept: Any = TOTAL.get(function)
    if any(type(v) is torch.SymFloat and graph.mode.name_of(v) in graph.mode.read_floats for v in operands):
        return combine_read(graph, kept, function, operands)
    # what is made of sizes is guarded not to be zero where it divides
    divides = (
        kept is operator.truediv
        and type(operands[1]) not in (int, float)
        and not is_of_sizes(graph, operands[1])
    )
    if kept is not None and not divides and any(is_input(graph, v) for v in operands):
        operands = tuple(beside_floats(graph, v) if is_of_sizes(graph, v) else v for v in operands)
    if kept is None or divides or not all(is_plain(v) or is_input(graph, v) for v in operands):
        return function(*[settled(graph, v) for v in operands])
    hints = [graph.mode.floats[graph.mode.name_of(v)] if is_input(graph, v) else v for v in operands]
    value = kept(*hints)
    if not math.isfinite(value):
        return function(*[settled(graph, v) for v in operands])
    made = graph.mode.derived_float(value, [v for v in operands if is_input(graph, v)])
    if any(is_computed(graph, v) for v in operands):
        graph.computed[graph.mode.name_of(made)] = (kept, operands)
    return noted(graph, kept, operands, made)


def called(graph: GraphState, function: Any, value: Any, *numbers: float) -> Any:
    """``function(value, *numbers)`` of a number that is made of sizes and integers: a float, known by its node alone."""
    made = graph.mode.derived_float(function(value.node.hint, *numbers), [value])
    graph.computed[graph.mode.name_of(made)] = (function, (value, *numbers))
    return noted(graph, function, (value, *numbers), made)


def is_of_sizes(graph: GraphState, value: Any) -> bool:
    """Whether a value is made of sizes and integers that change, and told by a call."""
    if type(value) not in (torch.SymInt, torch.SymFloat) or torch_symbols.is_unbacked(value):
        return False
    return not graph.mode.depends_on_floats(value)


def beside_floats(graph: GraphState, value: Any) -> Any:
    """What is made of sizes, as one of the floats that it is computed with."""
    made = graph.mode.derived_float(float(value.node.hint), [value])
    return noted(graph, torch.sym_float, (value,), made)


def is_computed(graph: GraphState, value: Any) -> bool:
    """Whether a value is made by a function of ``math``."""
    return type(value) is torch.SymFloat and graph.mode.name_of(value) in graph.computed


def noted(graph: GraphState, function: Any, operands: tuple[Any, ...], made: Any) -> Any:
    """A symbol, whose value a node computes of operands."""
    node = graph.recorder.make(function, tuple(map(graph.recorder.argument, operands)), made)
    graph.recorder.symbols[made.node._expr] = node
    return made


def combine_read(graph: GraphState, kept: Any, function: Any, operands: tuple[Any, ...]) -> Any:
    """``function`` of operands of which one was read out of a tensor: nothing is known of the result."""
    divisor = operands[1] if kept is operator.truediv else 1
    if kept is None or not (type(divisor) in (int, float) and divisor):
        name = getattr(kept or function, "__name__", "an operation")
        graph_break(
            "BZ1020", f"{name} of a float that only the data tell may raise an exception", HINT_TENSOR
        )
    return noted(graph, kept, operands, graph.mode.unknown(float))


HINT_TENSOR = "compute with the tensor itself, and read the result out of it"


def known(value: Any) -> Any:
    """A number that something has been decided of, as that number; anything else as it is."""
    if type(value) is torch.SymFloat and not value.node.expr.free_symbols:
        return float(value)
    return value


def is_plain(value: Any) -> bool:
    """Whether a value is a number of Python's that is the same at each call."""
    return type(value) is float or (type(value) in (int, bool) and abs(value) < 1 << 53)


def settled(graph: GraphState, value: Any) -> Any:
    """A float of the program's as the number that it is in this call, which is guarded from here on."""
    return float(value) if is_input(graph, value) else value
