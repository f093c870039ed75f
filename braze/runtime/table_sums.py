"""The gradient of an embedding's table on a GPU, where no more is done with it: sums of rows that share a number, and zeros elsewhere.

``braze::table_sums(grad, indices, rows, padding)`` counts how often each number stands, and notes the first places of each that come to be
counted, by one small kernel behind one that clears the counts. The next writes all of the table. The program of a number's place that was
counted first adds up what its noted places have, from the least on, so that sums are always made in one order; other programs clear the rows that no number names.

What stands more often than is noted waits for nobody, and nobody for it: the first programs list its places in order, while the others
begin; behind the sums of places others sum blocks of these lists; the last add up the blocks, when the rest of the table has been cleared.
"""

from __future__ import annotations

import torch

from braze.runtime import groups
from braze.runtime.groups import POINTERS

Tensor = torch.Tensor

#: places that are noted of a number
NOTED = 32
#: places of a block of what stands more often; rows that are read at once of one, and by the program of a number
BLOCK, AT_ONCE, MORE = 32, 4, 4
#: places that a program counts
COUNTED = 256
#: programs that share the list of one number; of these, of blocks' and of their sums' programs so many
PARTS, LISTERS, ADDERS, ENDERS = 8, 256, 256, 64
#: columns of a warp that sums a row
WARP = 256
#: columns that a program has at once, at most; rows of a table that a program clears; numbers that one sets to zero
COLUMNS, ROWS, BLANK = 1024, 4, 1024
#: registers of a thread, at most
HELD = 0

