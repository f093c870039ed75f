"""Backends by name: braze, eager, aot_eager, and those users register.

Imports pipeline, aot, graph and base.
"""
