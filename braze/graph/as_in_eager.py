"""What PyTorch's fakes and decompositions get wrong of whole torch functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_POOLS = frozenset({torch.nn.functional.max_pool1d, torch.max_pool1d})


def as_in_eager(func: Any, args: Sequence[Any], result: Any) -> Any:
    """The result of a call with the sizes and strides that it has in eager."""
    if func in _POOLS and isinstance(result, torch.Tensor):
        # fakes go by way of pictures, whose layout the operand's decides; where nobody asks for a gradient the CPU
        # has a kernel, whose results are row by row
        wanted = result.requires_grad or result.device.type != "cpu"
        return result if wanted else result.contiguous()
    if func is torch.lstm:
        # before 2.12 its end states have a dimension too many; ``args``: (input, states, ...) or (data, batch_sizes, states, ...)
        starts = args[1] if isinstance(args[1], (tuple, list)) else args[2]
        out, *ends = result
        pairs = zip(ends, starts, strict=True)
        return (out, *(e if e.dim() == s.dim() else e.reshape(s.shape) for e, s in pairs))
    return result
