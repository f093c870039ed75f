"""Graphs and what is known of their nodes: facts, specs, dialects and their verifier, passes, printing.

Imports private, sizes and operators.
"""
