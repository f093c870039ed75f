"""From a call to a variant: sessions, the variants of a function, attempts, the stance, and what is said of recompiles.

Imports facts, guards, python, trace, residual and archive.
"""
