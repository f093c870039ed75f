"""Tools that look at a compile: explain.

Imports capture and base: it tells of breaks, and reads the rest off the trace.
"""
