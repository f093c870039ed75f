"""One row per operation: how it looks in C on vectors, and on scalars.

A template is formatted with ``a``, ``b``, ``c`` (the arguments, already in the representation the row
wants), ``r`` (representation), ``t`` (its C vector type), ``w`` (lanes). Where a row has no scalar
template, the scalar is lane 0 of the vector operation.
"""

from __future__ import annotations

from braze.loops.ir import RELATIONS, Op
from braze.loops.scalars import SCALARS, SIGNS
from braze.support.record import record


@record
class Row:
    """Templates of one operation on floats or integers of one representation."""

    vector: str
    scalar: str = ""


def _call(name: str) -> Row:
    return Row(f"bz_{name}_{{t}}({{args}})")


def _same(text: str) -> Row:
    return Row(text, text)


#: operations whose C is an operator, for every representation but masks
_OPERATORS = {
    **{op: f"{{a}} {sign} {{b}}" for op, sign in SIGNS.items() if op.value not in RELATIONS},
    Op.NEG: "-{a}",
}
_ARITHMETIC = {op: text for op, text in _OPERATORS.items() if op not in (Op.AND, Op.OR, Op.XOR)}

_FLOAT_CALLS = (
    "floordiv", "remainder", "fmod", "pow", "sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin",
    "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
    "sigmoid", "floor", "ceil", "trunc", "round", "hypot", "copysign", "abs", "fma",
)  # fmt: skip

#: f32 and f64
FLOAT: dict[Op, Row] = {
    **{op: _same(text) for op, text in _ARITHMETIC.items()},
    **{Op(name): _call(name) for name in _FLOAT_CALLS},
    Op.RSQRT: Row("{one} / bz_sqrt_{t}({a})"),
    Op.RECIPROCAL: _same("{one} / {a}"),
    Op.TRUNCDIV: Row("bz_trunc_{t}({a} / {b})"),
    Op.SIGN: Row(
        "bz_sel_{t}(bz_mask_{t}({a} > {zero}), bz_splat_{t}(1), "
        "bz_sel_{t}(bz_mask_{t}({a} < {zero}), bz_splat_{t}(-1), ({t}){{}}))",
        "(({s})(({a} > 0) - ({a} < 0)))",
    ),
    Op.MAXIMUM: Row(
        "bz_sel_{t}(bz_mask_{t}(({a} > {b}) | ({a} != {a})), {a}, {b})",
        "({a} > {b} || {a} != {a} ? {a} : {b})",
    ),
    Op.MINIMUM: Row(
        "bz_sel_{t}(bz_mask_{t}(({a} < {b}) | ({a} != {a})), {a}, {b})",
        "({a} < {b} || {a} != {a} ? {a} : {b})",
    ),
}
#: scalars that C has operations for, by representation's suffix
FLOAT_SCALAR = {
    Op.SQRT: "__builtin_sqrt{f}({a})", Op.RSQRT: "{one} / __builtin_sqrt{f}({a})", Op.FLOOR: "__builtin_floor{f}({a})",
    Op.CEIL: "__builtin_ceil{f}({a})", Op.TRUNC: "__builtin_trunc{f}({a})", Op.ROUND: "__builtin_rint{f}({a})",
    Op.ABS: "__builtin_fabs{f}({a})", Op.COPYSIGN: "__builtin_copysign{f}({a}, {b})", Op.FMA: "__builtin_fma{f}({a}, {b}, {c})",
}  # fmt: skip

#: i32 and i64 (narrower types are wrapped after)
INTEGER: dict[Op, Row] = {
    **{op: _same(text) for op, text in _OPERATORS.items() if op is not Op.DIV},
    **{
        Op(name): Row(f"bz_{name}_{{t}}({{args}})", f"bz_{name}_s({{args}})")
        for name in ("floordiv", "truncdiv", "remainder", "fmod", "pow")
    },
    Op.ABS: Row("bz_sel_{t}(bz_mask_{t}({a} < 0), -{a}, {a})", "({a} < 0 ? -{a} : {a})"),
    Op.SIGN: Row("(({a} < 0) - ({a} > 0))", "(({a} > 0) - ({a} < 0))"),
    Op.MAXIMUM: Row("bz_sel_{t}(bz_mask_{t}({a} > {b}), {a}, {b})", "({a} > {b} ? {a} : {b})"),
    Op.MINIMUM: Row("bz_sel_{t}(bz_mask_{t}({a} < {b}), {a}, {b})", "({a} < {b} ? {a} : {b})"),
    Op.FMA: _same("{a} * {b} + {c}"),
    Op.NOT: _same("~{a}"),
    Op.SHL: _same("{a} << {b}"),
    Op.SHR: _same("{a} >> {b}"),
    **{op: _same("{a}") for op, row in SCALARS.items() if row.whole},
}

#: masks: -1 or 0 by lane, 1 or 0 as a scalar
MASK: dict[Op, Row] = {
    Op.AND: _same("{a} & {b}"), Op.OR: _same("{a} | {b}"), Op.XOR: _same("{a} ^ {b}"), Op.NOT: Row("~{a}", "!{a}"),
    Op.ADD: _same("{a} | {b}"), Op.MUL: _same("{a} & {b}"), Op.MAXIMUM: _same("{a} | {b}"), Op.MINIMUM: _same("{a} & {b}"),
    Op.EQ: Row("~({a} ^ {b})", "{a} == {b}"), Op.NE: _same("{a} ^ {b}"), Op.LT: Row("~{a} & {b}", "{a} < {b}"),
    Op.LE: Row("~{a} | {b}", "{a} <= {b}"), Op.GT: Row("{a} & ~{b}", "{a} > {b}"), Op.GE: Row("{a} | ~{b}", "{a} >= {b}"),
    Op.ABS: _same("{a}"), Op.SIGN: _same("{a}"), Op.SUB: _same("{a} ^ {b}"),
}  # fmt: skip
