"""The engine behind HTTP.

Imports policy, step, pieces, served and engine.
"""
