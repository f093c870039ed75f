"""``torch._foreach_...``: one call per tensor, in order, as PyTorch's own loop over the lists.

The order matters where one tensor is written and read as an element of two lists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from braze.graph.operators.operators import OPERATORS, Family, is_elementwise

aten = torch.ops.aten

#: how the names of operators on lists of tensors begin
_LISTS = "aten::_foreach_"

#: the third operand of these is known by its name only
_BY_NAME = {"addcdiv": "value", "addcmul": "value"}


def _rule(op: OpOverload, name: str) -> Callable[..., Any]:
    """``op`` as a loop over ``aten.<name>``."""
    writes = op._schema.is_mutable
    each = getattr(aten, f"{name}_" if writes else name, None)
    lists = [str(p.type).startswith("List[") for p in op._schema.arguments]
    late = _BY_NAME.get(name)

    def loop(*args: Any, **kwargs: Any) -> Any:
        if each is None or any(not isinstance(a, (list, tuple)) for a, many in zip(args, lists) if many):
            return NotImplemented
        count = max(len(a) for a, many in zip(args, lists) if many)
        results = []
        for i in range(count):
            own = [a[i] if many else a for a, many in zip(args, lists)]
            named = dict(kwargs)
            if late is not None and len(own) > 3:
                if isinstance(own[3], torch.Tensor):
                    return NotImplemented
                named[late] = own.pop()
            elif late is not None and "scalars" in named:
                return NotImplemented
            results.append(each(*own, **named))
            if writes:
                _count(own[0])
        return None if writes else results

    return loop


def _count(written: torch.Tensor) -> None:
    """Count a write, which below autograd nobody does: by that views of what is written know of their history."""
    if not written.is_inference():
        torch.autograd.graph.increment_version(written)


def count_writes(op: OpOverload, args: Any) -> None:
    """Count those of an operator on lists that stays whole."""
    if op._schema.name.startswith(_LISTS) and op._schema.is_mutable and not op.name().endswith("out"):
        for written in args[0]:
            _count(written)


def _has_loop(name: str) -> bool:
    """Whether an operator on lists is what ``name`` does to each tensor: elementwise operators, and copies."""
    known = OPERATORS.get(name)
    if name in ("copy", "zero") or known is not None:
        return known is None or known.family in (Family.ELEMENTWISE, Family.COPY)
    packet = getattr(aten, name, None)  # PyTorch takes long to look one up
    return packet is not None and any(is_elementwise(getattr(packet, each)) for each in packet.overloads())


def _norms(tensors: Any, ord: Any = 2, dtype: Any = None) -> Any:
    """``_foreach_norm`` of tensors on a GPU, whose norms then share launches; a processor's are PyTorch's to compute."""
    if not isinstance(tensors, (list, tuple)) or any(t.device.type == "cpu" for t in tensors):
        return NotImplemented
    return [aten.linalg_vector_norm.default(t, ord, None, False, dtype=dtype) for t in tensors]


@functools.cache
def _loop(op: OpOverload) -> Callable[..., Any] | None:
    if op is aten._foreach_norm.Scalar:
        return _norms
    name = op._schema.name.removeprefix(_LISTS).removesuffix("_")
    return _rule(op, name) if not op.name().endswith("out") and _has_loop(name) else None


def loop_of(op: OpOverload) -> Callable[..., Any] | None:
    """The loop that an operator on lists of tensors is; None for one that is none."""
    return _loop(op) if op._schema.name.startswith(_LISTS) else None
