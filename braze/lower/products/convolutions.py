"""Convolutions: ATen's, but for those that are sums or products of rows once channels lie beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.loops import build
from braze.loops.ir import DType, Op, ReduceKind, Reduction, Store
from braze.lower.products.contractions import gemm
from braze.lower.products.depthwise import device_depthwise
from braze.lower.reductions.reductions import reduce
from braze.lower.values.fallback import call_extern
from braze.lower.values.lazy import Index, Lazy, numel
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import LOWERINGS, aten, lowering
from braze.lower.views.views import permute_value, reshape_value
from braze.runtime.operators import convolutions
from braze.symbolic.expr import ONE, ZERO, contiguous_strides, linear

#: oneDNN is quick at gradients of depthwise weights up to this size
SMALL_WINDOW = 3
#: of fewer channels than this, which no vector is filled by, oneDNN is quick too: vectors would lie across memory
LEAST_CHANNELS = 5
#: sums side by side in registers
MOST_SUMS = 8
#: a sum of products over more pixels than this is better divided among threads by oneDNN
MANY_PIXELS = 16384


@lowering(aten.convolution.default)
def convolution(
    g: ProgramBuilder,
    x: Lazy,
    weight: Lazy,
    bias: Lazy | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    extra: Sequence[int],
    groups: int,
) -> Any:
    """Of windows of one pixel: a product of matrices, where that is ours and channels lie beside each other.

    cuDNN's are called without their bias, which ATen would add in one more pass over the result, as eager does: our kernel
    that reads the result adds it instead.
    """
    if _is_product(g, x, weight, stride, padding, transposed, groups):
        out = gemm(g, _pixels(g, x), permute_value(g, _matrix(g, weight), [1, 0]), bias)
        if out is not None:
            return permute_value(g, out, [0, 3, 1, 2])
    later = bias if _on_gpu(g, x) else None
    args = (x, weight, bias if later is None else None, stride, padding, dilation, transposed, extra, groups)
    out = None
    if _on_gpu(g, x) and not transposed and groups > 1 and weight.sizes[0].value == groups:
        out = device_depthwise(g, x, weight, stride, padding, dilation)
    out = call_extern(g, aten.convolution.default, args, {}) if out is None else out
    if later is None:
        return out
    return LOWERINGS[aten.add.Tensor](
        g, out, reshape_value(g, later, (*later.sizes, *[ONE] * (out.rank - 2)))
    )


def _called(target: Any) -> None:
    """Lower an operator of ours to a call of it."""

    @lowering(target)
    def call(g: ProgramBuilder, *args: Any) -> Any:
        return call_extern(g, target, args, {})


_called(convolutions.WEIGHT)
if convolutions.PACKED is not None:
    _called(convolutions.PACKED)


@lowering(aten.convolution_backward.default)
def convolution_backward(
    g: ProgramBuilder,
    grad: Lazy,
    x: Lazy,
    weight: Lazy,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    extra: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> Any:
    """Of the input, the weight and the bias, where asked for."""
    args = (grad, x, weight, bias, stride, padding, dilation, transposed, extra, groups)
    dx = dw = db = None
    if not transposed and _is_depthwise(g, grad, x, weight):
        if mask[1]:
            dw = depthwise_weight_gradient(g, grad, x, weight, stride, padding, dilation)
    elif _is_product(g, x, weight, stride, padding, transposed, groups) and _lies_by_channels(g, grad):
        if mask[0]:
            product = gemm(g, _pixels(g, grad), _matrix(g, weight), None)
            dx = None if product is None else permute_value(g, product, [0, 3, 1, 2])
        if mask[1]:
            dw = _product_weight_gradient(g, grad, x, weight)
    if mask[2] and _on_gpu(g, grad):
        whole, g.val = g.val, g.val[2]
        db = LOWERINGS[aten.sum.dim_IntList](g, grad, [0, *range(2, grad.rank)])
        g.val = whole
    elif mask[2] and dw is not None:
        db = _sum(g, grad, [0, 2, 3])
    left = [wanted and made is None for wanted, made in zip(mask, (dx, dw, db), strict=True)]
    if any(left):
        whole = g.val
        g.val = tuple(v if wanted else None for v, wanted in zip(whole, left, strict=True))
        rest = call_extern(g, aten.convolution_backward.default, (*args, left), {})
        g.val = whole
        dx, dw, db = (r if made is None else made for r, made in zip(rest, (dx, dw, db), strict=True))
    return dx, dw, db


def _on_gpu(g: ProgramBuilder, x: Lazy) -> bool:
    """Whether a loop over a value runs on a GPU."""
    return g.ctx.target.kind == "cuda" and x.device != "cpu" and x.dtype.is_computable


def _lies_by_channels(g: ProgramBuilder, x: Lazy) -> bool:
    """Whether a picture has its channels beside each other; it is put in memory."""
    return x.rank == 4 and g.realize(x).strides[1] is ONE and x.sizes[1] is not ONE


def _is_product(
    g: ProgramBuilder,
    x: Lazy,
    weight: Lazy,
    stride: Sequence[int],
    padding: Sequence[int],
    transposed: bool,
    groups: int,
) -> bool:
    """Whether windows are of one pixel, and each pixel's channels a row in memory."""
    if transposed or groups != 1 or weight.rank != 4 or weight.sizes[2:] != (ONE, ONE):
        return False
    if any(n != 1 for n in stride) or any(padding) or g.ctx.target.kind != "cpu":
        return False
    return x.dtype is DType.F32 and _lies_by_channels(g, x)


