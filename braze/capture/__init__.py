"""Python frame -> Capture: interpreter, sources, guards, effects, residual code, resume functions.

Imports graph, symbolic and base.
"""
