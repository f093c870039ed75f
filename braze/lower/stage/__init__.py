"""The stage itself: a graph, node by node.

Imports values and scatters.
"""
