"""The command ``braze``: demo, explain, env, serve.

The highest of all. Imports serving, inspect, capture, graph and base.
"""
