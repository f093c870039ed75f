"""Captures on disk, for another process of the same code.

Imports facts, outside and guards.
"""
