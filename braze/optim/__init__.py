"""Optimizers' steps as one kernel over all parameters: tables of addresses instead of a loop over tensors."""

from __future__ import annotations

from braze.optim.wrap import CompiledOptimizer, compile_optimizer

__all__ = ["CompiledOptimizer", "compile_optimizer"]
