"""Sums of rows that share a number, as a table, where numbers are counted and none is put in order, by three kernels on a GPU.

The first clears the counts. The second counts each number and notes the first of its places that come to be counted. The third writes all of the
table: a program has some rows of it, and adds up what the places of each have that were noted, from the least on, so that sums are always
made in one order; what no number names is zero.

What stands more often than is noted waits for nobody, and nobody for it. The first programs of the third kernel set a bit for each of its places, and turn
these bits into lists of places in order, while others write the table; in the middle of these programs begin that sum blocks of the lists, and the last
add up the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from braze.runtime.gpu import groups
from braze.runtime.gpu.groups import POINTERS
from braze.runtime.triton.triton_load import Launched
from braze.support.record import record

Tensor = torch.Tensor

#: places that are noted of a number
NOTED = 32
#: places of a block of what stands more often; rows that are read at once of one, and of a number's noted places
BLOCK, AT_ONCE, MORE = 32, 4, 4
#: places that a program counts, numbers that one sets to zero
COUNTED, BLANK = 256, 1024
#: places of which a program sets the bits; programs that turn bits into lists, that sum blocks, and that add these up
MARKED, LISTERS, ADDERS, ENDERS = 256, 256, 512, 64
#: words of bits that are read at once; rows of blocks' sums, and columns, of a program that adds these up
WORDS, LAST_ROWS, SHARE = 128, 16, 64
#: columns of a row, and rows of the table, that a program has at once, at most; columns of a warp
COLUMNS, ROWS, WARP = 1024, 4, 256
#: bytes of a row of the table: notes are a small part of such, and programs that have several such rows at once are as quick as those of one
LEAST_ROW, MOST_ROW = 256, 3072
#: rows for each place, and places for each row, at most: more rows are cleared sooner otherwise, and more places are seldom noted
ROWS_OF_ONE, PLACES_OF_ONE = 16, 4

#: what kernels that sum rows begin with
BEGINNING = (
    groups.SOURCE
    + '''
from triton.language.extra.cuda import gdc_launch_dependents


@triton.jit
def summed(grad, places, taken, c, W: tl.constexpr):
    """The sum of the rows at those of some places that are taken."""
    where = places.to(tl.int64)[:, None] * W + c[None, :]
    row = tl.load(grad + where, mask=taken[:, None] & (c < W)[None, :], other=0.0, eviction_policy="evict_first")
    return tl.sum(row.to(tl.float32), 0)
'''
)

SOURCE = (
    BEGINNING
    + '''

@triton.jit
def blank(zeros, n, rows, BLANK: tl.constexpr, LETS: tl.constexpr):
    """Zeros in so many numbers."""
    if LETS:
        gdc_launch_dependents()
    i = tl.program_id(0) * BLANK + tl.arange(0, BLANK)
    tl.store(zeros + i, tl.zeros([BLANK], tl.int32), mask=i < n)


@triton.jit
def noted_at(number, rank, rows, NOTED: tl.constexpr):
    """Where a place of a number is noted: the first two beside those of other numbers, which rows of the table read at once, more beside each other."""
    return tl.where(rank < 2, rank * rows + number, 2 * rows + number * NOTED + rank)


@triton.jit
def tally(indices, counts, notes, many, often, slots, bits, n, rows, NOTED: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr, PADDING: tl.constexpr, LETS: tl.constexpr, EARLY: tl.constexpr):
    """How often each number stands, and the first of its places that are counted. What stands more often than is noted is numbered itself, and its bits are cleared."""
    if LETS:
        gdc_launch_dependents()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = numbers(indices, i, n, rows, PADDING)
    known = (i < n) & (number < rows)
    if EARLY:
        gdc_wait()
    before = tl.atomic_add(counts + number, 1, mask=known, sem="relaxed")
    tl.store(notes + noted_at(number, before, rows, NOTED), i, mask=known & (before < NOTED))
    past = (known & (before == NOTED)).to(tl.int32)
    new = tl.sum(past, 0)
    if new > 0:
        first = tl.atomic_add(many, new, sem="relaxed")
        at = first + tl.cumsum(past, 0) - past
        tl.store(often + at, number, mask=past == 1)
        tl.store(slots + number, at, mask=past == 1)
        words = (n + 31) // 32
        w = tl.arange(0, WORDS)
        for h in range(first, first + new):
            for some in range(0, words, WORDS):
                tl.store(bits + h * words + some + w, tl.zeros([WORDS], tl.int32), mask=some + w < words)


@triton.jit
def of_number(grad, counts, notes, out, v, rows, NOTED: tl.constexpr, MORE: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr):
    """The row of a number that stands more than twice, if it stands no more often than is noted."""
    count = tl.load(counts + v)
    if (count > 2) & (count <= NOTED):
        k = tl.arange(0, NOTED)
        place = tl.load(notes + noted_at(v, k, rows, NOTED), mask=k < count, other=2147483647)
        rank = tl.sum((place[None, :] < place[:, None]).to(tl.int32), 1)
        for first in range(0, W, COLUMNS):
            c = first + tl.arange(0, COLUMNS)
            total = tl.zeros([COLUMNS], tl.float32)
            for j in range(0, count, MORE):
                m = j + tl.arange(0, MORE)
                at = tl.sum(tl.where(rank[:, None] == m[None, :], place[:, None], 0), 0)
                total += summed(grad, at, m < count, c, W)
            tl.store(out + v.to(tl.int64) * W + c, total.to(out.dtype.element_ty), mask=c < W, eviction_policy="evict_first")


@triton.jit
def of_rows(grad, counts, notes, out, first, rows, NOTED: tl.constexpr, MORE: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Some rows of the table. Of two places the order does not matter."""
    v = first + tl.arange(0, ROWS)
    count = tl.load(counts + v, mask=v < rows, other=2147483647)
    one = tl.load(notes + v, mask=v < rows, other=0).to(tl.int64)[:, None]  # where none is noted it is nothing that was written
    two = tl.load(notes + rows + v, mask=v < rows, other=0).to(tl.int64)[:, None]
    has_one, has_two, few = ((count == 1) | (count == 2))[:, None], (count == 2)[:, None], (count <= 2)[:, None]
    for left in tl.static_range(0, W, COLUMNS):
        c = left + tl.arange(0, COLUMNS)[None, :]
        a = tl.load(grad + one * W + c, mask=has_one & (c < W), other=0.0, eviction_policy="evict_first").to(tl.float32)
        b = tl.load(grad + two * W + c, mask=has_two & (c < W), other=0.0, eviction_policy="evict_first").to(tl.float32)
        tl.store(out + v.to(tl.int64)[:, None] * W + c, (0.0 + a + b).to(out.dtype.element_ty), mask=few & (c < W), eviction_policy="evict_first")
    if tl.max(tl.where(v < rows, count, 0), 0) > 2:
        for r in range(ROWS):
            if first + r < rows:
                of_number(grad, counts, notes, out, first + r, rows, NOTED, MORE, W, COLUMNS)


