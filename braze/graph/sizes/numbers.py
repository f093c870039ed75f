"""The functions of numbers that may stand in graphs, by the names that SymPy's expressions have for them."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from braze.graph.private.torch_symbols import SYMBOLIC_MATH
from braze.symbolic import names

#: those that ask something
QUESTIONS: dict[str, Any] = {
    names.EQUALITY: operator.eq,
    names.UNEQUALITY: operator.ne,
    names.LESS_THAN: operator.le,
    names.STRICT_LESS_THAN: operator.lt,
    names.GREATER_THAN: operator.ge,
    names.STRICT_GREATER_THAN: operator.gt,
    names.NOT: torch.sym_not,
}

#: functions of two that expressions apply to any number of operands
FOLDED: dict[str, Any] = {
    names.ADD: operator.add,
    names.MUL: operator.mul,
    names.MAX: torch.sym_max,
    names.MIN: torch.sym_min,
    names.AND: operator.and_,
    names.OR: operator.or_,
}

#: all that expressions are made of
FUNCTIONS: dict[str, Any] = {
    **FOLDED,
    names.FLOOR_DIV: operator.floordiv,
    names.CLEAN_DIV: operator.floordiv,
    names.MOD: operator.mod,
    names.PYTHON_MOD: operator.mod,
    names.INT_TRUE_DIV: operator.truediv,
    names.FLOAT_TRUE_DIV: operator.truediv,
    names.POW: operator.pow,
    names.POW_BY_NATURAL: operator.pow,
    names.FLOAT_POW: operator.pow,
    names.ABS: abs,
    names.TO_FLOAT: torch.sym_float,
    names.TRUNC_TO_INT: torch.sym_int,
    names.FLOOR_TO_INT: math.floor,
    names.CEIL_TO_INT: math.ceil,
    names.ROUND_TO_INT: round,
    **QUESTIONS,
    **SYMBOLIC_MATH,
}

#: functions of one number whose result is a float that a kernel may compute
OF_MATH = frozenset(
    {
        math.log, math.log2, math.log10, math.log1p, math.exp, math.expm1, math.sin, math.cos, math.tan,
        math.sinh, math.cosh, math.tanh, math.atan, math.asinh,
    }
)  # fmt: skip

#: what may stand between ATen operators: these, and other ways to write them that programs have
ALLOWED = frozenset(
    {*FUNCTIONS.values(), operator.sub, operator.neg, operator.abs, math.trunc, math.sqrt, math.pow, *OF_MATH}
)
