"""Kernels of ours that are no graph's: sums of rows by number, running sums; what a GPU's work costs, and constants on it.

Imports libraries, memory, triton and operators.
"""
