"""The codes of PyTorch's own functions by which their frames are told."""

from __future__ import annotations

import functools
from types import CodeType
from typing import Any

import torch
from torch.utils import checkpoint

from braze.graph.private.torch_compat import outside_modes


@functools.cache
def disabling_wrapper() -> Any:
    """The code of the wrappers by which PyTorch keeps its own functions out of its compiler."""
    return torch._compile._disable_dynamo(outside_modes).__code__


def checkpoint_codes() -> set[CodeType]:
    """The codes beneath which a checkpoint runs its function, and runs it again."""
    wrapped: Any = checkpoint.checkpoint
    again = checkpoint._checkpoint_without_reentrant_generator.__code__.co_consts
    codes = {wrapped.__wrapped__.__code__, checkpoint.CheckpointFunction.backward.__code__}
    return codes | {code for code in again if isinstance(code, CodeType)}
