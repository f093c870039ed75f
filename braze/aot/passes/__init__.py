"""Rewrites of graphs by what the device likes: attention, layouts, padding, products that are joined.

Imports facts and cut.
"""
