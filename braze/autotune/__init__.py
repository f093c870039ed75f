"""What the clock decides, once for each machine, and every later compile follows: who multiplies matrices, and how kernels are cut.

Imports schedule, codegen, graph, loops and base: it plans, prints and runs candidates. Only the pipeline asks it.
"""
