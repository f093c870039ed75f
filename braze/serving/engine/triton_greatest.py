"""The place of each row's greatest logit on a GPU by one kernel, as ``torch.argmax`` finds it.

A program has a part of a row. Numbers and places are one whole number of 64 bits, greater for what wins, and kept in memory by an atomic maximum, whose result is the same in any
order; the program that ends last writes the place, and leaves that memory as it was.
"""

# kernels are typed by their launches
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: logits that one program takes
_PART = 2048


@triton.jit
def greatest_kernel(logits, best, found, size, row_stride, BLOCK: tl.constexpr):
    """A part of one row. ``found``: for each row the greatest until now and how many parts have told of theirs, zeros before and after."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    place = part * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row.to(tl.int64) * row_stride + place, mask=place < size, other=float("-inf"))
    value = value.to(tl.float32)
    # both zeros are equal; no number is greater than all
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    key = tl.where(value != value, 0x7FFFFFFF, key).to(tl.int64)
    # above zero, whatever the logit: the lesser place wins among equals
    ranked = ((key + 0x80000000) << 31) | (0x7FFFFFFF - place)
    ranked = tl.where(place < size, ranked, 0)
    tl.atomic_max(found + 2 * row, tl.max(ranked, 0), sem="acq_rel")
    if tl.atomic_add(found + 2 * row + 1, 1, sem="acq_rel") == tl.num_programs(1) - 1:
        greatest = tl.atomic_xchg(found + 2 * row, 0, sem="acq_rel")
        tl.store(found + 2 * row + 1, 0)
        tl.store(best + row, 0x7FFFFFFF - (greatest & 0x7FFFFFFF))


def greatest(logits: torch.Tensor, best: torch.Tensor, found: torch.Tensor) -> None:
    """Where each row of ``logits`` is greatest, into ``best`` (int64): the first place among equals, and the first that is no number before all.

    ``found``: zeros, two int64 a row, and zeros again afterwards. Rows lie one behind another, each in one piece of memory.
    """
    rows, size = logits.shape
    greatest_kernel[(rows, triton.cdiv(size, _PART))](
        logits, best, found, size, logits.stride(0), BLOCK=_PART, num_warps=4
    )
