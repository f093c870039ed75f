"""Torch-level graph -> ATen graphs with roles: trace, differentiate, functionalize, cut into forward and backward.

Eight rooms, lowest first: facts, cut, passes, trace, functional, joint, calls, stage. Each says in its docstring what lives there and
what it may import. Imports graph and base.
"""

from braze.aot.calls.autograd import differentiable
from braze.aot.calls.compilers import make_boxed_compiler, make_boxed_func, nop
from braze.aot.calls.wrap import eager_forward, with_own_results, wrap
from braze.aot.cut.min_cut import default_choice, min_cut_choice
from braze.aot.facts.records import Backward, InputRole, JointGraph, OutputKind, OutputRole, Partition
from braze.aot.joint.partition_functions import PartitionFn, default_partition, min_cut_partition
from braze.aot.stage.functions import aot_function, aot_module, aot_module_simplified
from braze.aot.stage.partition import backward_partition, likely_sizes, needs_gradients, partition
from braze.graph.nodes.facts import facts
from braze.runtime.call.boxed import boxed

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
