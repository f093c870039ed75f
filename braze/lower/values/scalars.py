"""Python floats that are known when the graph runs: doubles in memory, and arithmetic on them.

They are values of no dimensions that count as numbers where types are promoted (``Lazy.weak``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.graph.private import torch_symbols
from braze.graph.sizes.numbers import OF_MATH
from braze.loops import build
from braze.loops.ir import DType, Node, Op
from braze.lower.values.lazy import Lazy
from braze.lower.values.registry import NUMBERS
from braze.support.errors import Unsupported
from braze.symbolic.expr import Expr


def weak(value: Lazy) -> Lazy:
    """The value as one that stands for a Python float."""
    value.weak = True
    return value


def lowered(target: Any, args: Sequence[Any], device: str) -> Lazy:
    """What ``target`` computes of floats and sizes."""
    op = OPERATIONS.get(target)
    if op is None:
        raise Unsupported("BZ3002", f"{target} of a float that changes from call to call")
    loaders = [_loader(a) for a in args]
    price = COSTLY if op in (Op.POW, Op.SQRT) else 1

    def inner(index: Any) -> Node:
        nodes = [load() for load in loaders]
        if op is None or op is Op.CAST:
            return nodes[0]
        if op is Op.REMAINDER:
            return _remainder(*nodes)
        return build.unary(op, nodes[0]) if len(nodes) == 1 else build.binary(op, *nodes)

    cost = price + sum(a.pending_cost for a in args if isinstance(a, Lazy))
    return weak(Lazy((), DType.F64, device, inner, cost=cost, ops=("scalar",)))


def _remainder(a: Node, b: Node) -> Node:
    """Python's, of which a zero has the divisor's sign."""
    zero, found = build.const(0.0, DType.F64), build.binary(Op.REMAINDER, a, b)
    return build.where(build.binary(Op.EQ, found, zero), build.binary(Op.COPYSIGN, zero, b), found)


def _loader(a: Any) -> Callable[[], Node]:
    """A double from a float in memory, a size or a number."""
    if isinstance(a, Lazy):
        return lambda: a.load(())
    if isinstance(a, Expr):
        return lambda: build.cast(build.index(a), DType.F64)
    return lambda: build.const(float(a), DType.F64)


#: worth a kernel of its own, rather than to be computed again at every element
COSTLY = 64

OPERATIONS: dict[Any, Op] = {
    operator.add: Op.ADD, operator.sub: Op.SUB, operator.mul: Op.MUL, operator.truediv: Op.DIV,
    operator.pow: Op.POW, operator.neg: Op.NEG, operator.abs: Op.ABS, abs: Op.ABS, operator.mod: Op.REMAINDER,
    operator.floordiv: Op.FLOORDIV,
    torch.sym_float: Op.CAST, torch.sym_max: Op.MAXIMUM, torch.sym_min: Op.MINIMUM, math.sqrt: Op.SQRT,
}  # fmt: skip
OPERATIONS |= {function: Op(function.__name__) for function in (*OF_MATH, math.pow)}
for _name, _op in {
    "sqrt": Op.SQRT, "cos": Op.COS, "cosh": Op.COSH, "sin": Op.SIN, "sinh": Op.SINH, "tan": Op.TAN,
    "tanh": Op.TANH, "asin": Op.ASIN, "acos": Op.ACOS, "atan": Op.ATAN, "log2": Op.LOG2,
}.items():  # fmt: skip
    if f"OpaqueUnaryFn_{_name}" in torch_symbols.SYMBOLIC_MATH:
        OPERATIONS[torch_symbols.SYMBOLIC_MATH[f"OpaqueUnaryFn_{_name}"]] = _op

#: numbers that lowerings take as values rather than look at
OPERANDS = frozenset({"self", "other", "exponent", "fill_value", "value"})


def carried(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a lowering can compute with the floats among its arguments; ATen can always."""
    if not any(map(is_float, (*args, *kwargs.values()))):
        return True
    given = dict(zip((a.name for a in target._schema.arguments), args, strict=False)) | kwargs
    taken = OPERANDS | NUMBERS.get(target, frozenset())
    return all(name in taken for name, a in given.items() if is_float(a))


def is_float(value: Any) -> bool:
    """Whether this is a float that is known when the graph runs."""
    return isinstance(value, Lazy) and value.weak


# -- numbers of operators: the program's own, or such floats


def number(value: Any, dtype: DType) -> Node:
    """A number of a type that is computed with: the program's, a float that is known when the graph runs, or made of sizes."""
    if isinstance(value, Expr):
        return build.index(value, dtype)
    return build.cast(value.load(()), dtype) if isinstance(value, Lazy) else build.const(value, dtype)


def product(a: Any, b: Any) -> Any:
    """Of two numbers."""
    return _of(operator.mul, a, b)


def quotient(a: Any, b: Any) -> Any:
    """Of two numbers."""
    return _of(operator.truediv, a, b)


def negative(a: Any) -> Any:
    """Of a number."""
    return _of(operator.neg, a)


def _of(function: Callable[..., Any], *numbers: Any) -> Any:
    device = next((a.device for a in numbers if isinstance(a, Lazy)), None)
    return function(*numbers) if device is None else lowered(function, numbers, device)
