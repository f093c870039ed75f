"""The gradient of an embedding's table on a GPU, where no more is done with it: sums of rows that share a number, and zeros elsewhere.

``braze::table_sums(grad, indices, rows, padding)`` orders the numbers (``groups.py``). Which rows of the table no number names is known
as soon as the first of the kernels that order has ended; these are bound by latency and leave the memory idle, so that programs of theirs
beside those that order fill those rows. The kernel at the end writes the others: the program of a number's first place adds up what the
number's places have, always in the same order. Blocks of places that share one number are summed before, and count as one row each.
"""

from __future__ import annotations

import torch

from braze.runtime import groups
from braze.runtime.groups import POINTERS, SHARES, Cleared

Tensor = torch.Tensor

#: places of a block that is summed by itself; rows that are read at once of one, and by the program of a number
BLOCK, AT_ONCE, FIRST, MORE = 32, 16, 2, 4
#: columns of a warp that sums a row; warps that sum a block
WARP, WARPS = 256, 4
#: of SHARES of a table's rows, those that the kernels clear which order, and that which sums blocks; rows that a program of the last kernel clears
MEANWHILE, THEN, ROWS = 6, 3, 4

SOURCE = (
    groups.SOURCE
    + '''

@triton.jit
def summed(grad, places, taken, c, W: tl.constexpr):
    """The sum of the rows at those of some places that are taken."""
    where = places.to(tl.int64)[:, None] * W + c[None, :]
    row = tl.load(grad + where, mask=taken[:, None] & (c < W)[None, :], other=0.0, eviction_policy="evict_first")
    return tl.sum(row.to(tl.float32), 0)


@triton.jit
def blocks(grad, found, order, partial, indices, who, out, n, rows, padding, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr, EARLY: tl.constexpr):
    """The sums of the first places of blocks, where their number is that of the place before, too; or a part of a table cleared."""
    if EARLY:
        gdc_wait()
    TILES: tl.constexpr = (W + COLUMNS - 1) // COLUMNS
    p = tl.program_id(0)
    b = p // TILES
    if b < (n + BLOCK - 1) // BLOCK:
        first = b * BLOCK
        v = tl.load(found + first)
        before = tl.load(found + first - 1, mask=b > 0, other=-1)
        if (v < rows) & (v == before):
            k = tl.arange(0, BLOCK)
            many = tl.sum((tl.load(found + first + k, mask=first + k < n, other=-1) == v).to(tl.int32), 0)
            c = p % TILES * COLUMNS + tl.arange(0, COLUMNS)
            total = tl.zeros([COLUMNS], tl.float32)
            for j in range(0, many, AT_ONCE):
                i = j + tl.arange(0, AT_ONCE)
                total += summed(grad, tl.load(order + first + i, mask=i < many, other=0), i < many, c, W)
            tl.store(partial + b.to(tl.int64) * W + c, total, mask=c < W)
    elif TO > FROM:
        clear(indices, who, out, p - (n + BLOCK - 1) // BLOCK * TILES, n, rows, padding, W, COLUMNS, ROWS, FROM, TO)


@triton.jit
def sums(grad, found, order, partial, indices, who, out, n, rows, padding, BLOCK: tl.constexpr, FIRST: tl.constexpr, MORE: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr, EARLY: tl.constexpr):
    """The row of a number, by the program of the first place where it stands; or a part of a table cleared."""
    if EARLY:
        gdc_wait()
    TILES: tl.constexpr = (W + COLUMNS - 1) // COLUMNS
    p = tl.program_id(0)
    q = p // TILES
    if q < n:
        c = p % TILES * COLUMNS + tl.arange(0, COLUMNS)
        v = tl.load(found + q)
        before = tl.load(found + q - 1, mask=q > 0, other=-1)
        end = tl.minimum(n, (q // BLOCK + 1) * BLOCK)
        i = tl.arange(0, FIRST)
        alike = tl.load(found + q + i, mask=q + i < end, other=-1) == v
        places = tl.load(order + q + i, mask=q + i < end, other=0)
        if (v < rows) & (v != before):
            total = summed(grad, places, alike, c, W)
            if tl.sum(alike.to(tl.int32), 0) == tl.minimum(FIRST, end - q):  # there may be more
                k = tl.arange(0, BLOCK)
                m = tl.arange(0, MORE)
                many = tl.sum((tl.load(found + q + k, mask=q + k < end, other=-1) == v).to(tl.int32), 0)
                for j in range(FIRST, many, MORE):
                    here = tl.load(order + q + j + m, mask=j + m < many, other=0)
                    total += summed(grad, here, j + m < many, c, W)
                b = q // BLOCK + 1
                more = (q + many == end) & (end < n)
                while more:  # what is in the blocks behind
                    first = (b + k) * BLOCK
                    held = tl.sum((tl.load(found + first, mask=first < n, other=-1) == v).to(tl.int32), 0)
                    for j in range(0, held, MORE):
                        total += summed(partial, b + j + m, j + m < held, c, W)
                    b += held
                    more = held == BLOCK
            tl.store(out + v.to(tl.int64) * W + c, total.to(out.dtype.element_ty), mask=c < W, eviction_policy="evict_first")
    elif TO > FROM:
        clear(indices, who, out, p - n * TILES, n, rows, padding, W, COLUMNS, ROWS, FROM, TO)
'''
)

