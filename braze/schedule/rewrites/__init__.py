"""Loop programs as better ones, before and after fusion: what is constant, rounded, looked up, or computed by a product's template.

Imports facts and memory.
"""
