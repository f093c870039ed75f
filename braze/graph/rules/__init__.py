"""Metadata of results without PyTorch's fakes: types, sizes and strides as eager picks them.

Imports private, sizes, operators and nodes.
"""
