"""Python as the trace runs it: instructions, attributes, calls, operators, iteration, and the border to C code.

Imports facts, state, outside and graph.
"""
