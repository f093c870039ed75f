"""Attention over a paged cache: the operators, their kernels, and a plain reference."""
