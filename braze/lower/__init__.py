"""Core ATen graph -> LoopProgram: one file per family of operators.

Imports loops, graph and base, and reads the records of aot.
"""

from braze.lower import (  # noqa: F401  the families register their rows
    activation_gradients,
    activations,
    contractions,
    convolutions,
    grouped,
    indexing,
    interpolation,
    loss_gradients,
    pointwise,
    pooling,
    reductions,
    running,
    scatters,
    segments,
    shape,
    tables,
    view_gradients,
    views,
)
from braze.lower.program import lower, lower_graph
from braze.lower.registry import LOWERINGS

__all__ = ["LOWERINGS", "lower", "lower_graph"]
