"""Core ATen graph -> LoopProgram: one file per family of operators.

Imports loops, graph, symbolic and base.
"""
