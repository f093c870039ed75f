"""Fake tensors, on which graphs are recorded and traced, and what eager refuses of calls.

Imports private, sizes, operators, nodes and rules.
"""
