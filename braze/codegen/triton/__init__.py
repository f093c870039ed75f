"""Triton kernels from the same Schedule as the C ones: pointwise, persistent and looped reductions.

``generate`` is the entry; texts run on a GPU and in Triton's interpreter alike. Imports the schedule's
records, loops, symbolic and base; never triton itself.
"""

from braze.codegen.triton.generate import generate

__all__ = ["generate"]
