"""Sums, products and sums of exponentials that run along a dim of a tensor on a GPU, where ATen's kernels walk it place after place.

``braze::running(x, dim, kind, backwards)``: a tile is scanned in a program's registers, and what its last place has is carried into the next
tile of the same lines. Of lines too few to keep a GPU busy each is cut in chunks: a first kernel has the chunks' totals, and each
program of the second begins with those before its own, always in the same order. Half types are added up in float32, whole numbers in int64.
A product is never cut, and of no more places of a row at once than in ATen's kernel: what follows a zero may come to an infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch

from braze.runtime.libraries.cache import source_file
from braze.runtime.operators.operators import runs_on_gpu
from braze.runtime.triton import triton_load
from braze.runtime.triton.triton_build import Job
from braze.support.record import record

Tensor = torch.Tensor

#: kind -> (number in the kernels, function of ATen)
KINDS: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "sum": (0, torch.cumsum),
    "prod": (1, torch.cumprod),
    "logsumexp": (2, torch.logcumsumexp),
}
#: elements of a tile; places of a row of which a product is taken at once; bytes side by side where lines are columns; warps where they are rows
TILE, PRODUCT, BESIDE, WARPS = 2048, 1024, 256, 4
#: bytes side by side of columns that few programs would have, and that are so short that a tile has all of them: nothing is cut (on an H200 running sums down 49 of 8 x 49 x 1,000 numbers
#: 2.7 us where chunks took 3.8, down 256 of 4 x 256 x 512 3.7 and 6.4; logarithms of sums of exponentials down 49 8.8 and 21)
SECTOR = 32
#: programs of a multiprocessor that are enough, those that are wanted of lines that are cut, and chunks of a line at most
ENOUGH, WANTED, MOST = 4, 8, 1024
#: elements under which ATen's kernel is as quick; places of a line, or lines, that 32 bits do not count
FEW, FAR = 1 << 16, 1 << 31
#: types that numbers are added up in -> what the kernels call them
WIDE = {torch.float32: 0, torch.float64: 1, torch.int64: 2}
#: multiprocessors of a GPU that does not say how many it has: the interpreter's
CORES = 132

POINTERS = {
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}

SOURCE = '''
"""Running sums and products."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def added(a, b):
    return a + b


@triton.jit
def multiplied(a, b):
    return a * b


@triton.jit
def log_added(a, b):
    """log(exp(a) + exp(b)); of two equal infinities that one, and a nan of either."""
    high = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    low = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    equal = (low == high) & ((high == float("inf")) | (high == float("-inf")))
    return tl.where(equal, high, high + libdevice.log1p(tl.exp(low - high)))


@triton.jit
def both(a, b, KIND: tl.constexpr):
    if KIND == 0:
        return added(a, b)
    elif KIND == 1:
        return multiplied(a, b)
    else:
        return log_added(a, b)


@triton.jit
def whole(v, AXIS: tl.constexpr, KIND: tl.constexpr):
    """What all of a tile come to."""
    if KIND == 0:
        return tl.reduce(v, AXIS, added)
    elif KIND == 1:
        return tl.reduce(v, AXIS, multiplied)
    else:
        return tl.reduce(v, AXIS, log_added)


@triton.jit
def scanned(v, AXIS: tl.constexpr, KIND: tl.constexpr):
    if KIND == 0:
        return tl.associative_scan(v, AXIS, added)
    elif KIND == 1:
        return tl.associative_scan(v, AXIS, multiplied)
    else:
        return tl.associative_scan(v, AXIS, log_added)


@triton.jit
def nothing(KIND: tl.constexpr):
    if KIND == 0:
        return 0
    elif KIND == 1:
        return 1
    else:
        return float("-inf")


@triton.jit
def spread(i, AXIS: tl.constexpr):
    """Places of an axis of a tile."""
    return i[None, :] if AXIS == 1 else i[:, None]


