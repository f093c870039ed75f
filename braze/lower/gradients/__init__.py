"""Gradients of activations, losses and views, as eager's kernels compute them.

Imports values, elementwise and views.
"""
