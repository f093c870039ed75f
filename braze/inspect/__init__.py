"""Tools that look at a compile: explain.

Imports capture, whose breaks it tells, and base; the rest it reads off the trace.
"""
