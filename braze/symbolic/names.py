"""The names of the classes that conditions and sizes of SymPy's and PyTorch's are written in: they are known by name.

To know them by class SymPy would have to be imported, which takes longer than the capture of a graph with static shapes.
"""

from __future__ import annotations

from typing import Any

# -- arithmetic
ADD = "Add"
MUL = "Mul"
POW = "Pow"
POW_BY_NATURAL = "PowByNatural"
FLOAT_POW = "FloatPow"
ABS = "Abs"
MAX = "Max"
MIN = "Min"

# -- comparisons, and what joins them
EQUALITY = "Equality"
UNEQUALITY = "Unequality"
LESS_THAN = "LessThan"
STRICT_LESS_THAN = "StrictLessThan"
GREATER_THAN = "GreaterThan"
STRICT_GREATER_THAN = "StrictGreaterThan"
AND = "And"
OR = "Or"
NOT = "Not"
WHERE = "Where"

# -- divisions and remainders
FLOOR_DIV = "FloorDiv"
CLEAN_DIV = "CleanDiv"
CEIL_DIV = "CeilDiv"
INT_TRUE_DIV = "IntTrueDiv"
FLOAT_TRUE_DIV = "FloatTrueDiv"
MOD = "Mod"
PYTHON_MOD = "PythonMod"
MODULAR_INDEXING = "ModularIndexing"
LSHIFT = "LShift"
RSHIFT = "RShift"

# -- from one kind of number to another
TO_FLOAT = "ToFloat"
TRUNC_TO_INT = "TruncToInt"
FLOOR_TO_INT = "FloorToInt"
CEIL_TO_INT = "CeilToInt"
ROUND_TO_INT = "RoundToInt"

# -- families

#: quotients as whole numbers, and what is left
QUOTIENTS = (FLOOR_DIV, CLEAN_DIV)
REMAINDERS = (MOD, PYTHON_MOD)


def name_of(expr: Any) -> str:
    """What an expression is written in at its root."""
    return type(expr).__name__


def is_told_by_data(symbol: str) -> bool:
    """Whether an integer of that name is one that only the data tell, by PyTorch's naming of symbols."""
    return symbol.startswith("u")


def number_of(expr: Any) -> Any:
    """The number that a truth is kept as: of a bool that only the data tell, PyTorch's symbol says that it equals 1."""
    return expr.args[0] if name_of(expr) == EQUALITY else expr
