"""Schedule -> text: ``c/`` and ``triton/`` write kernels, ``host/`` the module that calls them.

Imports schedule, loops and base.
"""
