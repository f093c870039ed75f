"""Operators as users name them: overloads, packets of overloads, several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket

from braze.graph.torch_compat import has_composite_kernel
from braze.support.errors import UserError


def as_table(given: Mapping[Any, Callable[..., Any]]) -> dict[OpOverload, Callable[..., Any]]:
    """Decompositions by overload; a packet (``aten.gelu``) stands for all its overloads that can have one.

    A UserError (BZ0045) for what is no operator, no function, or an operator that no trace asks a decomposition of.
    """
    if not isinstance(given, Mapping):
        raise _error(f"decompositions are a dict from operators to functions, not {type(given).__name__}")
    table: dict[OpOverload, Callable[..., Any]] = {}
    for op, function in given.items():
        if not callable(function):
            raise _error(f"the decomposition of {op} is {type(function).__name__}, not a function")
        for overload in overloads(op):
            table[overload] = function
    return table


def overloads(op: Any) -> Iterator[OpOverload]:
    """The overloads that ``op`` names, which may be decomposed."""
    if isinstance(op, OpOverload):
        why = _hindrance(op)
        if why:
            raise _error(f"{op} cannot have a decomposition of yours", why)
        yield op
    elif isinstance(op, OpOverloadPacket):
        every = [getattr(op, name) for name in op.overloads()]
        fit = [overload for overload in every if not _hindrance(overload)]
        if not fit:
            raise _error(f"{op} cannot have a decomposition of yours", _hindrance(every[0]))
        yield from fit
    else:
        raise _error(
            f"{op!r} is no operator",
            "an operator is torch.ops.aten.gelu.default, or torch.ops.aten.gelu for all its overloads",
        )


def _hindrance(op: OpOverload) -> str:
    """Why a trace would never ask for the decomposition of an operator; empty where it does."""
    if op._schema.is_mutable:
        return "it writes to its arguments: graphs hold the operator that gives a new tensor instead, register that one"
    if has_composite_kernel(op):
        return "PyTorch makes it of other operators before a trace sees it: register those, such as addmm for linear"
    return ""


def _error(what: str, why: str = "") -> UserError:
    return UserError("BZ0045", what, why=why)
