"""What a trace assumed of its size symbols, as Python text over their names.

The expressions come from PyTorch's ShapeEnv as SymPy trees. They are written by the names of their node
classes, so that SymPy and PyTorch's own functions need not be imported here.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from braze.graph.private import torch_symbols
from braze.graph.sizes.numbers import FUNCTIONS
from braze.support.errors import Unsupported
from braze.symbolic import names

Relation = tuple[str, tuple[str, ...]]


def relations(
    env: Any,
    ints: Collection[str] = (),
    floats: Mapping[str, float] | None = None,
    *,
    bound: Collection[str] | None = None,
) -> list[Relation]:
    """(Python expression, names in it) for each guard and each range of the ShapeEnv, without repeats.

    A symbol that the trace found to be a number or another symbol is written as that, as it is in specs.
    ``ints`` names the symbols that are bound as themselves: what they were found to be is a relation too.
    ``bound``: every symbol that a call tells; what only the data tell, and no input does, is left out.
    ``floats``: floats of which something was decided are guarded by value, and stand here as that value.
    """
    found: dict[str, Relation] = {}
    replaced = dict(env.replacements)
    floats = floats or {}
    if floats:
        replaced.update((s, value) for s, value in torch_symbols.hints(env).items() if str(s) in floats)
    for symbol, bounds in env.var_to_range.items():
        if str(symbol) in floats:
            continue
        stands_for = _settled(symbol, replaced)
        for text in _range(python_text(stands_for), bounds):
            if stands_for.free_symbols:
                found[text] = (text, tuple(sorted(str(s) for s in stands_for.free_symbols)))
    for symbol in replaced:
        if str(symbol) in ints:
            expr = _settled(symbol, replaced)
            text = f"({symbol} == {python_text(expr)})"
            found[text] = (text, (str(symbol), *sorted(str(s) for s in expr.free_symbols)))
    for guard in env.guards:
        expr = _settled(guard.expr, replaced)
        if expr.free_symbols:
            text = python_text(expr)
            found[text] = (text, tuple(sorted(str(s) for s in expr.free_symbols)))
    if bound is None:
        return list(found.values())
    return [
        r for r in found.values() if all(n in bound or not torch_symbols.is_unbacked_symbol(n) for n in r[1])
    ]


def settled_sizes(env: Any) -> dict[str, str]:
    """Symbols that the trace has found to be a number or another symbol, and that as Python."""
    replaced = dict(env.replacements)
    return {str(symbol): python_text(_settled(symbol, replaced)) for symbol in replaced}


def traced_sizes(env: Any) -> dict[str, int | float]:
    """The number that each symbol stood for while tracing."""
    hints = torch_symbols.hints(env)
    return {str(symbol): int(n) if n.is_Integer else float(n) for symbol, n in hints.items()}


def _settled(expr: Any, replaced: dict[Any, Any]) -> Any:
    """An expression with what the trace found its symbols to be."""
    while replaced and any(s in replaced for s in expr.free_symbols):
        expr = expr.xreplace(replaced)
    return expr


def _range(name: str, bounds: Any) -> list[str]:
    """The finite ends of a value range."""
    ends = []
    if bounds.lower.is_Integer:
        ends.append(f"{name} >= {int(bounds.lower)}")
    if bounds.upper.is_Integer and int(bounds.upper) < 2**62:
        ends.append(f"{name} <= {int(bounds.upper)}")
    return ends


def readable_text(condition: Any) -> str:
    """A condition as somebody would write it: Python without the parentheses around numbers and all."""
    text = re.sub(r"\((\d+)\)", r"\1", python_text(condition))
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def python_text(expr: Any) -> str:
    """A SymPy expression over symbols as Python, fully parenthesised."""
    name = expr.func.__name__
    if expr.is_Symbol:
        return str(expr)
    if expr.is_Integer:
        return f"({int(expr)})"
    if expr.is_Rational:
        return f"({int(expr.p)} / {int(expr.q)})"
    if expr.is_Float:
        return f"({float(expr)!r})"
    if name in ("BooleanTrue", "BooleanFalse"):
        return name.removeprefix("Boolean")
    args = [python_text(a) for a in expr.args]
    if name in INFIX:
        return f"({f' {INFIX[name]} '.join(args)})"
    writer = WRITERS.get(name)
    if writer is None:
        raise Unsupported(
            "BZ2010",
            f"a size expression of kind {name}: {expr}",
            why="braze cannot write it as a guard",
            hints=["compile with dynamic=False, so that sizes are constants"],
        )
    return writer(*args)


_SIGNS = {
    operator.add: "+", operator.mul: "*", operator.pow: "**", operator.mod: "%", operator.floordiv: "//",
    operator.truediv: "/", operator.eq: "==", operator.ne: "!=", operator.le: "<=", operator.lt: "<", operator.ge: ">=",
    operator.gt: ">", operator.and_: "and", operator.or_: "or",
}  # fmt: skip
#: SymPy's and PyTorch's node classes that are one Python operator
INFIX = {
    **{name: _SIGNS[function] for name, function in FUNCTIONS.items() if function in _SIGNS},
    "BitwiseFn_bitwise_and": "&",
    "BitwiseFn_bitwise_or": "|",
    "BitwiseFn_bitwise_xor": "^",
}

WRITERS: dict[str, Callable[..., str]] = {
    names.NOT: "(not {})".format,
    names.MAX: lambda *args: f"max({', '.join(args)})",
    names.MIN: lambda *args: f"min({', '.join(args)})",
    names.ABS: "abs({})".format,
    names.CEIL_DIV: "(-(-{} // {}))".format,
    names.MODULAR_INDEXING: "({} // {} % {})".format,
    names.WHERE: "({1} if {0} else {2})".format,
    names.TRUNC_TO_INT: "math.trunc({})".format,
    names.FLOOR_TO_INT: "math.floor({})".format,
    "floor": "math.floor({})".format,
    names.CEIL_TO_INT: "math.ceil({})".format,
    "ceiling": "math.ceil({})".format,
    names.ROUND_TO_INT: "round({})".format,
    names.TO_FLOAT: "float({})".format,
    "OpaqueUnaryFn_sqrt": "math.sqrt({})".format,
    "OpaqueUnaryFn_log2": "math.log2({})".format,
    names.LSHIFT: "({} << {})".format,
    names.RSHIFT: "({} >> {})".format,
}
