"""Calls of compiled graphs that are recorded once and replayed: on a GPU by CUDA graphs, in tests by a simulated device.

Imports graph and base. Nothing here knows what a graph computes: it is given a call and what is known of its inputs.
"""
