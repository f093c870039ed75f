"""From the end of a trace to its Capture: outputs, effects, the state at a break, values as recipes.

Imports all rooms before it: facts, outside, guards, graph and python.
"""
