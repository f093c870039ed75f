"""Floats of eight bits: bytes to loops, which make them of floats and floats of them as eager does, bit for bit.

A number is rounded to nearest, ties to even, in the arithmetic of its bits, so that it needs no instruction of the machine's. What is beyond
``float8_e4m3fn`` is NaN before PyTorch 2.12 or so and its largest number since: PyTorch is asked.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from braze.graph.private import torch_compat
from braze.loops import build
from braze.loops.ir import DType, Node, Op
from braze.lower.values.lazy import Index, Lazy, strided_lazy
from braze.lower.values.pointwise_core import computed
from braze.lower.values.realize import ProgramBuilder
from braze.support.record import record


@record
class Eight:
    """A format: bits of its mantissa, what its exponent is less than float32's, and the magnitude that is infinity (none: 0)."""

    mantissa: int
    less: int
    infinity: int

    @property
    def shift(self) -> int:
        """Bits of float32's mantissa beyond this one's."""
        return 23 - self.mantissa

    @property
    def too_large(self) -> int:
        """The bits of the least float32 that is none of this format's whatever rounding does."""
        if self.infinity:
            return (self.infinity << self.shift) + (self.less << 23)
        return (0x7F << self.shift) + (self.less << 23)


FORMATS = {DType.F8E4M3: Eight(3, 120, 0), DType.F8E5M2: Eight(2, 112, 0x7C)}

#: the bits of float32's infinity
INFINITY = 255 << 23
#: what a byte that is no number holds
NAN = 0x7F


def to_eight(g: ProgramBuilder, x: Lazy, dtype: DType) -> Lazy:
    """A value's bytes, in memory of their own."""
    form, largest = FORMATS[dtype], dtype is DType.F8E4M3 and saturates(x.device)

    def inner(index: Index) -> Node:
        return encoded(build.cast(x.load(index), DType.F32), form, largest)

    strides = g.symbols.exprs(g.val.stride())
    made = computed(g, [x], inner, x.sizes, DType.U8, 12)
    view = g.realize_into(made, g.new_buffer(dtype, x.sizes, strides, x.device))
    return strided_lazy(g, view, x.device)


def from_eight(g: ProgramBuilder, x: Lazy, dtype: DType) -> Any:
    """What bytes mean, in another type."""
    if x.view is None:
        return NotImplemented
    form, view = FORMATS[x.dtype], dataclasses.replace(x.view, dtype=DType.U8)

    def inner(index: Index) -> Node:
        return build.cast(decoded(g.load(view, index), form), dtype)

    return computed(g, [x], inner, x.sizes, dtype, 4)


@functools.cache
def saturates(device: str) -> bool:
    """Whether on a device what is beyond ``float8_e4m3fn`` becomes its largest number rather than NaN."""
    here = device == "cpu" or not torch.cuda.is_available()
    with torch_compat.outside_modes(), torch.no_grad():
        beyond = torch.full((1,), 1e9, device="cpu" if here else device).to(torch.float8_e4m3fn)
        return not bool(beyond.float().isnan())


def encoded(value: Node, form: Eight, saturated: bool) -> Node:
    """The byte of a float32; ``saturated``: what is beyond the format is its largest number."""
    bits = _as_bits(value)
    sign = build.binary(Op.AND, _right(bits, 24), _bits(0x80))
    size = build.binary(Op.AND, bits, _bits(0x7FFFFFFF))
    odd = build.binary(Op.AND, _right(size, form.shift), _bits(1))
    half = (1 << form.shift - 1) - 1
    rounded = build.add(build.add(size, _bits(half - (form.less << 23))), odd)
    # of a number below the format's least normal one the addition of one whose last bit is worth the format's last shifts and rounds
    unit = (form.less + form.shift + 1) << 23
    moved = build.add(_as_float(size), _as_float(_bits(unit)))
    small = build.binary(Op.SUB, _as_bits(moved), _bits(unit))
    found = build.where(build.lt(size, _bits(form.less + 1 << 23)), small, _right(rounded, form.shift))
    beyond = form.infinity or (NAN - 1 if saturated else NAN)
    found = build.where(build.lt(size, _bits(form.too_large)), found, _bits(beyond))
    if saturated:
        found = build.where(build.lt(found, _bits(NAN)), found, _bits(beyond))
    found = build.where(build.lt(_bits(INFINITY), size), _bits(NAN), found)
    return build.cast(build.binary(Op.OR, found, sign), DType.U8)


def decoded(byte: Node, form: Eight) -> Node:
    """The float32 of a byte."""
    byte = build.cast(byte, DType.I32)
    size = build.binary(Op.AND, byte, _bits(0x7F))
    wide = build.binary(Op.SHL, size, _bits(form.shift))
    normal = _as_float(build.add(wide, _bits(form.less << 23)))
    least = build.const(2.0 ** (form.less - 126 - form.mantissa), DType.F32)
    small = build.binary(Op.MUL, build.cast(size, DType.F32), least)
    found = build.where(build.lt(size, _bits(1 << form.mantissa)), small, normal)
    special = form.infinity or NAN
    beyond = _as_float(build.binary(Op.OR, wide, _bits(INFINITY)))
    found = build.where(build.lt(size, _bits(special)), found, beyond)
    return build.where(build.lt(_bits(0x7F), byte), build.unary(Op.NEG, found), found)


def _bits(value: int) -> Node:
    return build.const(value, DType.I32)


def _right(x: Node, places: int) -> Node:
    return build.binary(Op.SHR, x, _bits(places))


def _as_bits(x: Node) -> Node:
    return Node(Op.BITCAST, DType.I32, (x,), None)


def _as_float(x: Node) -> Node:
    return Node(Op.BITCAST, DType.F32, (x,), None)
