"""Groups of a GPU as other kernels: long rows in parts, rows and columns from one read, small kernels that share a launch.

Imports facts, fusion and gpu.
"""
