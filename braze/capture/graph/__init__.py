"""The graph of one trace: calls of torch on fakes become nodes; sizes and numbers that are symbols.

Imports facts, state and outside.
"""
