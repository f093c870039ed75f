"""Freestanding C kernels: GCC vector extensions, OpenMP, our own math header."""
