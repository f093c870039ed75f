"""The command line: demo, explain, env.

Imports everything below.
"""
