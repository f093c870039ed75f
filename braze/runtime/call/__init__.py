"""A graph as a function: a host module's text and its library, loaded.

Imports memory, operators and gpu.
"""
