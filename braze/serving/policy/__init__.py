"""What is decided once, or per step as a pure function: levels, modes, settings, capture sizes, dispatch.

Nothing here runs a tensor: every answer is a value, and is tested as one.

Imports no other room.
"""
