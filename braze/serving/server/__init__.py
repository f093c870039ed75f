"""The engine behind HTTP.

Imports policy, pieces and engine.
"""
