"""Which kernels of attention, and of what follows the last layer, a device has."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType
from typing import Any

import torch

from braze.serving.policy.modes import AttentionCGSupport
from braze.support import log


class _Reference:
    """The reference in the kernels' place, for a GPU without Triton: right and slow, and it makes the host wait."""

    def __init__(self, module: ModuleType) -> None:
        self.write_cache = module.write_cache
        self._attention = module.paged_attention
        self._rope_attention = module.rope_attention

    def paged_attention(self, *arguments: Any) -> None:
        """All arguments but the last, which bounds the tokens of a request."""
        self._attention(*arguments[:-1])

    def rope_attention(self, *arguments: Any) -> None:
        """All but what splits are counted in, and the bound."""
        self._rope_attention(*arguments[:9], *arguments[10:-1])

    def greatest(self, logits: torch.Tensor, best: torch.Tensor, found: torch.Tensor) -> None:
        """As the kernel of that name, without what its parts are counted in."""
        torch.argmax(logits, -1, out=best)


class _Kernels:
    """The kernels of a GPU with Triton."""

    def __init__(self) -> None:
        paged = importlib.import_module("braze.serving.engine.attention.triton_paged")
        rope = importlib.import_module("braze.serving.engine.attention.triton_rope")
        self.write_cache, self.paged_attention = paged.write_cache, paged.paged_attention
        self.rope_attention = rope.rope_attention
        self.greatest = importlib.import_module("braze.serving.engine.triton_greatest").greatest


@functools.cache
def kernels(device: torch.device) -> Any:
    """A GPU's kernels; without Triton the reference, which is told of once (BZ7402)."""
    if importlib.util.find_spec("triton") is not None:
        return _Kernels()
    log.warn_once(
        ("attention", device),
        f"BZ7402: attention on {device} runs by the reference, one request after another: Triton is not installed "
        "(pip install 'braze[triton]')",
        "kernels",
    )
    return _Reference(importlib.import_module("braze.serving.engine.attention.reference"))


def graph_support(device: torch.device) -> AttentionCGSupport:
    """Which batches attention on a device can be recorded with: all, unless the host has to read lengths."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return AttentionCGSupport.NEVER
    return AttentionCGSupport.ALWAYS
