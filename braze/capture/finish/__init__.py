"""From the end of a trace to its Capture: outputs, effects, the state at a break, values as recipes.

Imports facts, state, outside, graph and python.
"""