def _pixels(g: ProgramBuilder, x: Lazy) -> Lazy:
    """A picture with its channels last."""
    return permute_value(g, x, [0, 2, 3, 1])


def _matrix(g: ProgramBuilder, weight: Lazy) -> Lazy:
    """The weight of windows of one pixel: a row for each channel that comes out."""
    return reshape_value(g, weight, weight.sizes[:2])


def _product_weight_gradient(g: ProgramBuilder, grad: Lazy, x: Lazy, weight: Lazy) -> Lazy | None:
    """The product over all pixels, where our template is the quicker."""
    count = numel((x.sizes[0], *x.sizes[2:]))
    if count.value is None or count.value > MANY_PIXELS:
        return None
    rows = reshape_value(g, _pixels(g, grad), (count, grad.sizes[1]))
    columns = reshape_value(g, _pixels(g, x), (count, x.sizes[1]))
    product = gemm(g, permute_value(g, rows, [1, 0]), columns, None)
    return None if product is None else reshape_value(g, product, weight.sizes)


def _is_depthwise(g: ProgramBuilder, grad: Lazy, x: Lazy, weight: Lazy) -> bool:
    """Whether each channel has one window of its own, large, and channels lie beside each other."""
    values = (grad, x, weight)
    if any(v.rank != 4 or v.dtype is not DType.F32 or v.device != "cpu" for v in values):
        return False
    if any(n.value is None for v in values for n in v.sizes):
        return False
    out, inside, high, wide = weight.sizes
    if inside is not ONE or x.sizes[1] is not out or not SMALL_WINDOW < int(wide.value or 0) <= MOST_SUMS:
        return False
    if int(out.value or 0) < LEAST_CHANNELS:
        return False
    return high is not ONE and all(g.realize(v).strides[1] is ONE for v in (grad, x))


def depthwise_weight_gradient(
    g: ProgramBuilder,
    grad: Lazy,
    x: Lazy,
    weight: Lazy,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Lazy:
    """Sums of products of the gradient and the moved picture: for each sample, row of the window and channel those of the row.

    Vectors run along the channels, so that each element of the gradient is read once for a row of the window.
    """
    samples, channels, high, wide = grad.sizes
    rows, columns = weight.sizes[2:]
    bordered = _bordered(g, x, padding)
    axes, (n, r, c) = g.axes([samples, rows, channels])
    reduce_axes, (i, j) = g.axes([high, wide], "r")
    sizes = (samples, rows, channels)
    strides = contiguous_strides(sizes)
    level = grad.load((n, c, i, j))
    reductions, stores = [], []
    for k in range(int(columns.value or 0)):
        at = (n, c, i * stride[0] + r * dilation[0], j * stride[1] + k * dilation[1])
        reductions.append(Reduction(ReduceKind.SUM, DType.F32, build.mul(level, bordered.load(at))))
        sums = g.new_buffer(DType.F32, sizes, strides, "cpu")
        stores.append(Store(sums, linear((n, r, c), strides, ZERO), build.reduced(k, DType.F32)))
    ops = (g.op_name,)
    g.nest(axes, tuple(stores), "cpu", ops, over=reduce_axes, reductions=tuple(reductions))
    parts = [g.lazy(store.buffer) for store in stores]

    def part(index: Index) -> Any:
        sample, channel, _, row, column = index
        first, *rest = (p.load((sample, row, channel)) for p in parts)
        for k, value in enumerate(rest, 1):
            here = build.binary(Op.EQ, g.index_node(column), build.index(k))
            first = build.where(here, value, first)
        return first

    each = Lazy((samples, channels, ONE, rows, columns), DType.F32, "cpu", part, ops=ops)
    return _sum(g, each, [0])


def _sum(g: ProgramBuilder, x: Lazy, dims: Sequence[int]) -> Lazy:
    """Sums in the value's own type."""

    def sums(value: Any) -> tuple[Reduction, ...]:
        return (Reduction(ReduceKind.SUM, x.dtype, value),)

    (out,) = reduce(g, x, dims, False, lambda v: v, sums, [(x.dtype, lambda total: total)])
    return out


def _bordered(g: ProgramBuilder, x: Lazy, padding: Sequence[int]) -> Lazy:
    """The picture with zeros around it. They are not stored: a test for a row of channels costs next to nothing."""
    if not any(padding):
        return x
    samples, channels, high, wide = x.sizes
    sizes = (samples, channels, high + 2 * padding[0], wide + 2 * padding[1])

    def inner(index: Index) -> Any:
        inside, at = build.const(True, DType.BOOL), list(index)
        for d, width in zip((2, 3), padding, strict=True):
            at[d] = index[d] - width
            inside = build.both(inside, build.binary(Op.GE, g.index_node(at[d]), build.index(0)))
            inside = build.both(inside, build.lt(g.index_node(at[d]), g.index_node(x.sizes[d])))
        return build.masked(inside, x.load(at), build.const(0, x.dtype))

    return Lazy(sizes, x.dtype, x.device, inner)
