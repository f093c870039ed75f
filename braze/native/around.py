"""What stands around a graph's calls of ATen: grad mode off, and results in the layout that was planned; in C where it is built."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from braze.native import torch_state


def grad_off(call: Callable[..., Any], general: Callable[..., Any]) -> Callable[..., Any]:
    """``general(inputs)``: ``call(inputs)`` with grad mode off, which C turns off itself where autocast is off for the devices of graphs."""
    core = sys.modules.get("braze.native._native")
    if core is None or not _sets_modes():
        return general
    return core.GradOff(call, general)  # type: ignore[no-any-return]


@functools.cache
def _sets_modes() -> bool:
    """Whether libtorch's functions turn grad mode off and on, and see autocast, as PyTorch's Python does."""
    core, torch = sys.modules["braze.native._native"], torch_state.torch()
    if not core._load_grad_mode(torch_state.library("torch_cpu")):
        return False
    seen: list[Any] = []
    off = core.GradOff(
        lambda inputs: seen.append(torch.is_grad_enabled()), lambda inputs: seen.append("general")
    )
    for mode in (True, False):
        for cast in (False, True):
            with torch.set_grad_enabled(mode), torch.autocast("cpu", torch.bfloat16, enabled=cast):
                off([])
                seen.append(torch.is_grad_enabled())
    return seen == [False, True, "general", True, False, False, "general", False]


def planned(
    sizes: Sequence[int], strides: Sequence[int], dtype: Any, relayout: Callable[..., Any]
) -> Callable[[Any], Any]:
    """f(tensor) -> the tensor in these sizes, strides and type: itself, or ``relayout(tensor, sizes, strides, dtype)``."""

    def general(tensor: Any) -> Any:
        if tensor.shape != sizes or tensor.stride() != strides or tensor.dtype is not dtype:
            return relayout(tensor, sizes, strides, dtype)
        return tensor

    core = sys.modules.get("braze.native._native")
    return core.Planned(general, sizes, strides, dtype) if core is not None else general  # type: ignore[no-any-return]