SOURCE = (
    groups.SOURCE
    + '''

@triton.jit
def blank(counts, n, rows, BLANK: tl.constexpr):
    """Zeros in so many counts."""
    i = tl.program_id(0) * BLANK + tl.arange(0, BLANK)
    tl.store(counts + i, tl.zeros([BLANK], tl.int32), mask=i < n)


@triton.jit
def tally(indices, counts, notes, leads, often, many, n, rows, NOTED: tl.constexpr, BLOCK: tl.constexpr, PADDING: tl.constexpr, EARLY: tl.constexpr):
    """How often each number stands; the first of its places that are counted; the number itself at the very first of these; what stands more often than is noted."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = numbers(indices, i, n, rows, PADDING)
    known = (i < n) & (number < rows)
    if EARLY:
        gdc_wait()
    before = tl.atomic_add(counts + number, 1, mask=known, sem="relaxed")
    tl.store(notes + number.to(tl.int64) * NOTED + before, i, mask=known & (before < NOTED))
    tl.store(leads + i, tl.where(known & (before == 0), number, -1), mask=i < n)
    past = known & (before == NOTED)
    at = tl.atomic_add(many + tl.zeros([BLOCK], tl.int32), 1, mask=past, sem="relaxed")
    tl.store(often + at, number, mask=past)


@triton.jit
def clear(counts, out, v, rows, W: tl.constexpr, COLUMNS: tl.constexpr):
    """Zeros in those of some rows that no number names."""
    empty = ((v < rows) & (tl.load(counts + v, mask=v < rows, other=1) == 0))[:, None]
    for first in tl.static_range(0, W, COLUMNS):
        c = first + tl.arange(0, COLUMNS)[None, :]
        zero = tl.zeros([v.shape[0], COLUMNS], out.dtype.element_ty)
        tl.store(out + v[:, None].to(tl.int64) * W + c, zero, mask=empty & (c < W))


@triton.jit
def summed(grad, places, taken, c, W: tl.constexpr):
    """The sum of the rows at those of some places that are taken."""
    where = places.to(tl.int64)[:, None] * W + c[None, :]
    row = tl.load(grad + where, mask=taken[:, None] & (c < W)[None, :], other=0.0, eviction_policy="evict_first")
    return tl.sum(row.to(tl.float32), 0)


@triton.jit
def write(out, v, total, c, W: tl.constexpr):
    """A number's row of the table."""
    tl.store(out + v.to(tl.int64) * W + c, total.to(out.dtype.element_ty), mask=c < W, eviction_policy="evict_first")


@triton.jit
def of_place(grad, counts, notes, leads, out, i, t, NOTED: tl.constexpr, MORE: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr):
    """The row of the number that was counted first at a place, if it stands no more often than is noted."""
    v = tl.load(leads + i)
    if v >= 0:
        c = t * COLUMNS + tl.arange(0, COLUMNS)
        # its own row is on its way while the others are asked for
        total = tl.load(grad + i.to(tl.int64) * W + c, mask=c < W, other=0.0, eviction_policy="evict_first").to(tl.float32)
        many = tl.load(counts + v)
        noted = notes + v.to(tl.int64) * NOTED
        if many <= 2:  # of two the order does not matter
            other = tl.load(noted + 1).to(tl.int64)  # of one it is nothing that was written
            total += tl.load(grad + other * W + c, mask=c < tl.where(many == 2, W, 0), other=0.0, eviction_policy="evict_first").to(tl.float32)
            write(out, v, total, c, W)
        elif many <= NOTED:
            k = tl.arange(0, NOTED)
            place = tl.load(noted + k, mask=k < many, other=2147483647)
            rank = tl.sum((place[None, :] < place[:, None]).to(tl.int32), 1)
            total = tl.zeros([COLUMNS], tl.float32)
            for j in range(0, many, MORE):
                m = j + tl.arange(0, MORE)
                at = tl.sum(tl.where(rank[:, None] == m[None, :], place[:, None], 0), 0)
                total += summed(grad, at, m < many, c, W)
            write(out, v, total, c, W)


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
def list_places(indices, counts, often, many, listed, lists, p, n, BLOCK: tl.constexpr, SOME: tl.constexpr, PARTS: tl.constexpr, LISTERS: tl.constexpr):
    """The places of numbers that stand often, in order: each program those of a part of all places."""
    jobs = tl.load(many) * PARTS
    k = tl.arange(0, SOME)
    for job in range(p, jobs, LISTERS):
        h = job // PARTS
        v = tl.load(often + h)
        at = blocks_before(counts, often, h, BLOCK, SOME) * BLOCK
        size = (n + PARTS * SOME - 1) // (PARTS * SOME) * SOME
        low = tl.minimum(n, job % PARTS * size)
        high = tl.minimum(n, low + size)
        before = tl.zeros([SOME], tl.int32)
        for first in range(0, low, SOME):
            before += (tl.load(indices + first + k, mask=first + k < low, other=-1) == v).to(tl.int32)
        at += tl.sum(before, 0)
        for first in range(low, high, SOME):
            same = (tl.load(indices + first + k, mask=first + k < high, other=-1) == v).to(tl.int32)
            tl.store(lists + at + tl.cumsum(same, 0) - same, first + k, mask=same == 1)
            at += tl.sum(same, 0)
        tl.debug_barrier()
        tl.atomic_add(listed + h, 1, sem="release")


@triton.jit
def add_blocks(grad, counts, often, many, listed, lists, partial, done, p, t, BLOCK: tl.constexpr, SOME: tl.constexpr, PARTS: tl.constexpr, ADDERS: tl.constexpr, AT_ONCE: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr):
    """The sums of blocks of those places."""
    hot = tl.load(many)
    c = t * COLUMNS + tl.arange(0, COLUMNS)
    blocks = blocks_before(counts, often, hot, BLOCK, SOME)
    b = p
    while b < blocks:
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
        until(listed + h, PARTS)
        total = tl.zeros([COLUMNS], tl.float32)
        for j in range(0, tl.minimum(BLOCK, count), AT_ONCE):
            i = j + tl.arange(0, AT_ONCE)
            total += summed(grad, tl.load(lists + b * BLOCK + i, mask=i < count, other=0), i < count, c, W)
        tl.store(partial + b.to(tl.int64) * W + c, total, mask=c < W)
        tl.debug_barrier()
        tl.atomic_add(done + h * TILES + t, 1, sem="release")
        b += ADDERS


@triton.jit
def end(counts, often, many, partial, done, out, p, u, BLOCK: tl.constexpr, SOME: tl.constexpr, ENDERS: tl.constexpr, ROWS: tl.constexpr, W: tl.constexpr, SHARE: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr):
    """The rows of numbers that stand often, of the sums of their blocks."""
    c = u * SHARE + tl.arange(0, SHARE)
    k = tl.arange(0, ROWS)
    for h in range(p, tl.load(many), ENDERS):
        v = tl.load(often + h)
        begin = blocks_before(counts, often, h, BLOCK, SOME)
        blocks = (tl.load(counts + v) + BLOCK - 1) // BLOCK
        until(done + h * TILES + u * SHARE // COLUMNS, blocks)
        total = tl.zeros([SHARE], tl.float32)
        for j in range(0, blocks, ROWS):
            total += summed(partial, begin + j + k, j + k < blocks, c, W)
        write(out, v, total, c, W)


@triton.jit
def sums(grad, indices, counts, notes, leads, often, many, listed, done, lists, partial, out, n, rows, NOTED: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, MORE: tl.constexpr, SOME: tl.constexpr, PARTS: tl.constexpr, LISTERS: tl.constexpr, ADDERS: tl.constexpr, ENDERS: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr, EARLY: tl.constexpr):
    """All of the table. Programs wait for such alone as have begun before them: a GPU begins them in order."""
    if EARLY:
        gdc_wait()
    TILES: tl.constexpr = (W + COLUMNS - 1) // COLUMNS
    SHARE: tl.constexpr = (COLUMNS + 3) // 4
    p = tl.program_id(0)
    adders = LISTERS + n * TILES
    clearers = adders + ADDERS * TILES
    enders = clearers + (rows + ROWS - 1) // ROWS
    if p < LISTERS:
        if LISTERS:
            list_places(indices, counts, often, many, listed, lists, p, n, BLOCK, SOME, PARTS, LISTERS)
    elif p < adders:
        q = p - LISTERS
        of_place(grad, counts, notes, leads, out, q // TILES, q % TILES, NOTED, MORE, W, COLUMNS)
    elif p < clearers:
        if ADDERS:
            q = p - adders
            add_blocks(grad, counts, often, many, listed, lists, partial, done, q // TILES, q % TILES, BLOCK, SOME, PARTS, ADDERS, AT_ONCE, W, COLUMNS, TILES)
    elif p < enders:
        clear(counts, out, (p - clearers) * ROWS + tl.arange(0, ROWS), rows, W, COLUMNS)
    else:
        if ENDERS:
            q = p - enders
            end(counts, often, many, partial, done, out, q // (4 * TILES), q % (4 * TILES), BLOCK, SOME, ENDERS, 4 * AT_ONCE, W, SHARE, COLUMNS, TILES)
'''
)

