"""Captured graph -> ATen operators: nodes run on fakes, under the mode that records them.

Imports facts and passes.
"""
