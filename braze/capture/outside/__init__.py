"""What the trace finds outside the frame: the tree of places, what is read there, and the shadows that take writes.

Imports facts.
"""
