"""What ATen's operators are and do, in one table for all stages; decompositions as users give them.

Imports private.
"""
