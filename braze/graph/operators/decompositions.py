"""Decompositions as users give them: by overload, or by packet for all of its overloads."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from braze.graph.private.torch_compat import has_composite_kernel
from braze.support import trace
from braze.support.errors import UserError
from braze.support.log import logger


class Table(dict[OpOverload, Callable[..., Any]]):
    """Decompositions by overload that have been through :func:`as_table`, or are ours."""


def as_table(given: Mapping[Any, Callable[..., Any]]) -> Table:
    """Decompositions by overload; a packet (``aten.gelu``) stands for all its overloads that can have one.

    A UserError (BZ0045) for what is no operator, no function, or an operator that no trace asks a decomposition of. Entries of
    PyTorch's own tables (``core_aten_decompositions()``) that no trace asks for are left out, and counted: such tables hold every
    operator that PyTorch has a rule for.
    """
    if isinstance(given, Table):
        return given
    if not isinstance(given, Mapping):
        raise _error(f"decompositions are a dict from operators to functions, not {type(given).__name__}")
    table, skipped = Table(), 0
    for op, function in given.items():
        if not callable(function):
            raise _error(f"the decomposition of {op} is {type(function).__name__}, not a function")
        if _is_pytorchs(function) and (not isinstance(op, OpOverload) or _hindrance(op)):
            skipped += 1
            continue
        for overload in overloads(op):
            table[overload] = function
    if skipped:
        trace.count("decompositions_skipped", skipped)
        logger("aot").info(
            "%d decompositions of PyTorch's are of operators that no trace asks for: left out", skipped
        )
    return table


def _is_pytorchs(function: Any) -> bool:
    """Whether a decomposition is one of PyTorch's, as its tables hold it: a function, one of an operator's kernels, or bound."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, OpOverload | OpOverloadPacket):
        return True
    written = getattr(function, "__func__", function)
    while hasattr(written, "__wrapped__") and isinstance(written.__wrapped__, types.FunctionType):
        written = written.__wrapped__
    space = getattr(written, "__globals__", {})
    return str(space.get("__name__", "")).partition(".")[0] == "torch"


def with_inplace(table: Mapping[OpOverload, Callable[..., Any]]) -> Table:
    """The table, and for ``relu_`` what it says of ``relu``: in the trace the one that writes comes by."""
    more = Table()
    for op, rule in table.items():
        inplace = _inplace(op)
        if inplace is not None:
            more[inplace] = _writing(rule)
    more.update(table)
    return more


def _inplace(op: OpOverload) -> OpOverload | None:
    namespace, name = op._schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), f"{name}_", None)
    found = getattr(packet, op._overloadname, None)
    if found is None or [str(a.type) for a in found._schema.arguments] != [
        str(a.type) for a in op._schema.arguments
    ]:
        return None
    return found  # type: ignore[no-any-return]


def _writing(rule: Callable[..., Any]) -> Callable[..., Any]:
    def write(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = rule(self, *args, **kwargs)
        return result if result is NotImplemented else self.copy_(result)

    return write


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
