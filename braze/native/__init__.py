"""The C extension (frame hook, guard walker, entry, launcher) and its pure-Python stand-in.

Imports support only; the rest of braze imports these names from here, never from ``_native``.
"""
