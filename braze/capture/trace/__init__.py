"""The tracer: the one place that knows all that takes part in a trace.

Imports every room below it: facts to features.
"""