@triton.jit
def lines_of(o, t, n, width, LINES: tl.constexpr, AXIS: tl.constexpr):
    """A tile's lines, where each begins, and how far its places are apart."""
    c = t * LINES + tl.arange(0, LINES)
    if AXIS == 1:
        return c, c.to(tl.int64) * n, 1
    else:
        return c, o.to(tl.int64) * n * width + c, width


@triton.jit
def read(x, begin, step, i, end, c, n, width, KIND: tl.constexpr, AXIS: tl.constexpr, BACKWARDS: tl.constexpr, TYPE: tl.constexpr):
    """(pointers' distances, what is inside, the values) of a tile."""
    place = (n - 1 - i if BACKWARDS else i).to(tl.int64) * step
    at = spread(begin, 1 - AXIS) + spread(place, AXIS)
    inside = spread(c < width, 1 - AXIS) & spread(i < end, AXIS)
    v = tl.load(x + at, mask=inside, other=0).to(TYPE)
    return at, inside, tl.where(inside, v, nothing(KIND)).to(TYPE)


@triton.jit
def totals(x, made, n, width, tiles, chunk, chunks, outer, KIND: tl.constexpr, AXIS: tl.constexpr, BACKWARDS: tl.constexpr, BLOCK: tl.constexpr, LINES: tl.constexpr):
    """What each chunk of a line comes to, but for the last."""
    TYPE: tl.constexpr = made.dtype.element_ty
    p = tl.program_id(0)
    k = (p // tiles) % (chunks - 1)
    o = p // (tiles * (chunks - 1))
    c, begin, step = lines_of(o, p % tiles, n, width, LINES, AXIS)
    total = tl.full([LINES], 0, TYPE) + nothing(KIND)
    for first in range(k * chunk, (k + 1) * chunk, BLOCK):
        i = first + tl.arange(0, BLOCK)
        at, inside, v = read(x, begin, step, i, (k + 1) * chunk, c, n, width, KIND, AXIS, BACKWARDS, TYPE)
        total = both(total, whole(v, AXIS, KIND), KIND)
    tl.store(made + (o.to(tl.int64) * chunks + k) * width + c, total, mask=c < width)


@triton.jit
def running(x, made, out, n, width, tiles, chunk, chunks, outer, KIND: tl.constexpr, AXIS: tl.constexpr, BACKWARDS: tl.constexpr, BLOCK: tl.constexpr, LINES: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr):
    """The places of a chunk of some lines, from what ``made`` has of the chunks before it, if lines are cut."""
    TYPE: tl.constexpr = tl.float32 if WIDE == 0 else (tl.float64 if WIDE == 1 else tl.int64)
    p = tl.program_id(0)
    k = (p // tiles) % chunks
    o = p // (tiles * chunks)
    c, begin, step = lines_of(o, p % tiles, n, width, LINES, AXIS)
    carry = tl.full([LINES], 0, TYPE) + nothing(KIND)
    if CUT:
        for first in range(0, k, BLOCK):
            j = first + tl.arange(0, BLOCK)
            at, inside, v = read(made + o.to(tl.int64) * chunks * width, c, width, j, k, c, n, width, KIND, AXIS, False, TYPE)
            carry = both(carry, whole(v, AXIS, KIND), KIND)
    end = tl.minimum(n, (k + 1) * chunk)
    last = spread(tl.arange(0, BLOCK) == BLOCK - 1, AXIS)
    for first in range(k * chunk, end, BLOCK):
        i = first + tl.arange(0, BLOCK)
        at, inside, v = read(x, begin, step, i, end, c, n, width, KIND, AXIS, BACKWARDS, TYPE)
        if KIND == 1:  # down columns one after another, as ATen: what follows a zero may be as large as it likes
            v = scanned(tl.where(spread(i == first, AXIS), both(spread(carry, 1 - AXIS), v, KIND), v), AXIS, KIND)
        else:
            v = both(spread(carry, 1 - AXIS), scanned(v, AXIS, KIND), KIND)
        tl.store(out + at, v.to(out.dtype.element_ty), mask=inside)
        carry = whole(tl.where(last, v, nothing(KIND)).to(TYPE), AXIS, KIND)
'''

_library = torch.library.Library("braze", "FRAGMENT")
_library.define("running(Tensor x, int dim, str kind, bool backwards) -> Tensor")
_library.define("running.out(Tensor x, int dim, str kind, bool backwards, *, Tensor(a!) out) -> Tensor(a!)")


@record
class Walk:
    """How lines are walked: ``width`` lines side by side, ``outer`` times; ``block`` places of ``lines`` lines are a tile."""

    outer: int
    n: int
    width: int
    axis: int  # 1: a line's places lie side by side
    block: int
    lines: int
    chunk: int
    chunks: int

    @property
    def tiles(self) -> int:
        """Of lines side by side."""
        return -(-self.width // self.lines)

    @property
    def warps(self) -> int:
        """One has all places of its columns: nothing is passed from warp to warp."""
        return WARPS if self.axis == 1 else 1


def walk_of(outer: int, n: int, inner: int, itemsize: int, cores: int, kind: str) -> Walk:
    """How lines of so many places are walked."""
    product = kind == "prod"
    # many instructions for each two elements
    tile = TILE // 4 if kind == "logsumexp" else TILE
    if inner == 1:
        outer, width, axis = 1, outer, 1
        block = min(PRODUCT if product else tile, _power(n))
        lines = min(tile // block, _power(width))
    else:
        width, axis = inner, 0
        lines = min(BESIDE // itemsize, tile, _power(width))
        block = min(max(1, tile // lines), _power(n))
    programs, chunks = outer * -(-width // lines), 1
    if axis == 0 and not product and programs < ENOUGH * cores and n <= tile // max(1, SECTOR // itemsize):
        lines = min(max(1, SECTOR // itemsize), lines)
        return Walk(outer, n, width, axis, _power(n), lines, _power(n), 1)
    if not product and programs < ENOUGH * cores:
        chunks = max(1, min(-(-WANTED * cores // programs), n // (2 * block), MOST))
    chunk = -(-n // (chunks * block)) * block
    return Walk(outer, n, width, axis, block, lines, chunk, -(-n // chunk))


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


@record
class Launches:
    """What runs for lines of one kind: the kernels, the numbers that they are given, and room for what chunks come to."""

    totals: Callable[..., Any] | None
    running: Callable[..., Any]
    sizes: tuple[int, ...]
    room: tuple[int, ...]
    wide: torch.dtype

    def launch(self, x: Tensor, out: Tensor) -> None:
        """From ``x``, dense by rows, into ``out``. Lines that are not cut need no room, which takes the host as long as a launch."""
        made = out
        if self.totals is not None:
            made = torch.empty(self.room, device=x.device, dtype=self.wide)
            self.totals(x, made, *self.sizes)
        self.running(x, made, out, *self.sizes)


@lru_cache(1024)
def _launches(
    outer: int, n: int, inner: int, dtype: torch.dtype, device: torch.device, kind: str, backwards: bool
) -> Launches:
    """To work this out takes the host longer than to launch it."""
    walk = walk_of(outer, n, inner, dtype.itemsize, _cores(device), kind)
    made = _type_of(dtype)
    wide = made if made in (torch.float64, torch.int64) else torch.float32
    how = dict(
        KIND=KINDS[kind][0], AXIS=walk.axis, BACKWARDS=int(backwards), BLOCK=walk.block, LINES=walk.lines
    )
    cut = walk.chunks > 1
    given, room, out = POINTERS[dtype], POINTERS[wide if cut else made], POINTERS[made]
    return Launches(
        _kernel("totals", walk.warps, (given, room), **how) if cut else None,
        _kernel("running", walk.warps, (given, room, out), **how, CUT=int(cut), WIDE=WIDE[wide]),
        (walk.n, walk.width, walk.tiles, walk.chunk, walk.chunks, walk.outer),
        (walk.outer, walk.chunks, walk.width) if cut else (),
        wide,
    )


def _type_of(dtype: torch.dtype) -> torch.dtype:
    """The type of the running values of numbers of a type."""
    return dtype if dtype.is_floating_point else torch.int64


def by_kernels(x: Tensor, dim: int, kind: str, backwards: bool, *, out: Tensor | None = None) -> Tensor:
    """The running values along a dim; in ``out``, dense by rows, where that is given."""
    if _is_atens(x, dim):  # of a size that was not known before
        return by_aten(x, dim, kind, backwards, out=out)
    if out is None:
        out = torch.empty(x.shape, device=x.device, dtype=_type_of(x.dtype))
    _launches_of(x, dim, kind, backwards).launch(x.contiguous(), out)
    return out


def worked_out(x: Tensor, dim: int, kind: str, backwards: bool, *, out: Tensor) -> Callable[..., Any]:
    """``by_kernels`` of what is laid out as these are."""
    if _is_atens(x, dim) or not x.is_contiguous():
        return by_kernels
    found = _launches_of(x, dim, kind, backwards)
    running, sizes = found.running, found.sizes
    if found.totals is not None:
        return lambda x, dim, kind, backwards, *, out: found.launch(x, out)
    return lambda x, dim, kind, backwards, *, out: running(x, out, out, *sizes)


def _launched(device: torch.device, x: Tensor, dim: int, kind: str, backwards: bool) -> triton_load.Launched:
    """The kernels that ``by_kernels`` launches, with the numbers that they are given."""
    if _is_atens(x, dim):
        return []
    found = _launches_of(x, dim, kind, backwards, device)
    return [(kernel, found.sizes) for kernel in (found.totals, found.running) if kernel is not None]


def _is_atens(x: Tensor, dim: int) -> bool:
    """Whether ATen's kernel is as quick, or the only one that counts so far."""
    return x.numel() < FEW or max(x.shape[dim], x.numel() // x.shape[dim]) >= FAR


def _launches_of(
    x: Tensor, dim: int, kind: str, backwards: bool, device: torch.device | None = None
) -> Launches:
    """The launches on a device: that of ``x``, unless ``x`` only describes what is there."""
    dim %= x.dim()
    outer, inner = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :])
    return _launches(outer, x.shape[dim], inner, x.dtype, device or x.device, kind, backwards)


def by_aten(x: Tensor, dim: int, kind: str, backwards: bool, *, out: Tensor | None = None) -> Tensor:
    """The same by ATen."""
    function = KINDS[kind][1]
    made = function(x.flip(dim), dim).flip(dim) if backwards else function(x, dim)
    return made if out is None else out.copy_(made)


@cache
def _cores(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else CORES


@cache
def _path() -> str:
    return str(source_file(SOURCE))


@cache
def _kernel(name: str, warps: int, dtypes: tuple[str, ...], **constants: int) -> Callable[..., Any]:
    job = Job(_path(), name, dtypes, (), tuple(constants.items()), warps, 1)
    programs = f"outer * tiles * {'(chunks - 1)' if name == 'totals' else 'chunks'}"
    return triton_load.load_shared(job, ("n", "width", "tiles", "chunk", "chunks", "outer"), programs)


for _name in ("running", "running.out"):
    _library.impl(_name, by_aten, "CPU")
    _library.impl(_name, by_kernels, "CUDA")
runs_on_gpu("braze.running.out", by_kernels, worked_out)
triton_load.LAUNCHED["braze.running.default"] = _launched
RUNNING, RUNNING_OUT = torch.ops.braze.running.default, torch.ops.braze.running.out
