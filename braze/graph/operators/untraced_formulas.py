"""Operators of the program's whose formula of gradients asks what tensors hold (``sizes.tolist()``): no graph has that, so they stand between graphs.

That is learned where a backward could not be traced: what the program has registered tells nothing beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from braze.runtime.operators.purity import is_known

_learned: set[Any] = set()


class StandsBetween(Exception):
    """A graph holds such an operator, and is to be captured again without."""


def learn(graph: torch.fx.Graph, why: BaseException | None) -> bool:
    """Note the operators of the program's that a graph differentiates, if its backward could not be traced for what tensors hold; whether any is new."""
    if not isinstance(why, DataDependentOutputException | DynamicOutputShapeException):
        return False
    found = {
        packet
        for node in graph.nodes
        if (packet := _packet_of(node.target)) is not None and _has_history(node)
    }
    new = found - _learned
    _learned.update(new)
    return bool(new)


def is_learned(op: Any) -> bool:
    """Whether this is such an operator, as far as is known."""
    return bool(_learned) and _packet_of(op) in _learned


def stands_between(op: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator on such arguments is to stand between graphs."""
    if not is_learned(op) or not torch.is_grad_enabled():
        return False
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in (*args, *kwargs.values()))


def forget() -> None:
    """Learn anew, as when the program has registered another formula."""
    _learned.clear()


def _packet_of(op: Any) -> Any:
    """The name that all overloads of an operator of the program's share; None of anything else."""
    if isinstance(op, torch._ops.OpOverloadPacket):
        op = getattr(op, op.overloads()[0])
    return op.overloadpacket if isinstance(op, torch._ops.OpOverload) and not is_known(op) else None


def _has_history(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
