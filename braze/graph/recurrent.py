"""What PyTorch's decomposition of an LSTM gets wrong before 2.12: its end states have a dimension too many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def with_end_states(func: Any, args: Sequence[Any], result: Any) -> Any:
    """The result of a call; an LSTM's end states have the sizes of its start states.

    ``args`` are those of ``torch.lstm``: (input, states, ...) or (data, batch_sizes, states, ...).
    """
    if func is not torch.lstm:
        return result
    starts = args[1] if isinstance(args[1], (tuple, list)) else args[2]
    out, *ends = result
    return (
        out,
        *(e if e.dim() == s.dim() else e.reshape(s.shape) for e, s in zip(ends, starts, strict=True)),
    )
