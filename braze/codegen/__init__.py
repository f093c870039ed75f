"""Schedule -> text: ``c/`` and ``triton/`` write kernels, ``host/`` the module that calls them.

Imports the schedule's records, loops, symbolic and base.
"""
