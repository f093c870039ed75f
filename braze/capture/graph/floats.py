"""Arithmetic of Python on floats that are inputs of the graph: a node for each operation, in the order written.

The algebra that serves sizes may not be used here: it takes ``(k + 1e16) - 1e16`` for ``k``. Each result is a symbol of
its own, whose value is computed by its node. What is decided by such floats (``if k > 2``) is a guard on the decision, which computes
them in the same way: a variant serves all floats that it holds for.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.operators import NOT_IN_PLACE
from braze.capture.facts.values import MISSING
from braze.capture.state.trace import GraphState
from braze.graph.private import torch_symbols

#: operations that never raise, whatever the floats are
TOTAL = {
    operator.add: operator.add, operator.iadd: operator.add, operator.sub: operator.sub, operator.isub: operator.sub,
    operator.mul: operator.mul, operator.imul: operator.mul, operator.neg: operator.neg, operator.pos: operator.pos,
    operator.truediv: operator.truediv, operator.itruediv: operator.truediv, abs: abs,
}  # fmt: skip

#: those that raise of 0 alone
WHOLE = {
    operator.mod: operator.mod, operator.imod: operator.mod,
    operator.floordiv: operator.floordiv, operator.ifloordiv: operator.floordiv,
}  # fmt: skip


def is_input(graph: GraphState, value: Any) -> bool:
    """Whether a value is a float of the program's, or computed from such floats alone."""
    return type(value) is torch.SymFloat and graph.mode.depends_on_floats(value)


def combine(graph: GraphState, function: Any, *operands: Any) -> Any:
    """``function`` of operands of which one is a float of the program's."""
    operands = tuple(v if id(v) in graph.written else known(v) for v in operands)
    kept: Any = TOTAL.get(function)
    if function in WHOLE and is_plain(operands[1]) and operands[1]:
        kept = WHOLE[function]
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
    if kept is None or divides:
        made = where_defined(graph, NOT_IN_PLACE.get(function, function), *operands)
        if made is not MISSING:
            return made
    if kept is None or divides or not all(is_plain(v) or is_input(graph, v) for v in operands):
        return noted_as_written(graph, kept, operands, function(*[settled(graph, v) for v in operands]))
    hints = [graph.mode.floats[graph.mode.name_of(v)] if is_input(graph, v) else v for v in operands]
    value = kept(*hints)
    if not math.isfinite(value):
        return function(*[settled(graph, v) for v in operands])
    made = graph.mode.derived_float(value, [v for v in operands if is_input(graph, v)])
    note = computed if any(is_computed(graph, v) for v in operands) else noted
    return note(graph, kept, operands, made)


def called(graph: GraphState, function: Any, value: Any, *numbers: float) -> Any:
    """``function(value, *numbers)`` of a number that is made of sizes and integers: a float, known by its node alone."""
    made = graph.mode.derived_float(function(value.node.hint, *numbers), [value])
    return computed(graph, function, (value, *numbers), made)


def is_of_sizes(graph: GraphState, value: Any) -> bool:
    """Whether a value is made of sizes and integers that change, and told by a call."""
    if type(value) not in (torch.SymInt, torch.SymFloat) or torch_symbols.is_unbacked(value):
        return False
    return not graph.mode.depends_on_floats(value)


def beside_floats(graph: GraphState, value: Any) -> Any:
    """What is made of sizes, as one of the floats that it is computed with."""
    made = graph.mode.derived_float(float(value.node.hint), [value])
    return noted(graph, torch.sym_float, (value,), made)


# -- floats made of sizes: the algebra knows which integers they round to, but takes ``(n / 3 + 1e16) - 1e16`` for ``n / 3``


def noted_as_written(graph: GraphState, function: Any, operands: tuple[Any, ...], result: Any) -> Any:
    """The result of an operation by the algebra, whose operands are kept: what the graph computes of it is computed as the program has written it."""
    known = type(result) is torch.SymFloat and all(result is not v for v in operands)
    if known and function is not None and is_of_sizes(graph, result):
        if all(is_plain(v) or is_of_sizes(graph, v) for v in operands):
            graph.written[id(result)] = (result, function, operands)
    return result


def as_written(graph: GraphState, value: Any) -> Any:
    """A float that several operations have made of sizes, as nodes for these; MISSING for any other value: of one operation the algebra gives what Python does."""
    found = graph.written.get(id(value))
    if found is None or not any(id(v) in graph.written for v in found[2]):
        return MISSING
    return _derived(graph, value)


