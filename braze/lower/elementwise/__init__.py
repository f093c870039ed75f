"""Operators whose lowering is one row: arithmetic, activations, floats of eight bits.

Imports values.
"""
