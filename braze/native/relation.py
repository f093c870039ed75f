"""Relations between sizes: a Python function, and where integers suffice a program that the native walk runs.

The program is postfix: pairs (operation, number) over a stack of 64-bit integers. What overflows, or divides by
zero, is left to the function. Floats are there by their bits; they are computed with by operations of their own, and what
would raise, or gives no finite number, is left to the function too.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Callable, Sequence
from typing import Any

#: operations by number, as in native/src/relation.c
OPERATIONS = (
    "const", "symbol", "add", "sub", "mul", "floordiv", "mod", "neg", "eq", "ne", "lt", "le", "gt", "ge",
    "and", "or", "not", "min", "max", "abs",
    "fadd", "fsub", "fmul", "fdiv", "fpow", "fneg", "fabs", "fsqrt", "fexp", "flog", "feq", "fne", "flt", "fle", "fgt", "fge",
    "ffinite",
)  # fmt: skip
NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
#: operands on the stack at once, as in C
DEPTH = 32

_BINARY: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
    ast.And: "and", ast.Or: "or",
}  # fmt: skip
_CALLS = {"min": "min", "max": "max", "abs": "abs"}
#: the function that makes a float of its bits
FLOAT = "float_of"
_OF_FLOATS: dict[type, str] = {
    ast.Add: "fadd",
    ast.Sub: "fsub",
    ast.Mult: "fmul",
    ast.Div: "fdiv",
    ast.Pow: "fpow",
}
_ABOUT_FLOATS: dict[type, str] = {
    ast.Eq: "feq", ast.NotEq: "fne", ast.Lt: "flt", ast.LtE: "fle", ast.Gt: "fgt", ast.GtE: "fge",
}  # fmt: skip
_FLOAT_CALLS = {"abs": "fabs", "math.sqrt": "fsqrt", "math.exp": "fexp", "math.log": "flog"}

Code = tuple[tuple[int, int], ...]


class Relation:
    """``relation(values of the symbols) -> bool``. ``code`` is None where integers do not suffice."""

    __slots__ = ("code", "function", "text")

    def __init__(self, text: str, function: Callable[[Sequence[Any]], Any], code: Code | None) -> None:
        self.text = text
        self.function = function
        self.code = code

    def __call__(self, values: Sequence[Any]) -> Any:
        return self.function(values)

    def __repr__(self) -> str:
        return f"Relation({self.text!r})"


class _NotIntegers(Exception):
    """The expression needs more than integer arithmetic."""


def postfix(tree: ast.expr, symbols: dict[str, int]) -> Code | None:
    """The program of an expression over symbols; None where it has none."""
    code: list[tuple[int, int]] = []
    try:
        deepest = _emit(tree, symbols, code)
    except _NotIntegers:
        return None
    return tuple(code) if deepest <= DEPTH else None


def _emit(node: ast.expr, symbols: dict[str, int], code: list[tuple[int, int]]) -> int:
    """Append what leaves the value on the stack; the depth that it needs."""

    def put(name: str, number: int = 0) -> None:
        code.append((NUMBERS[name], number))

    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _ABOUT_FLOATS and (
            is_of_floats(left) or is_of_floats(right)
        ):
            depth = max(_emit_float(left, symbols, code), 1 + _emit_float(right, symbols, code))
            put(_ABOUT_FLOATS[type(op)])
            return depth
        case ast.Call(func=ast.Attribute(), args=[inner]) if ast.unparse(node.func) == "math.isfinite":
            depth = _emit_float(inner, symbols, code)
            put("ffinite")
            return depth
        case ast.Constant(value=int(number)) if abs(number) < 1 << 62:
            put("const", int(number))
            return 1
        case ast.Name(id=name) if name in symbols:
            put("symbol", symbols[name])
            return 1
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            depth = _emit(inner, symbols, code)
            put("neg")
            return depth
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            depth = _emit(inner, symbols, code)
            put("not")
            return depth
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _fold(_BINARY[type(op)], [left, right], symbols, code)
        case ast.BoolOp(op=op, values=values):
            return _fold(_BINARY[type(op)], values, symbols, code)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BINARY:
            return _fold(_BINARY[type(op)], [left, right], symbols, code)
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]) if name in _CALLS:
            if name != "abs":
                return _fold(_CALLS[name], args, symbols, code)
            depth = _emit(args[0], symbols, code)
            put("abs")
            return depth
    raise _NotIntegers


def is_of_floats(node: ast.expr) -> bool:
    """Whether an expression is made of floats, and no answer about such."""
    if isinstance(node, ast.Compare) or (
        isinstance(node, ast.Call) and ast.unparse(node.func) not in (FLOAT, *_FLOAT_CALLS)
    ):
        return False
    if isinstance(node, ast.Call) and ast.unparse(node.func) == FLOAT:
        return True
    return any(isinstance(inner, ast.expr) and is_of_floats(inner) for inner in ast.iter_child_nodes(node))


def _emit_float(node: ast.expr, symbols: dict[str, int], code: list[tuple[int, int]]) -> int:
    """Append what leaves the bits of a float on the stack; the depth that it needs."""
    match node:
        case ast.Constant(value=int() | float() as number) if abs(number) < 1 << 53 or type(number) is float:
            code.append((NUMBERS["const"], struct.unpack("q", struct.pack("d", number))[0]))
            return 1
        case ast.Call(func=ast.Name(id=name), args=[ast.Name(id=symbol)]) if (
            name == FLOAT and symbol in symbols
        ):
            code.append((NUMBERS["symbol"], symbols[symbol]))
            return 1
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            operation, operands = "fneg", [inner]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OF_FLOATS:
            operation, operands = _OF_FLOATS[type(op)], [left, right]
        case ast.Call(func=function, args=[inner], keywords=[]) if ast.unparse(function) in _FLOAT_CALLS:
            operation, operands = _FLOAT_CALLS[ast.unparse(function)], [inner]
        case _:
            raise _NotIntegers
    depth = max(i + _emit_float(operand, symbols, code) for i, operand in enumerate(operands))
    code.append((NUMBERS[operation], 0))
    return depth


def _fold(
    name: str, operands: Sequence[ast.expr], symbols: dict[str, int], code: list[tuple[int, int]]
) -> int:
    """The operation over two or more operands, from the left."""
    depth = _emit(operands[0], symbols, code)
    for operand in operands[1:]:
        depth = max(depth, 1 + _emit(operand, symbols, code))
        code.append((NUMBERS[name], 0))
    return depth
