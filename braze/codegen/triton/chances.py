"""Random numbers beside a number that is known: the words that they are made of are compared instead.

A word ``w`` of 32 bits gives ``u = float(w ^ (w >> 31)) * SCALE``, which never falls where ``w ^ (w >> 31)`` rises. So ``u < c``
where that is below one whole number, and two instructions tell it of the word itself where five make ``u`` of it first: the words of ``few``
such numbers are those from ``-few`` to ``few - 1``.
"""

from __future__ import annotations

import bisect

import numpy as np

#: as `triton.language.uint_to_uniform_float` has it
SCALE = np.float32(4.6566127342e-10)
#: numbers that a word without its sign may be
WORDS = 1 << 31


def words_below(limit: float) -> int:
    """How many of the whole numbers from 0 to 2^31 - 1 give a random number below a limit in single precision: those are the least."""
    if np.isnan(limit):
        return 0
    return bisect.bisect_left(range(WORDS), np.float32(limit), key=_number)


def _number(word: int) -> np.float32:
    return np.float32(np.float32(word) * SCALE)
