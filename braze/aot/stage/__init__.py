"""The stage itself, in ``partition.py``, and the same for those who write compilers of their own.

Imports facts, cut, passes, trace, functional, joint and calls.
"""
