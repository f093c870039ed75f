"""Expressions and argument values as Python text."""

from __future__ import annotations

import enum
import keyword
import math
import re
from collections.abc import Sequence

import torch

from braze.loops.ir import DType
from braze.support.dtypes import LONG
from braze.support.errors import InternalError
from braze.symbolic.expr import Expr


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


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    """Lines so many levels deeper."""
    return [("    " * depth + line) if line else "" for line in lines]
