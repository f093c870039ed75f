"""Sums, means and extremes of rows, windows and running ones.

Imports values, elementwise and views.
"""
