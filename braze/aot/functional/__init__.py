"""Graphs without writes, and the proof that they compute the same.

Imports facts.
"""
