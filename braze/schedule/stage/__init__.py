"""The stage itself, in ``scheduler.py``, what must hold of every schedule, and a schedule cut into parts.

Imports facts, memory, fusion, rewrites, gpu and forms.
"""
