"""Torch-level graph -> ATen graphs with roles: trace, differentiate, functionalize, cut into forward and backward.

Imports graph, symbolic and base.
"""

from braze.aot.autograd import differentiable
from braze.aot.cut import default_choice, min_cut_choice
from braze.aot.partition import backward_partition, needs_gradients, partition
from braze.aot.records import Backward, InputRole, OutputKind, OutputRole, Partition
from braze.aot.wrap import eager_forward, wrap

__all__ = [
    "Backward",
    "InputRole",
    "OutputKind",
    "OutputRole",
    "Partition",
    "backward_partition",
    "default_choice",
    "differentiable",
    "eager_forward",
    "min_cut_choice",
    "needs_gradients",
    "partition",
    "wrap",
]
