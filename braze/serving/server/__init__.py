"""The engine behind HTTP.

May import every other room of serving.
"""
