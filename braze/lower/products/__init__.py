"""Matrix products and convolutions: calls, templates, and sums where those are quicker.

Imports values, elementwise, views and reductions.
"""
