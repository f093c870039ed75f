"""Core ATen graph -> LoopProgram: one room per kind of operators, one file per family.

Eight rooms, lowest first: values, elementwise, views, reductions, gradients, scatters, products, stage. Each says in its docstring
what lives there and what it may import. Imports loops, graph and base, and reads the records of aot.
"""

# the families register their rows
from braze.lower.elementwise import activations, pointwise  # noqa: F401
from braze.lower.gradients import activation_gradients, loss_gradients, view_gradients  # noqa: F401
from braze.lower.products import contractions, convolutions, grouped  # noqa: F401
from braze.lower.reductions import pooling, reductions, running  # noqa: F401
from braze.lower.scatters import scatters, segments, tables  # noqa: F401
from braze.lower.stage.program import lower, lower_graph
from braze.lower.values.registry import LOWERINGS
from braze.lower.views import indexing, interpolation, shape, views  # noqa: F401

__all__ = ["LOWERINGS", "lower", "lower_graph"]
