"""The functions of numbers that may stand in graphs, by the names that SymPy's expressions have for them."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from braze.graph.torch_symbols import SYMBOLIC_MATH

#: those that ask something
QUESTIONS: dict[str, Any] = {
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "LessThan": operator.le,
    "StrictLessThan": operator.lt,
    "GreaterThan": operator.ge,
    "StrictGreaterThan": operator.gt,
    "Not": torch.sym_not,
}

#: functions of two that expressions apply to any number of operands
FOLDED: dict[str, Any] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "And": operator.and_,
    "Or": operator.or_,
}

#: all that expressions are made of
FUNCTIONS: dict[str, Any] = {
    **FOLDED,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "Pow": operator.pow,
    "PowByNatural": operator.pow,
    "FloatPow": operator.pow,
    "Abs": abs,
    "ToFloat": torch.sym_float,
    "TruncToInt": torch.sym_int,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "RoundToInt": round,
    **QUESTIONS,
    **SYMBOLIC_MATH,
}

#: what may stand between ATen operators: these, and other ways to write them that programs have
ALLOWED = frozenset({*FUNCTIONS.values(), operator.sub, operator.neg, operator.abs, math.trunc, math.sqrt})
