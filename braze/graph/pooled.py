"""What PyTorch's fakes get wrong of max pools over sequences: where nobody asks for a gradient the CPU has a kernel for them, whose results are row by row.

Fakes go by way of pictures, whose layout the operand's decides.
"""

from __future__ import annotations

from typing import Any

import torch

_POOLS = frozenset({torch.nn.functional.max_pool1d, torch.max_pool1d})


def row_by_row(func: Any, result: Any) -> Any:
    """The result of a call, as the kernel lays it out that the call meets in eager."""
    if func not in _POOLS or not isinstance(result, torch.Tensor):
        return result
    if result.requires_grad or result.device.type != "cpu":
        return result
    return result.contiguous()
