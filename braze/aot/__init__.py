"""Torch-level graph -> ATen graphs with roles: trace, differentiate, functionalize, cut into forward and backward.

Imports graph and base.
"""

from braze.aot.autograd import differentiable
from braze.aot.compilers import make_boxed_compiler, make_boxed_func, nop
from braze.aot.functions import aot_function, aot_module, aot_module_simplified
from braze.aot.min_cut import default_choice, min_cut_choice
from braze.aot.partition import backward_partition, likely_sizes, needs_gradients, partition
from braze.aot.partition_functions import PartitionFn, default_partition, min_cut_partition
from braze.aot.records import Backward, InputRole, JointGraph, OutputKind, OutputRole, Partition
from braze.aot.wrap import eager_forward, with_own_results, wrap
from braze.graph.facts import facts
from braze.runtime.boxed import boxed

__all__ = [
    "Backward",
    "InputRole",
    "JointGraph",
    "OutputKind",
    "OutputRole",
    "Partition",
    "PartitionFn",
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "backward_partition",
    "boxed",
    "default_choice",
    "default_partition",
    "differentiable",
    "eager_forward",
    "facts",
    "likely_sizes",
    "make_boxed_compiler",
    "make_boxed_func",
    "min_cut_choice",
    "min_cut_partition",
    "needs_gradients",
    "nop",
    "partition",
    "with_own_results",
    "wrap",
]
