"""The gradient of an embedding's table on a GPU, where no more is done with it: sums of rows that share a number, and zeros elsewhere.

``braze::table_sums(grad, indices, rows, padding)`` counts the numbers where that is quicker (``counted_sums.py``), else it orders them
(``groups.py``). Then the kernel at the end writes all of the table: the program of a number's first place adds up what the number's places
have, always in the same order, and programs behind these clear the rows that no number names. Blocks of places that share one number are
summed by the first programs, and count as one row each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from braze.runtime.gpu import counted_sums, groups
from braze.runtime.gpu.groups import POINTERS
from braze.runtime.operators.operators import runs_on_gpu
from braze.runtime.triton.triton_load import LAUNCHED, Launched
from braze.support.record import record

Tensor = torch.Tensor

#: places of a block that is summed by itself; rows that are read at once of one, and by the program of a number
BLOCK, AT_ONCE, FIRST, MORE = 32, 4, 2, 4
#: columns of a warp that sums a row
WARP = 256
#: columns that a program has at once, at most; rows of a table that a program clears
COLUMNS, ROWS = 1024, 4
#: places that are few; of these: rows that are read at once, columns and warps of a program, and rows of a table that one clears
FEW, FEW_AT_ONCE, FEW_COLUMNS, FEW_WARPS, FEW_ROWS = 512, 64, 128, 4, 16

SOURCE = (
    counted_sums.BEGINNING
    + '''

@triton.jit
def clear(indices, who, out, v, n, rows, W: tl.constexpr, COLUMNS: tl.constexpr, PADDING: tl.constexpr):
    """Zeros in those of some rows that no number names. What ``who`` holds of these was never written: a place where
    another number stands, or none at all."""
    at = tl.load(who + v, mask=v < rows, other=0)
    known = (v < rows) & (at >= 0) & (at < n)
    named = known & (tl.load(indices + at, mask=known, other=0) == v) & (v != PADDING)
    empty = ((v < rows) & (named == 0))[:, None]
    for first in tl.static_range(0, W, COLUMNS):
        c = first + tl.arange(0, COLUMNS)[None, :]
        zero = tl.zeros([v.shape[0], COLUMNS], out.dtype.element_ty)
        tl.store(out + v[:, None].to(tl.int64) * W + c, zero, mask=empty & (c < W))


@triton.jit
def few(grad, indices, out, n, rows, N: tl.constexpr, AT_ONCE: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, PADDING: tl.constexpr):
    """The row of a number, by the program of the first place where it stands; then some rows cleared."""
    TILES: tl.constexpr = (W + COLUMNS - 1) // COLUMNS
    p = tl.program_id(0)
    q = p // TILES
    k = tl.arange(0, N)
    number = tl.where(k < n, numbers(indices, k, n, rows, PADDING), rows)
    if q < n:
        v = numbers(indices, q, n, rows, PADDING)
        first = tl.min(tl.where(number == v, k, N), 0)
        if (v < rows) & (first == q):
            last = tl.max(tl.where(number == v, k, 0), 0)
            c = (p % TILES) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
            total = tl.zeros([AT_ONCE, COLUMNS], tl.float32)
            for j in range(q, last + 1, AT_ONCE):
                i = j + tl.arange(0, AT_ONCE)
                alike = ((i < n) & (numbers(indices, i, n, rows, PADDING) == v))[:, None]
                total += tl.load(grad + i[:, None].to(tl.int64) * W + c, mask=alike & (c < W), other=0.0).to(tl.float32)
            inside = (p % TILES) * COLUMNS + tl.arange(0, COLUMNS)
            tl.store(out + v.to(tl.int64) * W + inside, tl.sum(total, 0).to(out.dtype.element_ty), mask=inside < W)
    else:
        u = (p - n * TILES) * ROWS + tl.arange(0, ROWS)
        named = tl.sum((u[:, None] == number[None, :]).to(tl.int32), 1)
        for left in tl.static_range(0, W, COLUMNS):
            c = left + tl.arange(0, COLUMNS)[None, :]
            zero = tl.zeros([ROWS, COLUMNS], out.dtype.element_ty)
            tl.store(out + u[:, None].to(tl.int64) * W + c, zero, mask=((u < rows) & (named == 0))[:, None] & (c < W))


@triton.jit
def of_block(grad, found, order, partial, flags, b, t, n, rows, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr):
    """The sum of the first places of a block, where their number is that of the place before, too."""
    first = b * BLOCK
    v = tl.load(found + first)
    before = tl.load(found + first - 1, mask=b > 0, other=-1)
    if (v < rows) & (v == before):
        k = tl.arange(0, BLOCK)
        many = tl.sum((tl.load(found + first + k, mask=first + k < n, other=-1) == v).to(tl.int32), 0)
        c = t * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros([COLUMNS], tl.float32)
        for j in range(0, many, AT_ONCE):
            i = j + tl.arange(0, AT_ONCE)
            total += summed(grad, tl.load(order + first + i, mask=i < many, other=0), i < many, c, W)
        tl.store(partial + b.to(tl.int64) * W + c, total, mask=c < W)
        tl.debug_barrier()
        tl.atomic_xchg(flags + b * TILES + t, 1, sem="release")


@triton.jit
def sums(grad, found, order, partial, indices, who, flags, out, n, rows, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, FIRST: tl.constexpr, MORE: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, PADDING: tl.constexpr, EARLY: tl.constexpr):
    """The sums of blocks; then the row of a number, by the program of the first place where it stands; then some rows cleared, where ``ROWS`` are at
    once. Programs wait for such alone as have begun before them: a GPU begins them in order."""
    if EARLY:
        gdc_wait()
    TILES: tl.constexpr = (W + COLUMNS - 1) // COLUMNS
    ahead = (n + BLOCK - 1) // BLOCK
    p = tl.program_id(0)
    q = p // TILES - ahead
    t = p % TILES
    if q < 0:
        of_block(grad, found, order, partial, flags, p // TILES, t, n, rows, BLOCK, AT_ONCE, W, COLUMNS, TILES)
    elif q < n:
        c = t * COLUMNS + tl.arange(0, COLUMNS)
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
                    flag = flags + b * TILES + t
                    ready = 0
                    while ready == 0:
                        ready = tl.min(tl.load(flag + k * TILES, mask=k < held, other=1, volatile=True), 0)
                    tl.atomic_add(flag, 0, sem="acquire")
                    tl.debug_barrier()
                    for j in range(0, held, MORE):
                        total += summed(partial, b + j + m, j + m < held, c, W)
                    b += held
                    more = held == BLOCK
            tl.store(out + v.to(tl.int64) * W + c, total.to(out.dtype.element_ty), mask=c < W, eviction_policy="evict_first")
    elif ROWS:
        clear(indices, who, out, (p - (ahead + n) * TILES) * ROWS + tl.arange(0, ROWS), n, rows, W, COLUMNS, PADDING)
'''
)

_library = torch.library.Library("braze", "FRAGMENT")
_library.define("table_sums(Tensor grad, Tensor indices, int rows, int padding) -> Tensor")
_library.define(
    "table_sums.out(Tensor grad, Tensor indices, int rows, int padding, *, Tensor(a!) out) -> Tensor(a!)"
)


@record
class Last:
    """The kernel that writes the table, tiles of a row, and blocks of places."""

    kernel: Callable[..., Any]
    tiles: int
    ahead: int


@lru_cache(1024)
def _last(
    n: int, width: int, dtypes: tuple[torch.dtype, ...], device: torch.device, counted: bool, padding: int
) -> Last:
    """Of so many places and rows so wide; ``dtypes``: of what is summed, of the numbers, of the table."""
    columns = min(COLUMNS, 1 << (width - 1).bit_length())
    tiles, ahead = -(-width // columns), -(-n // BLOCK)
    # what is ahead of this is a library's where numbers were sorted
    constants = dict(
        BLOCK=BLOCK, AT_ONCE=AT_ONCE, FIRST=FIRST, MORE=MORE, W=width, COLUMNS=columns,
        ROWS=ROWS if counted else 0, PADDING=padding, EARLY=int(counted and groups.begins_early(device)),
    )  # fmt: skip
    given, flat, out = (POINTERS[dtype] for dtype in dtypes)
    every = (given, "*i32", "*i32", "*fp32", flat, "*i32", "*i32", out)
    programs = f"(n + (n + {BLOCK - 1}) // {BLOCK}) * {tiles}" + f" + (rows + {ROWS - 1}) // {ROWS}" * counted
    found = groups.kernel(groups.path(SOURCE), "sums", max(1, columns // WARP), every, programs, **constants)
    return Last(found, tiles, ahead)


@lru_cache(1024)
def _few(n: int, width: int, dtypes: tuple[torch.dtype, ...], padding: int) -> Callable[..., Any]:
    """The kernel that writes the table, of few places; ``dtypes``: of what is summed, of the numbers, of the table."""
    columns = min(FEW_COLUMNS, 1 << (width - 1).bit_length())
    every = 1 << max(5, (n - 1).bit_length())
    constants = dict(
        N=every, AT_ONCE=min(FEW_AT_ONCE, every), W=width, COLUMNS=columns, ROWS=FEW_ROWS, PADDING=padding
    )
    programs = f"n * {-(-width // columns)} + (rows + {FEW_ROWS - 1}) // {FEW_ROWS}"
    taken = tuple(POINTERS[dtype] for dtype in dtypes)
    return groups.kernel(groups.path(SOURCE), "few", FEW_WARPS, taken, programs, **constants)


def by_kernels(
    grad: Tensor, indices: Tensor, rows: int, padding: int, *, out: Tensor | None = None
) -> Tensor:
    """The sums, of any number of places; in ``out``, dense by rows, where that is given."""
    width, device = grad.shape[-1], grad.device
    given, flat = grad.reshape(-1, width).contiguous(), indices.reshape(-1).contiguous()
    n, counted = flat.numel(), groups.are_counted(flat, rows)
    if out is None:
        out = torch.empty((rows, width), device=device, dtype=grad.dtype)
    if not counted:
        out.zero_()
    if 0 in (n, rows, width):
        return out
    if counted and n <= FEW:
        _few(n, width, (given.dtype, flat.dtype, out.dtype), padding)(given, flat, out, n, rows)
        return out
    if counted and counted_sums.are_worth(n, rows, width * out.element_size()):
        counted_sums.sums(given, flat, rows, padding, out)
        return out
    last = _last(n, width, (given.dtype, flat.dtype, out.dtype), device, counted, padding)
    if counted:
        who = torch.empty(rows, device=device, dtype=torch.int32)
        flags = groups.cleared(n, last.ahead * last.tiles, device)
        found, order = groups.ordered(flat, rows, padding, who, flags)
    else:
        found, order, who = groups.by_sort(torch.where(flat == padding, rows, flat), rows)
        flags = torch.zeros(last.ahead * last.tiles, device=device, dtype=torch.int32)
    partial = torch.empty((last.ahead, width), device=device, dtype=torch.float32)
    last.kernel(given, found, order, partial, flat, who, flags, out, n, rows)
    return out


def worked_out(grad: Tensor, indices: Tensor, rows: int, padding: int, *, out: Tensor) -> Callable[..., Any]:
    """``by_kernels`` of what is laid out as these are. Of few places it is one launch, of which Python would take the larger part of the time."""
    n, width = indices.numel(), grad.shape[-1]
    dense = grad.is_contiguous() and indices.is_contiguous()
    if not dense or 0 in (n, width) or n > FEW or not groups.are_counted(indices, rows):
        return by_kernels
    kernel = _few(n, width, (grad.dtype, indices.dtype, out.dtype), padding)
    return lambda grad, indices, rows, padding, *, out: kernel(grad, indices, out, n, rows)


def _launched(device: torch.device, grad: Tensor, indices: Tensor, rows: int, padding: int) -> Launched:
    """The kernels that ``by_kernels`` launches."""
    width, n = grad.shape[-1], indices.numel()
    dtypes, counted = (grad.dtype, indices.dtype, grad.dtype), groups.are_counted(indices, rows)
    if 0 in (n, rows, width):
        return []
    if counted and n <= FEW:
        return [(_few(n, width, dtypes, padding), (n, rows))]
    if counted and counted_sums.are_worth(n, rows, width * grad.element_size()):
        return counted_sums.launched(n, rows, width, dtypes, device, padding)
    last = _last(n, width, dtypes, device, counted, padding)
    flags = last.ahead * last.tiles
    sorting = groups.launched_in_order(n, rows, indices.dtype, device, padding, flags) if counted else []
    return [*sorting, (last.kernel, (n, rows))]


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
runs_on_gpu("braze.table_sums.out", by_kernels, worked_out)
LAUNCHED["braze.table_sums.default"] = _launched
TABLE_SUMS, TABLE_SUMS_OUT = torch.ops.braze.table_sums.default, torch.ops.braze.table_sums.out
