"""The loop IR: what is computed, over which points, into which buffers. Data only.

No torch operators and no target. Imports base.
"""
