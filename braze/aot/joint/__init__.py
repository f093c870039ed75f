"""Forward and gradients as one graph, its outputs by kind, and the two halves that it is divided into.

Imports facts, cut, trace and functional.
"""
