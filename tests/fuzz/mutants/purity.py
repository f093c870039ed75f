"""Which bugs can be computed beside the right value, to see whether they would make a difference there."""

from __future__ import annotations

import ast

from tests.fuzz.mutants.operators import Mutant

#: slips that often change nothing where they run; others (a constant, a condition the other way round) always do
SELDOM = {"comparison", "and/or", "operand dropped", "min/max", "arithmetic", "sign"}
#: what an expression may consist of that is computed twice
HARMLESS = (
    ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Subscript, ast.Slice, ast.Tuple,
    ast.List, ast.Set, ast.IfExp, ast.GeneratorExp, ast.ListComp, ast.comprehension, ast.Starred, ast.Call, ast.operator,
    ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip
#: functions and methods that only look
LOOKS = {
    "isinstance", "issubclass", "len", "any", "all", "type", "min", "max", "abs", "getattr", "hasattr", "id", "int", "bool",
    "sum", "sorted", "set", "tuple", "range", "zip", "enumerate", "get", "dim", "numel", "size", "stride", "storage_offset",
    "startswith", "endswith", "items", "values", "keys", "symbols", "prod", "likely_size",
}  # fmt: skip
LOOKING = ("is_", "_is_", "has_", "_has_", "over_")


def expression(mutant: Mutant) -> str | None:
    """The mutated expression in one line, if computing it besides has no effect and may tell something."""
    if mutant.operator not in SELDOM:
        return None
    try:
        before, after = (ast.parse(f"({t})", mode="eval").body for t in (mutant.before, mutant.after))
    except SyntaxError:
        return None
    if mutant.operator == "comparison" and isinstance(before, ast.Compare) and turned(before.ops[0]):
        return None
    return ast.unparse(after) if all(map(harmless, ast.walk(after))) else None


def turned(op: ast.cmpop) -> bool:
    return isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn))


def harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name in LOOKS or name.startswith(LOOKING)
    return isinstance(node, (*HARMLESS, ast.keyword))
