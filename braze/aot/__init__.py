"""Torch-level graph -> ATen graph with roles: trace, functionalize, (later) differentiate and partition.

Imports graph, symbolic and base.
"""
