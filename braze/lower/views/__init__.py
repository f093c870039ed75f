"""Operators that move elements: views, what is made from nothing, joined or padded, reads at computed places, pictures between their elements.

Imports values and elementwise.
"""
