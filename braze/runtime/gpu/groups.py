"""Places by the number that stands there: a stable counting sort of few whole numbers, in a few small kernels on a GPU.

``braze::groups(indices, rows)`` gives the numbers in order, their places (equal ones in their own order), and where each number's
begin; what is no row's comes after all, as the number ``rows``. ATen's sort of 32,768 numbers takes 39 us on an H200, most of it between its kernels and in
their beginnings, and ``searchsorted`` 9 more. Here a pass takes a byte: each program counts the bytes of a block of places, and the next kernel's
programs add up what the blocks before theirs have, so that no kernel waits for another within itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch

from braze.runtime.libraries.cache import source_file
from braze.runtime.triton import triton_load
from braze.runtime.triton.triton_build import Job
from braze.support.record import record

Tensor = torch.Tensor

#: places that a program sorts, of many and of few, and at most in all: each program reads the counts of all blocks
BLOCK, SHORT, MOST = 256, 128, 1 << 16
#: places of a warp that sorts
WARP = 32
#: counts of blocks that a program reads at once, and numbers of which one finds the beginnings
SOME, BEGIN = 128, 256
#: as Triton calls pointers to them
POINTERS = {
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
}

SOURCE = f'''
"""A stable counting sort by bytes."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

BEGIN = tl.constexpr({BEGIN})


@triton.jit
def numbers(indices, i, n, rows, PADDING: tl.constexpr):
    # what is no row's comes after all
    v = tl.load(indices + i, mask=i < n, other=0)
    if PADDING >= 0:
        v = tl.where(v != PADDING, v, rows)
    return tl.where((v >= 0) & (v < rows), v, rows).to(tl.int32)


@triton.jit
def count(indices, counts, who, flags, n, rows, PASSES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PADDING: tl.constexpr, WHO: tl.constexpr, FLAGS: tl.constexpr):
    """How often each byte stands in a block, and nothing yet for later passes; ``who``: one place of each number that stands anywhere. ``FLAGS``
    flags for each block are set to zero."""
    b = tl.program_id(0)
    i = b * BLOCK + tl.arange(0, BLOCK)
    byte = tl.arange(0, 256)
    number = numbers(indices, i, n, rows, PADDING)
    if WHO:
        tl.store(who + number, i, mask=(i < n) & (number < rows))
    digit = tl.where(i < n, number & 255, 0)
    past = BLOCK - tl.minimum(tl.maximum(n - b * BLOCK, 0), BLOCK)
    found = tl.histogram(digit, 256)
    tl.store(counts + byte * BLOCKS + b, tl.where(byte == 0, found - past, found))
    for later in tl.static_range(1, PASSES):
        tl.store(counts + (later * 256 + byte) * BLOCKS + b, tl.zeros([256], tl.int32))
    for first in tl.static_range(0, FLAGS, 256):
        tl.store(flags + b * FLAGS + first + byte, tl.zeros([256], tl.int32), mask=first + byte < FLAGS)


