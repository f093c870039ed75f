"""A model's graph cut at its splitting operators; each piece compiled, recorded and replayed.

Imports policy and step.
"""
