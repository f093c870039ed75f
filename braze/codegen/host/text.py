"""Expressions and argument values as Python and as C text."""

from __future__ import annotations

import enum
import keyword
import math
import re

import torch

from braze.loops.ir import DType
from braze.support.dtypes import LONG
from braze.support.errors import InternalError
from braze.symbolic.expr import Expr, FloorDiv, Integer, Max, Min, Mod, Product, Sum, Symbol


def dtype_text(dtype: DType) -> str:
    return f"torch.{LONG[dtype.label]}"


def identifier(name: str) -> str:
    """A buffer's name as a Python and C identifier."""
    clean = re.sub(r"\W", "_", name)
    return f"_{clean}" if not clean or clean[0].isdigit() or keyword.iskeyword(clean) else clean


def tuple_text(items: tuple[Expr, ...] | tuple[str, ...]) -> str:
    """A Python tuple display."""
    inner = ", ".join(map(str, items))
    return f"({inner},)" if len(items) == 1 else f"({inner})"


def c_text(e: Expr) -> str:
    """A size expression as C; sizes are never negative, so C's division is the floor."""
    if isinstance(e, Integer):
        return str(e.number)
    if isinstance(e, Symbol):
        return identifier(e.name)
    if isinstance(e, Sum):
        terms = [f"{k} * {c_text(m)}" if k != 1 else c_text(m) for m, k in e.parts]
        return f"({' + '.join([*terms, str(e.constant)] if e.constant else terms)})"
    if isinstance(e, Product):
        return f"({' * '.join(map(c_text, e.factors))})"
    if isinstance(e, FloorDiv):
        return f"bz_fdiv({c_text(e.numerator)}, {c_text(e.divisor)})"
    if isinstance(e, Mod):
        return f"bz_mod({c_text(e.numerator)}, {c_text(e.divisor)})"
    if isinstance(e, (Max, Min)):
        a, b = c_text(e.left), c_text(e.right)
        return f"({a} {'>' if isinstance(e, Max) else '<'} {b} ? {a} : {b})"
    raise InternalError("BZ9050", f"no C text for {e!r}")


def constant_text(value: object) -> str:
    """A plain argument of an ATen call as Python text."""
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, complex):
        return f"complex({constant_text(value.real)}, {constant_text(value.imag)})"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if isinstance(value, slice):
        return f"slice({value.start}, {value.stop}, {value.step})"
    raise InternalError("BZ9051", f"an extern call has an argument of type {type(value).__name__}: {value!r}")
