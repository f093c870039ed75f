"""Sums and products that run along a dim, on a GPU: kernels of ours where there is enough to walk."""

from __future__ import annotations

from typing import Any

from braze.loops import build
from braze.loops.dtypes import HALVES
from braze.loops.ir import DType, Node, Op
from braze.lower.elementwise.pointwise import convert
from braze.lower.values.fallback import device_of, target_name
from braze.lower.values.lazy import Index, Lazy, numel, strided_lazy
from braze.lower.values.pointwise_core import computed
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.lower.views.views import flip
from braze.runtime.gpu.running import FEW, RUNNING, RUNNING_OUT
from braze.symbolic.expr import Integer, contiguous_strides, linear
from braze.symbolic.guess import likely_size

#: places of a line that are few enough to be written out
SHORT = 4
#: places of a line above which our kernels have no room for their numbers
LONGEST = 1 << 30


@lowering(aten.cumsum.default)
def cumsum(g: ProgramBuilder, x: Lazy, dim: int, *, dtype: Any = None) -> Any:
    """The sums of what stands up to each place."""
    return _running(g, x, dim, "sum")


@lowering(aten.cumprod.default)
def cumprod(g: ProgramBuilder, x: Lazy, dim: int, *, dtype: Any = None) -> Any:
    """The products of what stands up to each place."""
    return _running(g, x, dim, "prod")


@lowering(aten.logcumsumexp.default)
def logcumsumexp(g: ProgramBuilder, x: Lazy, dim: int) -> Any:
    """The logarithms of the sums of the exponentials of what stands up to each place."""
    return _running(g, x, dim, "logsumexp")


def _running(g: ProgramBuilder, x: Lazy, dim: int, kind: str) -> Any:
    """A call of our kernels. What is turned round, summed and turned back is walked from its end."""
    dtype = g.dtype_of(g.val.dtype)
    if g.ctx.target.kind != "cuda" or x.device == "cpu" or not x.rank:
        return NotImplemented
    if not x.dtype.is_computable or not (dtype.is_float or dtype is DType.I64):
        return NotImplemented
    count, length = numel(x.sizes), x.sizes[dim % x.rank]
    if length.value is not None and 0 < length.value <= (1 if kind == "logsumexp" else SHORT):
        return _written_out(g, x, dim % x.rank, kind, dtype)
    # one line alone is a library's, which reads it once
    if count is length or count.value == 0 or likely_size(count) < FEW or likely_size(length) > LONGEST:
        return NotImplemented
    if dtype.is_float or x.dtype.is_float:
        x = convert(g, x, dtype)
    elif x.dtype is DType.I64:
        x = _before_it_was_widened(g, x)
    given, turned = x, False
    # one that is in memory stays what it was where the value behind it is written
    if x.view is None and x.turned is not None and x.turned[1] == {dim % x.rank}:
        given, turned = x.turned[0], True
    out = g.new_buffer(dtype, x.sizes, contiguous_strides(x.sizes), device_of(g))
    args = g.realize(given), dim % x.rank, kind, turned
    g.call(target_name(RUNNING), args, (out,), device=device_of(g), out_variant=target_name(RUNNING_OUT))
    made = g.lazy(out)
    if not turned:
        return made
    back = flip(g, made, (dim,))
    back.owned = True
    return back


def _written_out(g: ProgramBuilder, x: Lazy, dim: int, kind: str, dtype: DType) -> Lazy:
    """What stands up to each of a few places, in their order, as an operation on elements: what is around it is one kernel with it."""
    wide = DType.F32 if dtype in HALVES else dtype
    combined = build.mul if kind == "prod" else build.add
    length = x.sizes[dim].value or 0
    # eager's kernels begin at 0, of which -0.0 takes the sign off, but a library's that walks a line which is alone
    begins = kind == "sum" and wide.is_float and numel(x.sizes) is not x.sizes[dim]
    if length > 1:
        g.realize_if_costly(x)
    # of places that lie side by side a load has several; of others those behind a place are not read for it
    apart = dim < x.rank - 1

    def inner(at: Index) -> Node:
        here, found = g.index_node(at[dim]), None
        for k in range(length):
            given = build.cast(x.load([*at[:dim], Integer(k), *at[dim + 1 :]]), wide)
            if found is None:
                found = build.add(build.const(0.0, wide), given) if begins else given
                continue
            behind = build.binary(Op.LT, here, build.const(k, DType.I64))
            if apart:
                given = build.masked(build.invert(behind), given, build.const(0, wide))
            found = build.where(behind, found, combined(found, given))
        assert found is not None
        return g.rounded(found, dtype)

    made = computed(g, [x], inner, x.sizes, dtype, length)
    made.hint = g.symbols.exprs(g.val.stride())
    return made


def _before_it_was_widened(g: ProgramBuilder, x: Lazy) -> Lazy:
    """The whole numbers in memory that these are, in their own type: a mask that is counted is read as bytes."""
    if x.view is not None:
        return x
    _, index = g.axes(x.sizes)
    node = x.load(index)
    if node.op is not Op.CAST or node.args[0].op is not Op.LOAD or node.args[0].args:
        return x
    (read,) = node.args
    name, place = read.attr
    view, narrow = g.whole(name), read.dtype.is_integer or read.dtype is DType.BOOL
    same = view.sizes == x.sizes and place == linear(index, view.strides, view.offset)
    return strided_lazy(g, view, x.device) if same and narrow and read.dtype is view.dtype else x
