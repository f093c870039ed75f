"""Python frame -> Capture: interpreter, sources, guards, effects, residual code, resume functions.

Twelve rooms, lowest first: facts, guards, state, outside, graph, python, finish, features, trace, residual, archive, dispatch. Each
says in its docstring what lives there and what it may import. Imports graph and base.
"""
