"""The command ``braze``: demo, explain, env, serve.

The highest of all: imports whatever it shows, serving too.
"""
