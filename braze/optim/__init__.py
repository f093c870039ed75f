"""Optimizers' steps as one kernel over all parameters: tables of addresses instead of a loop over tensors.

Imports codegen, loops, cudagraphs and base: steps are recorded too, and no graph is captured here.
"""

from __future__ import annotations

from braze.optim.clip import clip_grad_norm_, clip_grad_value_
from braze.optim.wrap import CompiledOptimizer, compile_optimizer

__all__ = ["CompiledOptimizer", "clip_grad_norm_", "clip_grad_value_", "compile_optimizer"]
