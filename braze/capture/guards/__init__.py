"""Guards as tables, as text and as explanations: what must be true of a call for a variant to serve it.

Imports facts.
"""