@triton.jit
def place(indices, order, counts, found, placed, n, rows, PASS: tl.constexpr, PASSES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, SOME: tl.constexpr, PADDING: tl.constexpr, EARLY: tl.constexpr):
    """The places of a block by one byte, after all that have a lesser one, or stand before it and have the same."""
    if EARLY:
        gdc_wait()
    b = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    i = b * BLOCK + k
    inside = i < n
    if PASS == 0:
        number = numbers(indices, i, n, rows, PADDING)
        at = i
    else:
        number = tl.load(indices + i, mask=inside, other=0)
        at = tl.load(order + i, mask=inside, other=0)
    digit = tl.where(inside, (number >> (8 * PASS)) & 255, 255)
    before = tl.zeros([BLOCK], tl.int32)
    for first in tl.static_range(0, BLOCK, 32):  # what all turns read is asked for at once
        j = first + tl.arange(0, 32)
        if PASS == 0:
            other = numbers(indices, b * BLOCK + j, n, rows, PADDING)
        else:
            other = tl.load(indices + b * BLOCK + j, mask=b * BLOCK + j < n, other=0)
        same = digit[:, None] == ((other >> (8 * PASS)) & 255)[None, :]
        before += tl.sum((same & (j[None, :] < k[:, None])).to(tl.int32), 1)
    byte = tl.arange(0, 256)
    total = tl.zeros([256], tl.int32)
    earlier = tl.zeros([256], tl.int32)
    for some in range(0, BLOCKS, SOME):
        blocks = (some + tl.arange(0, SOME))[None, :]
        held = tl.load(counts + (PASS * 256 + byte[:, None]) * BLOCKS + blocks)
        total += tl.sum(held, 1)
        earlier += tl.sum(tl.where(blocks < b, held, 0), 1)
    begin = tl.cumsum(total, 0) - total + earlier
    to = before + tl.gather(begin, digit, 0)
    tl.store(found + to, number, mask=inside)
    tl.store(placed + to, at, mask=inside)
    if PASS + 1 < PASSES:
        after = (number >> (8 * PASS + 8)) & 255
        tl.atomic_add(counts + ((PASS + 1) * 256 + after) * BLOCKS + to // BLOCK, 1, mask=inside, sem="relaxed")


@triton.jit
def begin(found, starts, n, rows, STEPS: tl.constexpr, EARLY: tl.constexpr):
    """The first place of each number, or of one above it."""
    if EARLY:
        gdc_wait()
    v = tl.program_id(0) * BEGIN + tl.arange(0, BEGIN)
    low = tl.zeros([BEGIN], tl.int32)
    high = low + n
    for _ in tl.static_range(STEPS):  # a quarter of what is left each, by three loads at once
        size = high - low
        one, two, three = low + size // 4, low + size // 2, low + 3 * size // 4
        some = size > 0
        past_one = tl.load(found + one, mask=some, other=2147483647) < v
        past_two = tl.load(found + two, mask=some, other=2147483647) < v
        past_three = tl.load(found + three, mask=some, other=2147483647) < v
        low = tl.where(past_three, three + 1, tl.where(past_two, two + 1, tl.where(past_one, one + 1, low)))
        high = tl.where(past_three, high, tl.where(past_two, three, tl.where(past_one, two, one)))
    tl.store(starts + v, low, mask=v <= rows)
'''

_library = torch.library.Library("braze", "FRAGMENT")
_library.define("groups(Tensor indices, int rows) -> (Tensor, Tensor, Tensor)")


def by_sort(indices: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same by ATen's sort."""
    flat = indices.reshape(-1)
    known = torch.where((flat >= 0) & (flat < rows), flat, rows)
    # a radix sort takes a pass for each byte
    narrow = rows < 1 << 16
    found, order = (known - (1 << 15)).short().sort(stable=True) if narrow else known.int().sort(stable=True)
    found = found.int() + (1 << 15) if narrow else found
    every = torch.arange(rows + 1, device=flat.device, dtype=torch.int32)
    return found, order.int(), torch.searchsorted(found, every, out_int32=True)


def by_counting(indices: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same by kernels: one to begin with, one for each byte of the largest number, one for where numbers begin."""
    flat = indices.reshape(-1).contiguous()
    found, order = ordered(flat, rows)
    starts = torch.empty(rows + 1, device=flat.device, dtype=torch.int32)
    _begin(flat.numel(), flat.device)(found, starts, flat.numel(), rows)
    return found, order, starts


def _begin(n: int, device: torch.device) -> Callable[..., Any]:
    """The kernel that finds where numbers begin."""
    constants = dict(STEPS=n.bit_length() // 2 + 1, EARLY=int(begins_early(device)))
    return kernel(path(), "begin", 4, ("*i32",) * 2, f"(rows + {BEGIN}) // {BEGIN}", **constants)


@record
class Sorting:
    """What sorts so many numbers: the kernel that counts, one for each byte, and how many counts there are."""

    count: Callable[..., Any]
    place: tuple[Callable[..., Any], ...]
    counts: int


@lru_cache(1024)
def _sorting(
    n: int, rows: int, dtype: torch.dtype, device: torch.device, padding: int, named: bool, flags: int
) -> Sorting:
    """To work this out takes the host longer than to launch it."""
    passes, early = passes_of(rows), int(begins_early(device))
    block, blocks = blocks_of(n)
    sizes, taken = dict(PASSES=passes, BLOCK=block, BLOCKS=blocks), POINTERS[dtype]
    how = dict(**sizes, PADDING=padding, WHO=int(named), FLAGS=flags // blocks)
    count = kernel(path(), "count", 4, (taken, *("*i32",) * 3), str(blocks), **how)
    place = []
    for number in range(passes):
        skipped = -1 if number else padding  # only the first sees what was given
        how = dict(PASS=number, **sizes, SOME=min(blocks, SOME), PADDING=skipped, EARLY=early)
        dtypes = ("*i32" if number else taken, *("*i32",) * 4)
        place.append(kernel(path(), "place", max(1, block // WARP), dtypes, str(blocks), **how))
    return Sorting(count, tuple(place), passes * 256 * blocks)


def ordered(
    flat: Tensor, rows: int, padding: int = -1, who: Tensor | None = None, flags: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The numbers in order, and their places; the padding is no row's. In ``who``, if given: a place of each row's number that stands anywhere; in
    ``flags`` (of ``cleared``), if given: zeros."""
    n, device = flat.numel(), flat.device
    zeros = 0 if flags is None else flags.numel()
    sorting = _sorting(n, rows, flat.dtype, device, padding, who is not None, zeros)
    counts = torch.empty(sorting.counts, device=device, dtype=torch.int32)
    # what is ahead of these may be a library's
    sorting.count(flat, counts, counts if who is None else who, counts if flags is None else flags, n, rows)
    given, places = flat, counts  # the first pass reads no places
    rooms = [[torch.empty(n, device=device, dtype=torch.int32) for _ in range(2)] for _ in sorting.place[:2]]
    for number, place in enumerate(sorting.place):
        made, placed = rooms[number % 2]
        place(given, places, counts, made, placed, n, rows)
        given, places = made, placed
    return given, places


def launched_in_order(
    n: int, rows: int, dtype: torch.dtype, device: torch.device, padding: int, flags: int | None
) -> triton_load.Launched:
    """The kernels that ``ordered`` launches; ``flags``: how many, if any are given, beside places of numbers."""
    named, zeros = flags is not None, 0 if flags is None else flags_of(n, flags)
    sorting = _sorting(n, rows, dtype, device, padding, named, zeros)
    return [(found, (n, rows)) for found in (sorting.count, *sorting.place)]


def _launched(device: torch.device, indices: Tensor, rows: int) -> triton_load.Launched:
    if not are_counted(indices, rows):
        return []
    n = indices.numel()
    return [*launched_in_order(n, rows, indices.dtype, device, -1, None), (_begin(n, device), (n, rows))]


def flags_of(n: int, flags: int) -> int:
    """Room for so many flags, in equal parts for the programs that count so many places."""
    blocks = blocks_of(n)[1]
    return -(-flags // blocks) * blocks


def blocks_of(n: int) -> tuple[int, int]:
    """(places of a block, blocks) in which so many places are counted."""
    block = SHORT if n <= SHORT * SOME else BLOCK
    return block, max(1, 1 << (-(-n // block) - 1).bit_length())


def cleared(n: int, flags: int, device: torch.device) -> Tensor:
    """Room for so many flags, at least, which ``ordered`` sets to zero when it counts so many places."""
    return torch.empty(flags_of(n, flags), device=device, dtype=torch.int32)


def passes_of(rows: int) -> int:
    """How many bytes the numbers of a table have."""
    return (rows.bit_length() + 7) // 8


def _groups(indices: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    return (by_counting if are_counted(indices, rows) else by_sort)(indices, rows)


def are_counted(indices: Tensor, rows: int) -> bool:
    """Whether numbers are few enough that each block's programs count those of all."""
    return 0 < indices.numel() <= MOST and indices.dtype in (torch.int64, torch.int32) and rows > 0


@cache
def begins_early(device: torch.device) -> bool:
    """Whether kernels on a device may begin before what is ahead of them has ended."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= (9, 0)
    )


@cache
def path(source: str = SOURCE) -> str:
    """The file of kernels' text."""
    return str(source_file(source))


@cache
def kernel(
    path: str, name: str, warps: int, dtypes: tuple[str, ...], grid: str, **constants: int
) -> Callable[..., Any]:
    """A kernel of that text, called with buffers, the number of places, and of rows."""
    job = Job(path, name, dtypes, (), tuple(constants.items()), warps, 1)
    return triton_load.load_shared(job, ("n", "rows"), grid)


_library.impl("groups", by_sort, "CPU")
_library.impl("groups", _groups, "CUDA")
GROUPS = torch.ops.braze.groups.default
triton_load.LAUNCHED["braze.groups.default"] = _launched
