"""Steps -> blocks -> groups: which loops share a kernel, and the canonical form in which equal kernels are equal.

Imports facts.
"""
