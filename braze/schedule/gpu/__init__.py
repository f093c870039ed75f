"""How a group becomes one kernel of a GPU: axes along threads, tiles, warps, walks over rows. ``kernels.py`` is the entry.

Imports facts.
"""
