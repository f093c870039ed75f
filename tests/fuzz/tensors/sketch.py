"""How large a statement's numbers would be: it is run on tensors without any, so that no memory is asked for that there is not."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz.tensors.program import Line

Tensor = torch.Tensor


class Larger(Exception):
    """A statement makes more elements than a program may have."""


class Limited(TorchDispatchMode):
    """Ends what makes a tensor of more elements than ``most``; views make none."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(value, Tensor) and value.numel() > self.most and not func.is_view:
                raise Larger
        return made


def is_larger(code: CodeType, line: Line, scope: dict[str, Any], most: int) -> bool:
    """Whether a statement makes more than ``most`` elements on the way; false of one that needs numbers to tell."""
    bare = {name: without_numbers(scope[name]) for name in line.uses() if name in scope}
    try:
        with torch.no_grad(), Limited(2 * most):
            exec(code, {**scope, **bare})
    except Larger:
        return True
    except Exception:
        return False
    return False


def without_numbers(value: Any) -> Any:
    """A tensor that lies as another does, and has no memory."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
