"""Core ATen graph -> LoopProgram: one file per family of operators.

Imports loops, graph, symbolic and base.
"""

from braze.lower import (  # the families register their rows
    activations,
    contractions,
    indexing,
    pointwise,
    reductions,
    shape,
    views,
)
from braze.lower.program import lower, lower_graph
from braze.lower.registry import LOWERINGS

__all__ = [
    "LOWERINGS",
    "activations",
    "contractions",
    "indexing",
    "lower",
    "lower_graph",
    "pointwise",
    "reductions",
    "shape",
    "views",
]
