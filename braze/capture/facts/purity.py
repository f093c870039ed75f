"""What is known of the calls in a captured graph: whether they only compute, or may draw random numbers.

What an operator does tells its tag. Whose a function is tells where it lives (libraries.py), never what it is called.
"""

from __future__ import annotations

import functools
import math
import operator
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from braze.capture.facts.libraries import is_pytorchs
from braze.graph.autograd_calls import Applied
from braze.graph.facts import facts
from braze.graph.operators import OPERATORS as OF_ATEN
from braze.graph.operators import name_of as op_name
from braze.runtime.purity import added_kernels, may_draw
from braze.support.caches import remembered

OPERATORS = frozenset(v for v in vars(operator).values() if isinstance(v, types.BuiltinFunctionType))
#: built-in functions that draw nothing, whatever they are given
_PLAIN = (
    OPERATORS
    | {getattr, setattr, abs, round}
    | {v for v in vars(math).values() if isinstance(v, types.BuiltinFunctionType)}
)


def operators_of(node: torch.fx.Node) -> tuple[torch._ops.OpOverload, ...]:
    """The operators that a call may mean: those that it names, or ATen's of the name of a function or method of PyTorch's."""
    if node.op == "call_method":
        return _of_name(str(node.target))
    if node.op != "call_function":
        return ()
    named = overloads_of(node.target)
    if named or is_opaque(node):
        return named
    return _of_name(getattr(node.target, "__name__", ""))


def overloads_of(target: Any) -> tuple[torch._ops.OpOverload, ...]:
    """The operators that a call of a library's operator may mean."""
    target = getattr(target, "_opoverload", target)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return tuple(getattr(target, name) for name in target.overloads())
    return (target,) if isinstance(target, torch._ops.OpOverload) else ()


@functools.cache
def _of_name(name: str) -> tuple[torch._ops.OpOverload, ...]:
    packet = getattr(torch.ops.aten, name, None) or getattr(torch.ops.aten, name.strip("_"), None)
    return overloads_of(packet)


def is_opaque(node: torch.fx.Node) -> bool:
    """Whether a node calls a function of the program's."""
    target: Any = node.target
    return node.op == "call_function" and isinstance(target, types.FunctionType) and not is_pytorchs(target)


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node may draw random numbers: also where it calls what braze does not look into."""
    if node.op in ("placeholder", "output", "get_attr") or facts(node).setting or _is_plain(node.target):
        return False
    if node.op not in ("call_function", "call_method") or is_opaque(node) or isinstance(node.target, Applied):
        return True
    target = node.target
    return any(map(may_draw, operators_of(node))) or (
        isinstance(target, types.FunctionType) and _draws_inside(target, added_kernels())
    )


@remembered(1024)
def _draws_inside(function: types.FunctionType, kernels: Any) -> bool:
    """Whether a function of PyTorch's in Python names an operator that may draw, or calls a function of PyTorch's that does."""
    seen, todo = {function}, [function]
    while todo:
        here = todo.pop()
        names = set(_names_in(here.__code__))
        if any(may_draw(op) for name in names for op in _of_name(name)):
            return True
        held = [cell.cell_contents for cell in here.__closure__ or () if cell != types.CellType()]
        for found in (*(here.__globals__.get(name) for name in names), *held):
            if isinstance(found, types.FunctionType) and found not in seen and is_pytorchs(found):
                seen.add(found)
                todo.append(found)
    return False


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Every global and attribute that a function's code names, that of functions in it too."""
    yield from code.co_names
    for inside in code.co_consts:
        if isinstance(inside, types.CodeType):
            yield from _names_in(inside)


def computes(node: torch.fx.Node) -> bool:
    """Whether a node is known to do nothing but to compute what its arguments tell."""
    if facts(node).setting or is_random(node):
        return False
    target: Any = node.target
    found = operators_of(node)
    if any((known := OF_ATEN.get(name.rstrip("_"))) and known.unwritten for name in map(op_name, found)):
        return False
    if node.op == "call_method":
        method = getattr(torch.Tensor, str(target), None)
        return not isinstance(method, types.FunctionType) or is_pytorchs(method)
    if node.op != "call_function":
        return node.op == "placeholder"
    if found or _is_plain(target):
        return True
    return isinstance(target, types.BuiltinFunctionType) or (
        isinstance(target, types.FunctionType) and is_pytorchs(target)
    )


def _is_plain(target: Any) -> bool:
    return isinstance(target, types.BuiltinFunctionType) and target in _PLAIN


def name_of(node: torch.fx.Node) -> str:
    """The name of what a node calls."""
    if node.op not in ("call_method", "call_function"):
        return ""
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))
