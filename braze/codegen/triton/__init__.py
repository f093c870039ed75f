"""Triton kernels from the same Schedule as the C ones."""
