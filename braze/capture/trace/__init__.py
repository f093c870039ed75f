"""The tracer: the one place that knows all that takes part in a trace.

Imports facts, state, outside, graph, python, finish and features.
"""
