"""Triton kernels over a table of gradients on a GPU: their norm, their scaling, their clamping.

``measure(table, places, parts, width, ...)``: a program reads ``CHUNK`` elements of one row, which ``places`` names (row, chunk), and writes one
double. ``fold(parts, count, numbers, total, ...)``: one program makes the norm of ``count`` of these, and what gradients are to be multiplied by,
rounded where PyTorch's operators round. ``change(table, places, number, width, ...)`` multiplies by a double, or clamps to between its negative and it.
"""

from __future__ import annotations

from braze.codegen.triton.prelude import used
from braze.support.dtypes import LONG

#: elements of a program, and of one turn of its loop; parts that ``fold`` adds in a turn
CHUNK, BLOCK, FOLDED = 8192, 1024, 1024
WARPS = 4

_HEADER = f"""\
import triton
import triton.language as tl

CHUNK, BLOCK, FOLDED, WARPS = {CHUNK}, {BLOCK}, {FOLDED}, {WARPS}
{used("bz_max")}

@triton.jit
def rounded(x, kind: tl.constexpr):
    if kind != tl.float64:
        x = x.to(tl.float32)
    return x.to(kind)
"""
#: what a program of a kernel over the table begins with
_ROW = """\
    place = tl.program_id(0).to(tl.int64) * 2
    at = table + tl.load(places + place) * width
    count = tl.load(at)
    g = tl.load(at + 2).to(tl.pointer_type({element}))
    if ALIGNED:
        g = tl.multiple_of(g, 16)
    first = tl.load(places + place + 1) * CHUNK
"""
_MEASURE = """\
    for start in range(0, CHUNK, BLOCK):
        i = first + start + tl.arange(0, BLOCK)
        v = tl.load(g + i{mask}{other}).to({compute})
        if LARGEST:
            total = bz_max(total, tl.abs(v))
        else:
            total += v * v
"""
_CHANGE = """\
    for start in range(0, CHUNK, BLOCK):
        i = first + start + tl.arange(0, BLOCK)
        v = tl.load(g + i{mask}{other}).to({compute})
        if CLAMP:
            v = tl.where(v < -k, -k, v)
            v = tl.where(v > k, k, v)
        else:
            v *= k
        tl.store(g + i, v.to({element}){mask})
"""
_FOLD = """\
@triton.jit
def fold(parts, count, numbers, total, LARGEST: tl.constexpr, FOLDED: tl.constexpr):
    sums = tl.zeros((FOLDED,), tl.float64)
    for start in range(0, count, FOLDED):
        i = start + tl.arange(0, FOLDED)
        v = tl.load(parts + i, mask=i < count, other=0.0)
        if LARGEST:
            sums = bz_max(sums, v)
        else:
            sums += v
    if LARGEST:
        norm = tl.reduce(sums, 0, bz_max)
    else:
        norm = tl.sqrt(tl.sum(sums, 0))
    kind = total.dtype.element_ty
    norm = rounded(norm, kind)
    tl.store(total, norm)
    # max_norm / (norm + 1e-6), which is max_norm times a reciprocal, and 1 at most; nan stays
    near = rounded(norm.to(tl.float64) + 1e-6, kind)
    inverse = rounded(1.0 / near.to(tl.float64), kind)
    by = rounded(inverse.to(tl.float64) * tl.load(numbers), kind).to(tl.float64)
    tl.store(numbers + 1, tl.where(by > 1.0, 1.0, by))
"""


def clip_source(dtype: str) -> str:
    """The module of the three kernels for gradients of a type ("f32")."""
    names = {"element": f"tl.{LONG[dtype]}", "compute": "tl.float64" if dtype == "f64" else "tl.float32"}
    row = _ROW.format(**names)
    lines = [
        _HEADER,
        "",
        "@triton.jit",
        "def measure(table, places, parts, width, LARGEST: tl.constexpr, ALIGNED: tl.constexpr, "
        "CHUNK: tl.constexpr, BLOCK: tl.constexpr):",
        row + f"    total = tl.zeros((BLOCK,), {names['compute']})",
        _both(_MEASURE, names),
        "    if LARGEST:",
        "        found = tl.reduce(total, 0, bz_max).to(tl.float64)",
        "    else:",
        "        found = tl.sum(total.to(tl.float64), 0)",
        "    tl.store(parts + tl.program_id(0), found)",
        "",
        "",
        _FOLD,
        "",
        "@triton.jit",
        "def change(table, places, number, width, CLAMP: tl.constexpr, ALIGNED: tl.constexpr, "
        "CHUNK: tl.constexpr, BLOCK: tl.constexpr):",
        f"    k = tl.load(number).to({names['compute']})",
        "    if not CLAMP:",
        "        if k == 1.0:",
        "            return",
        row + _both(_CHANGE, names),
    ]
    return "\n".join(lines)


def _both(loop: str, names: dict[str, str]) -> str:
    """A loop without masks for whole chunks, where a thread loads several elements at once, and one with them."""
    whole, rest = (
        "".join(f"    {line}\n" for line in loop.format(mask=mask, other=other, **names).splitlines())
        for mask, other in (("", ""), (", mask=i < count", ", other=0.0"))
    )
    return f"    if first + CHUNK <= count:\n{whole}    else:\n{rest}".rstrip("\n")