def _derived(graph: GraphState, value: Any) -> Any:
    """What an operation gives, made of what those before it give; MISSING where one is no number in this call."""
    if id(value) not in graph.written:
        return value
    kept, function, operands = graph.written[id(value)]
    if type(function) is torch.SymFloat:  # made before
        return function
    parts = tuple([_derived(graph, v) for v in operands])
    if MISSING in parts:
        return MISSING
    hint = function(
        *[v.node.hint if is_of_sizes(graph, v) else graph.mode.floats.get(str(v), v) for v in parts]
    )
    if not math.isfinite(hint):
        return MISSING
    made = graph.mode.derived_float(hint, [v for v in parts if type(v) in (torch.SymInt, torch.SymFloat)])
    graph.written[id(value)] = (kept, made, ())
    return computed(graph, function, parts, made)


def is_computed(graph: GraphState, value: Any) -> bool:
    """Whether a value is made by a function of ``math``: residual code computes it as Python does, to the last bit."""
    return type(value) is torch.SymFloat and graph.mode.name_of(value) in graph.computed


def made_of(graph: GraphState, value: Any) -> tuple[Any, tuple[Any, ...]]:
    """The function that makes a float, and what of."""
    return graph.mode.decided.made[graph.mode.name_of(value)]


# -- what is decided by floats


def where_defined(graph: GraphState, function: Any, *operands: Any) -> Any:
    """What an operation that may raise gives of floats of the program's where it gives a finite float, which is guarded; MISSING for any other."""
    if not any(is_input(graph, v) for v in operands):  # made of sizes: the algebra's
        return MISSING
    value = graph.mode.decided.answer(function, *operands)
    if value is None:
        return MISSING
    made = graph.mode.derived_float(value, [v for v in operands if is_input(graph, v)])
    return computed(graph, function, operands, made)


def rounded(graph: GraphState, args: Any, kwargs: Any) -> Any:
    """``round(number, ndigits)`` of a float of the program's, which residual code computes: no kernel does; MISSING for any other call."""
    given: dict[str, Any] = {**dict(zip(("number", "ndigits"), args, strict=False)), **kwargs}
    value: Any = given.get("number")
    ndigits = given.get("ndigits")
    if len(args) + len(kwargs) != 2 or type(ndigits) is not int or not is_input(graph, value):
        return MISSING
    if (found := graph.mode.decided.answer(round, value, ndigits)) is None:
        return MISSING
    made = graph.mode.derived_float(found, [value])
    graph.computed.add(graph.mode.name_of(made))
    graph.mode.decided.made[graph.mode.name_of(made)] = (round, (value, ndigits))
    return made


def in_a_graph(graph: GraphState, value: Any) -> Any:
    """A float that is rounded so, as the number of this call, which is guarded; MISSING of any other."""
    if not is_computed(graph, value) or made_of(graph, value)[0] is not round:
        return MISSING
    operand, ndigits = made_of(graph, value)[1]
    # to guards a zero is equal to one of the other sign
    return float(value) or round(float(operand), ndigits)


def decided(graph: GraphState, function: Any, *operands: Any) -> Any:
    """What a question is answered, or which integer a float is made, of floats of the program's: guarded to be that again; MISSING for others."""
    if not any(is_input(graph, v) for v in operands):
        return MISSING
    value = graph.mode.decided.answer(function, *map(known, operands))
    return MISSING if value is None else value


def asked(graph: GraphState, function: Any, args: Any, kwargs: Any) -> Any:
    """The same of a call that may have other arguments than one float."""
    of_one = len(args) == 1 and not kwargs and type(args[0]) is torch.SymFloat
    return decided(graph, function, *args) if of_one else MISSING


def noted(graph: GraphState, function: Any, operands: tuple[Any, ...], made: Any) -> Any:
    """A symbol, whose value a node computes of operands."""
    graph.mode.decided.made[graph.mode.name_of(made)] = (function, operands)
    node = graph.recorder.make(function, tuple(map(graph.recorder.argument, operands)), made)
    graph.recorder.symbols[made.node._expr] = node
    return made


def computed(graph: GraphState, function: Any, operands: Any, made: Any) -> Any:
    """The same of one that is made by a function of ``math``, or of such a one."""
    graph.computed.add(graph.mode.name_of(made))
    return noted(graph, function, operands, made)


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