_library = torch.library.Library("braze", "FRAGMENT")
_library.define("table_sums(Tensor grad, Tensor indices, int rows, int padding) -> Tensor")
_library.define(
    "table_sums.out(Tensor grad, Tensor indices, int rows, int padding, *, Tensor(a!) out) -> Tensor(a!)"
)


def by_kernels(
    grad: Tensor, indices: Tensor, rows: int, padding: int, *, out: Tensor | None = None
) -> Tensor:
    """The sums, of any number of places; in ``out``, dense by rows, where that is given."""
    width, device = grad.shape[-1], grad.device
    given, flat = grad.reshape(-1, width).contiguous(), indices.reshape(-1).contiguous()
    n = flat.numel()
    if out is None:
        out = torch.empty((rows, width), device=device, dtype=grad.dtype)
    if 0 in (n, rows, width):
        return out.zero_()
    columns = min(COLUMNS, 1 << (width - 1).bit_length())
    tiles, warps = -(-width // columns), max(1, columns // WARP)
    most = min(rows, n // (NOTED + 1))  # so many numbers stand more often than is noted
    blocks = (n // BLOCK + most) if most else 0
    # each begins where 16 bytes do
    sizes = [-(-size // 4) * 4 for size in (rows, 1, most, most * tiles)]
    zeros = torch.empty(sum(sizes), device=device, dtype=torch.int32)
    counts, many, listed, done = zeros.split(sizes)
    notes = torch.empty((rows, NOTED), device=device, dtype=torch.int32)
    sizes = [-(-size // 4) * 4 for size in (n, most, blocks * BLOCK)]
    leads, often, lists = torch.empty(sum(sizes), device=device, dtype=torch.int32).split(sizes)
    partial = torch.empty((blocks, width), device=device, dtype=torch.float32)
    path, early, i32 = groups.path(SOURCE), int(groups.begins_early(device)), "*i32"
    programs = f"(n + {BLANK - 1}) // {BLANK}"
    groups.kernel(path, "blank", 4, (i32,), programs, BLANK=BLANK)(zeros, zeros.numel(), rows)
    how = dict(NOTED=NOTED, BLOCK=COUNTED, PADDING=padding, EARLY=early)
    programs = f"(n + {COUNTED - 1}) // {COUNTED}"
    groups.kernel(path, "tally", max(1, COUNTED // 64), (POINTERS[flat.dtype], *(i32,) * 5), programs, **how)(
        flat, counts, notes, leads, often, many, n, rows
    )
    often_at = [LISTERS, ADDERS, ENDERS] if most else [0, 0, 0]
    constants = dict(
        NOTED=NOTED, BLOCK=BLOCK, AT_ONCE=AT_ONCE, MORE=MORE, SOME=128 * warps, PARTS=PARTS, LISTERS=often_at[0], ADDERS=often_at[1],
        ENDERS=often_at[2], W=width, COLUMNS=columns, ROWS=ROWS, HELD=HELD, EARLY=early,
    )  # fmt: skip
    every = (POINTERS[given.dtype], POINTERS[flat.dtype], *(i32,) * 8, "*fp32", POINTERS[out.dtype])
    programs = (
        f"{often_at[0]} + (n + {often_at[1]} + {often_at[2]} * 4) * {tiles} + (rows + {ROWS - 1}) // {ROWS}"
    )
    groups.kernel(path, "sums", warps, every, programs, **constants)(
        given, flat, counts, notes, leads, often, many, listed, done, lists, partial, out, n, rows
    )
    return out


def by_adding(grad: Tensor, indices: Tensor, rows: int, padding: int, *, out: Tensor | None = None) -> Tensor:
    """The same by ATen."""
    flat = indices.reshape(-1).long()
    kept = (flat >= 0) & (flat < rows) & (flat != padding)
    given = grad.reshape(-1, grad.shape[-1])[kept].float()
    made = given.new_zeros((rows, grad.shape[-1])).index_add_(0, flat[kept], given).to(grad.dtype)
    return made if out is None else out.copy_(made)


for _name in ("table_sums", "table_sums.out"):
    _library.impl(_name, by_adding, "CPU")
    _library.impl(_name, by_kernels, "CUDA")
TABLE_SUMS, TABLE_SUMS_OUT = torch.ops.braze.table_sums.default, torch.ops.braze.table_sums.out
