"""What runs in Python at each call of a variant, generated from its Capture.

Imports facts and graph.
"""
