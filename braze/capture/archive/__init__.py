"""Captures on disk, for another process of the same code.

Imports facts, guards and outside.
"""
