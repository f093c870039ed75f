"""Around compiled halves at each call: autograd's operation, inputs written back, views made again, promises checked.

Imports facts and joint.
"""
