"""Torch-level graph -> ATen graph with roles: trace, functionalize, (later) differentiate and partition.

Imports graph, symbolic and base.
"""

from braze.aot.partition import partition
from braze.aot.records import InputRole, OutputKind, OutputRole, Partition
from braze.aot.wrap import eager_forward, wrap

__all__ = ["InputRole", "OutputKind", "OutputRole", "Partition", "eager_forward", "partition", "wrap"]