@triton.jit
def blocks_before(counts, often, h, BLOCK: tl.constexpr, SOME: tl.constexpr):
    """How many blocks the lists have before one."""
    before = tl.zeros([SOME], tl.int32)
    for first in range(0, h, SOME):
        k = first + tl.arange(0, SOME)
        v = tl.load(often + k, mask=k < h, other=0)
        before += (tl.load(counts + v, mask=k < h, other=0) + BLOCK - 1) // BLOCK
    return tl.sum(before, 0)


@triton.jit
def until(flag, wanted):
    """Wait until programs that have begun before have added so much to a flag, and see what they wrote."""
    ready = 0
    while ready < wanted:
        ready = tl.load(flag, volatile=True)
    tl.atomic_add(flag, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def mark(indices, counts, slots, many, marked, bits, p, n, rows, NOTED: tl.constexpr, MARKED: tl.constexpr, PADDING: tl.constexpr):
    """A bit for each of some places of what stands often."""
    if tl.load(many) > 0:
        i = p * MARKED + tl.arange(0, MARKED)
        number = numbers(indices, i, n, rows, PADDING)
        known = (i < n) & (number < rows)
        past = known & (tl.load(counts + number, mask=known, other=0) > NOTED)
        h = tl.load(slots + number, mask=past, other=0).to(tl.int64)
        tl.atomic_or(bits + h * ((n + 31) // 32) + i // 32, 1 << (i % 32), mask=past, sem="relaxed")
        tl.debug_barrier()
        tl.atomic_add(marked, 1, sem="release")


@triton.jit
def list_places(counts, often, many, marked, listed, bits, lists, p, n, BLOCK: tl.constexpr, SOME: tl.constexpr, MARKED: tl.constexpr, WORDS: tl.constexpr, LISTERS: tl.constexpr):
    """The places of numbers that stand often, in order."""
    hot = tl.load(many)
    words = (n + 31) // 32
    k = tl.arange(0, WORDS)
    for h in range(p, hot, LISTERS):
        at = blocks_before(counts, often, h, BLOCK, SOME) * BLOCK
        until(marked, (n + MARKED - 1) // MARKED)
        for first in range(0, words, WORDS):
            word = tl.load(bits + h * words + first + k, mask=first + k < words, other=0)
            size = tl.zeros([WORDS], tl.int32)
            for bit in range(32):
                size += (word >> bit) & 1
            to = at + tl.cumsum(size, 0) - size
            for bit in range(32):
                here = (word >> bit) & 1
                tl.store(lists + to, (first + k) * 32 + bit, mask=here == 1)
                to += here
            at += tl.sum(size, 0)
        tl.debug_barrier()
        tl.atomic_add(listed + h, 1, sem="release")


@triton.jit
def add_blocks(grad, counts, often, many, listed, lists, partial, done, p, t, BLOCK: tl.constexpr, SOME: tl.constexpr, ADDERS: tl.constexpr, AT_ONCE: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr):
    """The sums of blocks of those places."""
    hot = tl.load(many)
    c = t * COLUMNS + tl.arange(0, COLUMNS)
    blocks = blocks_before(counts, often, hot, BLOCK, SOME)
    for b in range(p, blocks, ADDERS):
        h = 0
        begin = 0
        behind = 0
        for first in range(0, hot, SOME):
            k = first + tl.arange(0, SOME)
            v = tl.load(often + k, mask=k < hot, other=0)
            size = (tl.load(counts + v, mask=k < hot, other=0) + BLOCK - 1) // BLOCK
            ends = behind + tl.cumsum(size, 0)
            past = (ends <= b) & (k < hot)
            h += tl.sum(past.to(tl.int32), 0)
            begin = tl.maximum(begin, tl.max(tl.where(past, ends, 0), 0))
            behind += tl.sum(size, 0)
        count = tl.load(counts + tl.load(often + h)) - (b - begin) * BLOCK
        until(listed + h, 1)
        total = tl.zeros([COLUMNS], tl.float32)
        for j in range(0, tl.minimum(BLOCK, count), AT_ONCE):
            i = j + tl.arange(0, AT_ONCE)
            total += summed(grad, tl.load(lists + b * BLOCK + i, mask=i < count, other=0), i < count, c, W)
        tl.store(partial + (b + tl.zeros([COLUMNS], tl.int64)) * W + c, total, mask=c < W)
        tl.debug_barrier()
        tl.atomic_add(done + h, 1, sem="release")


@triton.jit
def end(counts, often, many, partial, done, out, p, u, BLOCK: tl.constexpr, SOME: tl.constexpr, ENDERS: tl.constexpr, ROWS: tl.constexpr, W: tl.constexpr, SHARE: tl.constexpr, TILES: tl.constexpr):
    """The rows of numbers that stand often, of the sums of their blocks."""
    c = u * SHARE + tl.arange(0, SHARE)
    k = tl.arange(0, ROWS)
    for h in range(p, tl.load(many), ENDERS):
        v = tl.load(often + h)
        begin = blocks_before(counts, often, h, BLOCK, SOME)
        blocks = (tl.load(counts + v) + BLOCK - 1) // BLOCK
        until(done + h, blocks * TILES)
        total = tl.zeros([SHARE], tl.float32)
        for j in range(0, blocks, ROWS):
            total += summed(partial, begin + j + k, j + k < blocks, c, W)
        tl.store(out + v.to(tl.int64) * W + c, total.to(out.dtype.element_ty), mask=c < W)


@triton.jit
def table(grad, indices, counts, notes, many, often, slots, bits, marked, listed, done, lists, partial, out, n, rows, NOTED: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, MORE: tl.constexpr, SOME: tl.constexpr, MARKED: tl.constexpr, WORDS: tl.constexpr, LISTERS: tl.constexpr, ADDERS: tl.constexpr, ENDERS: tl.constexpr, LAST_ROWS: tl.constexpr, SHARE: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, PADDING: tl.constexpr, EARLY: tl.constexpr):
    """All of the table. Programs wait for such alone as have begun before them: a GPU begins them in order."""
    if EARLY:
        gdc_wait()
    TILES: tl.constexpr = (W + COLUMNS - 1) // COLUMNS
    SHARES: tl.constexpr = (W + SHARE - 1) // SHARE
    p = tl.program_id(0)
    if LISTERS:
        parts = (rows + ROWS - 1) // ROWS
        half = parts // 2
        listers = (n + MARKED - 1) // MARKED
        upper = listers + LISTERS
        adders = upper + half
        lower = adders + ADDERS * TILES
        enders = lower + parts - half
        if p < listers:
            mark(indices, counts, slots, many, marked, bits, p, n, rows, NOTED, MARKED, PADDING)
        elif p < upper:
            list_places(counts, often, many, marked, listed, bits, lists, p - listers, n, BLOCK, SOME, MARKED, WORDS, LISTERS)
        elif (p >= adders) & (p < lower):
            q = p - adders
            add_blocks(grad, counts, often, many, listed, lists, partial, done, q // TILES, q % TILES, BLOCK, SOME, ADDERS, AT_ONCE, W, COLUMNS, TILES)
        elif p >= enders:
            q = p - enders
            end(counts, often, many, partial, done, out, q // SHARES, q % SHARES, BLOCK, SOME, ENDERS, LAST_ROWS, W, SHARE, TILES)
        else:
            q = tl.where(p < adders, p - upper, p - lower + half)
            of_rows(grad, counts, notes, out, q * ROWS, rows, NOTED, MORE, W, COLUMNS, ROWS)
    else:
        of_rows(grad, counts, notes, out, p * ROWS, rows, NOTED, MORE, W, COLUMNS, ROWS)
'''
)


def are_worth(n: int, rows: int, size: int) -> bool:
    """Whether so many places are counted rather than put in order, of a table of so many rows of so many bytes."""
    return LEAST_ROW <= size <= MOST_ROW and rows <= ROWS_OF_ONE * n and n <= PLACES_OF_ONE * rows


@record
class Kernels:
    """The three kernels for so many places and such rows, and how many numbers may stand more often than is noted."""

    blank: Callable[..., Any]
    tally: Callable[..., Any]
    table: Callable[..., Any]
    most: int


@lru_cache(1024)
def _kernels(
    n: int, rows: int, width: int, dtypes: tuple[torch.dtype, ...], device: torch.device, padding: int
) -> Kernels:
    """``dtypes``: of what is summed, of the numbers, of the table."""
    columns = min(COLUMNS, 1 << (width - 1).bit_length())
    tiles, warps = -(-width // columns), max(1, columns // WARP)
    most = min(rows, n // (NOTED + 1))
    path, early, i32 = groups.path(SOURCE), int(groups.begins_early(device)), "*i32"
    given, flat, out = (POINTERS[dtype] for dtype in dtypes)
    how = dict(BLANK=BLANK, LETS=early)
    blank = groups.kernel(path, "blank", 4, (i32,), f"(n + {BLANK - 1}) // {BLANK}", **how)
    how = dict(NOTED=NOTED, BLOCK=COUNTED, WORDS=WORDS, PADDING=padding, LETS=early, EARLY=early)
    programs = f"(n + {COUNTED - 1}) // {COUNTED}"
    tally = groups.kernel(path, "tally", max(1, COUNTED // 64), (flat, *(i32,) * 6), programs, **how)
    listers, adders, enders = (LISTERS, ADDERS, ENDERS) if most else (0, 0, 0)
    share = min(SHARE, columns)
    constants = dict(
        NOTED=NOTED, BLOCK=BLOCK, AT_ONCE=AT_ONCE, MORE=MORE, SOME=128 * warps, MARKED=MARKED, WORDS=WORDS, LISTERS=listers,
        ADDERS=adders, ENDERS=enders, LAST_ROWS=LAST_ROWS, SHARE=share, W=width, COLUMNS=columns, ROWS=ROWS, PADDING=padding,
        EARLY=early,
    )  # fmt: skip
    programs = f"(rows + {ROWS - 1}) // {ROWS}"
    if most:
        programs += (
            f" + (n + {MARKED - 1}) // {MARKED} + {listers + adders * tiles + enders * -(-width // share)}"
        )
    every = (given, flat, *(i32,) * 10, "*fp32", out)
    table = groups.kernel(path, "table", warps, every, programs, **constants)
    return Kernels(blank, tally, table, most)


def launched(
    n: int, rows: int, width: int, dtypes: tuple[torch.dtype, ...], device: torch.device, padding: int
) -> Launched:
    """The kernels that ``sums`` launches."""
    found = _kernels(n, rows, width, dtypes, device, padding)
    return [
        (found.blank, (sum(_zeros(rows, found.most)), rows)),
        (found.tally, (n, rows)),
        (found.table, (n, rows)),
    ]


def _zeros(rows: int, most: int) -> list[int]:
    """What begins as zeros: counts, how many numbers stand often, how many of their places are marked, and which of them are listed and done."""
    return [-(-size // 4) * 4 for size in (rows, 1, 1, most, most)]


def sums(given: Tensor, flat: Tensor, rows: int, padding: int, out: Tensor) -> None:
    """Write all of a table; ``given`` and ``flat``: rows and their numbers, dense."""
    (n, width), device = given.shape, given.device
    kernels = _kernels(n, rows, width, (given.dtype, flat.dtype, out.dtype), device, padding)
    most = kernels.most
    blocks = n // BLOCK + most if most else 0

    def room(size: int) -> Tensor:
        return torch.empty(size, device=device, dtype=torch.int32)

    sizes = _zeros(rows, most)
    zeros = room(sum(sizes))
    counts, many, marked, listed, done = zeros.split(sizes)
    notes = room(rows * (NOTED + 2))
    sizes = [-(-size // 4) * 4 for size in (most, rows if most else 0, blocks * BLOCK, most * -(-n // 32))]
    often, slots, lists, bits = room(sum(sizes)).split(sizes)
    partial = torch.empty(blocks * width, device=device, dtype=torch.float32)
    kernels.blank(zeros, zeros.numel(), rows)
    kernels.tally(flat, counts, notes, many, often, slots, bits, n, rows)
    kernels.table(
        given, flat, counts, notes, many, often, slots, bits, marked, listed, done, lists, partial, out, n, rows
    )  # fmt: skip
