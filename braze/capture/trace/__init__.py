"""The tracer: the one place that knows all that takes part in a trace.

Imports all rooms before it, features the last of them.
"""
