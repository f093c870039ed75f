"""Kernels of Triton's: built in processes of their own, loaded, launched through the driver.

Imports libraries.
"""