_library = torch.library.Library("braze", "FRAGMENT")
_library.define("table_sums(Tensor grad, Tensor indices, int rows, int padding) -> Tensor")


def by_kernels(grad: Tensor, indices: Tensor, rows: int, padding: int) -> Tensor:
    """The sums, of any number of places."""
    width, device = grad.shape[-1], grad.device
    given, flat = grad.reshape(-1, width).contiguous(), indices.reshape(-1).contiguous()
    n, counted = flat.numel(), groups.are_counted(flat, rows)
    out = (torch.empty if counted else torch.zeros)((rows, width), device=device, dtype=grad.dtype)
    if 0 in (n, rows, width):
        return out
    if counted:
        shares = _shares(groups.passes_of(rows))
        found, order, who = groups.ordered(flat, rows, Cleared(out, padding, shares))
        start, middle, stop = shares[-1], shares[-1] + THEN, SHARES
    else:
        found, order, who = groups.by_sort(torch.where(flat == padding, rows, flat), rows)
        start = middle = stop = 0
    # what is ahead of these is a library's where numbers were sorted
    early, tiles = int(counted and groups.begins_early(device)), -(-width // groups.tile_of(width))
    partial = torch.empty((-(-n // BLOCK), width), device=device, dtype=torch.float32)
    dtype, path = POINTERS[given.dtype], groups.path(SOURCE)
    dtypes = (dtype, "*i32", "*i32", "*fp32", POINTERS[flat.dtype], "*i32", dtype)
    taken = (given, found, order, partial, flat, who, out, n, rows, padding)
    filled = groups.clearing(out, start, middle)
    constants = dict(BLOCK=BLOCK, AT_ONCE=AT_ONCE, **filled, EARLY=early)
    programs = f"(n + {BLOCK - 1}) // {BLOCK} * {tiles} + {groups.programs_of(start, middle)}"
    groups.kernel(path, "blocks", WARPS, dtypes, programs, **constants)(*taken)
    filled = groups.clearing(out, middle, stop) | {"ROWS": ROWS}
    constants = dict(BLOCK=BLOCK, FIRST=FIRST, MORE=MORE, **filled, EARLY=early)
    programs = f"n * {tiles} + {groups.programs_of(middle, stop, ROWS)}"
    groups.kernel(path, "sums", max(1, filled["COLUMNS"] // WARP), dtypes, programs, **constants)(*taken)
    return out


def _shares(passes: int) -> tuple[int, ...]:
    """Where the part of the table ends that each pass clears."""
    return tuple((k + 1) * MEANWHILE // passes for k in range(passes))


def by_adding(grad: Tensor, indices: Tensor, rows: int, padding: int) -> Tensor:
    """The same by ATen."""
    flat = indices.reshape(-1).long()
    kept = (flat >= 0) & (flat < rows) & (flat != padding)
    given = grad.reshape(-1, grad.shape[-1])[kept].float()
    return given.new_zeros((rows, grad.shape[-1])).index_add_(0, flat[kept], given).to(grad.dtype)


_library.impl("table_sums", by_adding, "CPU")
_library.impl("table_sums", by_kernels, "CUDA")
TABLE_SUMS = torch.ops.braze.table_sums.default
