"""Writes: at computed places, sums of rows that share a number, and what an input holds itself.

Imports values, elementwise and views.
"""
