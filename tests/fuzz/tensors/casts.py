"""Casts in a program's run in float64: there is but one type, and still memory of its own where the program's own types make some.

``y = x.to(torch.float64)`` copies numbers of float32, so that a later write to ``x`` leaves ``y`` alone. In float64 nothing
would be copied; and ``x.float()`` would leave the type that others are held to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Tensor = torch.Tensor

#: methods that give back what they are called on where it has the type already
CASTS = frozenset([Tensor.to, Tensor.type_as, Tensor.double, Tensor.float, Tensor.half, Tensor.bfloat16])
#: those of them that name a floating type: in float64 all name that
FLOATING = frozenset([Tensor.double, Tensor.float, Tensor.half, Tensor.bfloat16])


class Watched(TorchFunctionMode):
    """Notes of each cast whether it gave back what it was called on."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in CASTS:
            self.kept.append(made is args[0])
        return made


class Doubled(TorchFunctionMode):
    """Casts as they are in float64, with copies where ``kept`` says that the program's own types have some."""

    def __init__(self, kept: Iterable[bool]) -> None:
        super().__init__()
        self.kept = iter(kept)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in CASTS:
            return func(*args, **(kwargs or {}))
        made = (Tensor.double if func in FLOATING else func)(*args, **(kwargs or {}))
        return made if next(self.kept, True) or made is not args[0] else made.clone()
