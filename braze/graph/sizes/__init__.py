"""Symbolic sizes and numbers: what guards and traces know of them.

Imports private.
"""
