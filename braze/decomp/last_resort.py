"""The few operators for which PyTorch's own decompositions are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

_NAMES = (
    aten.channel_shuffle.default,
    aten.dist.default,
)


def _by_pytorch(op: OpOverload) -> Callable[..., Any]:
    """A decomposition that is looked up on its first call: the table is slow to import."""

    def run(*args: Any, **kwargs: Any) -> Any:
        from torch._decomp import decomposition_table

        rule = decomposition_table.get(op)
        return rule(*args, **kwargs) if rule is not None else NotImplemented

    return run


LAST_RESORT: Mapping[OpOverload, Callable[..., Any]] = MappingProxyType(
    {op: _by_pytorch(op) for op in _NAMES}
)
