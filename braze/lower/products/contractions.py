"""Matrix products, convolutions and attention: extern calls, and the packed GEMM template for linear layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from braze.loops import build
from braze.loops.dtypes import HALVES
from braze.loops.ir import Axis, BufferKind, BufferView, DType, Node, ReduceKind, Store, TemplateCall
from braze.lower.elementwise.activations import gelu, relu
from braze.lower.reductions.reductions import one
from braze.lower.values.fallback import call_extern, call_into
from braze.lower.values.lazy import Lazy, numel, strided_lazy
from braze.lower.values.pointwise_core import broadcast_index, elementwise
from braze.lower.values.realize import ProgramBuilder, constant_of
from braze.lower.values.registry import aten, lowering
from braze.lower.views.shape import filled
from braze.lower.views.views import permute_value, reshape_value
from braze.products import DeviceProduct, Way, pays_by_rule, takes_template, writes_broken_rows
from braze.runtime.operators import wide_products
from braze.runtime.operators.convolutions import has_type
from braze.runtime.operators.operators import onednn_linear
from braze.symbolic.expr import ONE, ZERO, Expr, axis_symbol, contiguous_strides, known_le, linear
from braze.symbolic.expr import product as product_of
from braze.target import Target


@lowering(aten.linear.default)
def linear_layer(g: ProgramBuilder, x: Lazy, weight: Lazy, bias: Lazy | None = None) -> Any:
    """x @ weight.T + bias."""
    if weight.rank == 2:
        out = _by_choice(g, x, permute_value(g, weight, [1, 0]), bias)
        if out is not None:
            return out
        if g.ctx.target.kind == "cuda":
            out = _into_rows(g, x, weight, bias)
            if out is not None:
                return out
        single = weight.sizes[0] is ONE and _is_slow(g, x, weight, bias) and (bias is None or bias.rank == 1)
        if single or _is_wide(g, (*x.sizes, weight.sizes[0]), x, weight, bias):
            rows = reshape_value(g, x, (numel(x.sizes[:-1]), x.sizes[-1]))
            out = (_by_vector if single else _wide)(g, rows, permute_value(g, weight, [1, 0]), bias)
            return reshape_value(g, out, (*x.sizes[:-1], weight.sizes[0]))
    return call_extern(g, aten.linear.default, (x, weight, bias), {})


def _is_wide(g: ProgramBuilder, sizes: tuple[Expr, ...], *operands: Lazy | None) -> bool:
    """Whether a product of so many multiplications is of such a type, and lies row by row."""
    work = product_of(sizes).value
    if not _is_slow(g, *operands) or (work is not None and work < wide_products.SMALL):
        return False
    return g.symbols.exprs(g.val.stride()) == contiguous_strides(g.symbols.exprs(g.val.shape))


def _is_slow(g: ProgramBuilder, *operands: Lazy | None) -> bool:
    """Whether a product is of a half type that oneDNN does not compute with on this processor."""
    values = [v for v in operands if v is not None]
    dtype = values[0].dtype
    if dtype not in HALVES or any(v.device != "cpu" or v.dtype is not dtype for v in values):
        return False
    return not has_type(g.val.dtype)


def _wide(g: ProgramBuilder, a: Lazy, b: Lazy, bias: Lazy | None, beta: Any = 1, alpha: Any = 1) -> Lazy:
    """The same product by float32's."""
    sizes = (*a.sizes[:-1], b.sizes[-1])
    return call_into(g, wide_products.OPERATOR, (bias, a, b, beta, alpha), sizes, a.dtype, a.device)


def _by_vector(g: ProgramBuilder, a: Lazy, b: Lazy, bias: Lazy | None = None) -> Any:
    """A matrix by one column as sums of rows: what would be made wide is read once so, and written once more for a product."""
    g.realize(b)
    wide = Lazy(
        a.sizes,
        DType.F32,
        a.device,
        lambda at: build.mul(build.cast(a.load(at), DType.F32), build.cast(b.load((at[1], ZERO)), DType.F32)),
        cost=a.pending_cost + 1,
        ops=(*a.pending_ops, g.op_name),
    )
    finish = partial(build.add, build.cast(bias.load((ZERO,)), DType.F32)) if bias is not None else None
    return one(g, wide, [1], True, ReduceKind.SUM, DType.F32, a.dtype, finish=finish)


#: bytes of rows that sums of columns read in one stretch, and of a matrix that a processor's own cache holds: of others they wait for memory, and ATen's product does not
_STRETCH, _CACHED = 512, 1 << 20


def _by_sums(g: ProgramBuilder, a: Lazy, b: Lazy, bias: Lazy | None) -> Any:
    """A product of float32 on a processor with one row, one column, or one place in its sums: of a vector by a matrix sums of rows or columns; None where it is none, or ATen's is quicker.

    The template computes sixteen columns, and what stands before and behind a product of ATen's is left to kernels of its own.
    """
    values = [v for v in (a, b, bias) if v is not None]
    if any(v.device != "cpu" or v.dtype is not DType.F32 for v in values) or g.ctx.target.kind != "cpu":
        return None
    # of one row or one column eager's sums begin at 0, of which -0.0 takes the sign off
    if a.sizes[1] is ONE and bias is None and a.sizes[0] is not ONE and b.sizes[1] is not ONE:
        return elementwise(g, build.mul, (a, b), cost=1)
    if b.sizes[1] is ONE and (bias is None or bias.rank == 1) and _is_read_once(a):
        return _by_vector(g, a, b, bias)
    turned = permute_value(g, b, [1, 0])
    constant = b.view is not None and g.buffers[b.view.buffer].kind is BufferKind.CONSTANT
    if a.sizes[0] is ONE and bias is None and not constant and _is_read_once(turned):
        return permute_value(g, _by_vector(g, turned, permute_value(g, a, [1, 0])), [1, 0])
    return None


def _is_read_once(a: Lazy) -> bool:
    """Whether a matrix of which each row is added up is read as it lies."""
    if a.view is None or a.view.strides[1] is ONE:
        return True
    rows, length = (n.value for n in a.sizes)
    return rows is not None and length is not None and (rows * 4 <= _STRETCH or rows * length * 4 <= _CACHED)


def _into_rows(g: ProgramBuilder, x: Lazy, weight: Lazy, bias: Lazy | None) -> Lazy | None:
    """A linear layer as one product of rows into planned memory: what ``linear`` looks up and views at each call is done once.

    None where ``linear`` is not one product of matrices.
    """
    values = [v for v in (x, weight, bias) if v is not None]
    k, n = weight.sizes[1], weight.sizes[0]
    rows = numel(x.sizes[:-1])
    if x.rank < 2 or any(v.device == "cpu" or v.dtype is not x.dtype for v in values) or not x.dtype.is_float:
        return None
    if ZERO in (rows, k, n) or (bias is not None and (bias.rank != 1 or bias.sizes[0] is not n)):
        return None
    sizes = (*x.sizes[:-1], n)
    if g.symbols.exprs(g.val.stride()) != contiguous_strides(sizes):
        return None
    target = aten.mm.default if bias is None else aten.addmm.default
    given = (reshape_value(g, x, (rows, k)), permute_value(g, weight, [1, 0]))
    out = call_into(g, target, given if bias is None else (bias, *given), (rows, n), x.dtype, x.device)
    return reshape_value(g, out, sizes)


@lowering(aten._addmm_activation.default)
def addmm_activation(g: ProgramBuilder, bias: Lazy, a: Lazy, b: Lazy, *, use_gelu: bool = False) -> Any:
    """ReLU, or GELU by tanh, of a @ b + bias: cuBLASLt's, or the template's and a loop for its tile."""
    out = device_gemm(g, a, b, bias) if g.ctx.target.kind == "cuda" else None
    if out is None:
        target = aten._addmm_activation.default
        return call_extern(g, target, (bias, a, b), {"use_gelu": True} if use_gelu else {})
    return gelu(g, out, "tanh") if use_gelu else relu(g, out)


def _by_choice(g: ProgramBuilder, a: Lazy, b: Lazy, bias: Lazy | None) -> Any:
    """The product by sums of our own where those do, else by whom the measured table names, else by a rule; None where ATen is to do it."""
    if g.ctx.target.kind == "cuda":
        return device_gemm(g, a, b, bias)
    rows = reshape_value(g, a, (numel(a.sizes[:-1]), a.sizes[-1]))
    sums = _by_sums(g, rows, b, bias)
    if sums is not None:
        return reshape_value(g, sums, (*a.sizes[:-1], b.sizes[1]))
    way = g.way
    if way is Way.ONEDNN:
        function = onednn_linear()
        if function is not None and (bias is None or (bias.rank == 1 and bias.sizes[0] is b.sizes[1])):
            return call_extern(g, function, (a, permute_value(g, b, [1, 0]), bias, "none", [], ""), {})
    return gemm(g, a, b, bias, way) if way in (None, Way.OURS) else None


def gemm(g: ProgramBuilder, a: Lazy, b: Lazy, bias: Lazy | None, way: Way | None = None) -> Lazy | None:
    """The template's call, or None where it does not apply.

    Applies when 1. the option is on and all is float32 on the CPU, 2. ``b`` is a matrix of known sizes, in a
    CONSTANT buffer or worth packing in each call (as measured, if ``way`` says so), 3. the rows of ``a`` lie, or can be laid, at one stride.
    """
    if not g.ctx.options.gemm_template or g.ctx.target.kind != "cpu":
        return None
    values = [v for v in (a, b, bias) if v is not None]
    if any(v.dtype is not DType.F32 or v.device != "cpu" for v in values):
        return None
    if b.rank != 2:
        return None
    k, n = b.sizes
    constant = b.view is not None and g.buffers[b.view.buffer].kind is BufferKind.CONSTANT
    if not constant and way is not Way.OURS and not _worth_packing(g.ctx.target, numel(a.sizes[:-1]), k, n):
        return None
    view = b.view if b.view is not None and constant else g.realize(b)
    if k.value in (None, 0) or n.value in (None, 0) or not a.rank or ONE not in view.strides:
        return None
    rows = numel(a.sizes[:-1])
    if rows is ZERO or (bias is not None and bias.rank > (2 if a.rank == 2 else 1)):
        return None
    left = _as_rows(g, reshape_value(g, a, (rows, k)))
    out = _template(g, (left, view), (rows, n), bias, constant=constant)
    return reshape_value(g, out, (*a.sizes[:-1], n))


def _template(
    g: ProgramBuilder,
    given: tuple[BufferView, BufferView],
    sizes: tuple[Expr, ...],
    bias: Lazy | None,
    *,
    constant: bool = False,
) -> Lazy:
    """The template's call for results of ``sizes`` (products of a batch, rows, columns), with the bias added to each sum."""
    dtype, device, strides = given[0].dtype, g.buffers[given[0].buffer].device, contiguous_strides(sizes)
    buffer = g.new_buffer(dtype, sizes, strides, device)
    axes = tuple(Axis(axis_symbol(x, n), n) for x, n in zip("bmn"[-len(sizes) :], sizes, strict=True))
    index = [ZERO if x.extent is ONE else x.symbol for x in axes]
    value: Node = build.reduced(0, DType.F32)
    if bias is not None:
        g.realize(bias)
        place = broadcast_index(bias, len(sizes), sizes)(index)
        value = build.add(value, build.cast(bias.load(place), DType.F32))
    store = Store(buffer, linear(index, strides, ZERO), g.rounded(value, dtype))
    name, ops = g.name_step((g.op_name,)), (g.op_name,)
    g.add(TemplateCall(name, "gemm", given, axes, (store,), constant, device, ops, g.origin))
    return g.lazy(buffer)


def device_gemm(g: ProgramBuilder, a: Lazy, b: Lazy, bias: Lazy | None) -> Lazy | None:
    """The Triton template's call, or None where it does not apply or ATen is the choice."""
    values = [v for v in (a, b, bias) if v is not None]
    dtype, device = a.dtype, a.device
    if b.rank != 2 or not a.rank or any(v.dtype is not dtype or v.device != device for v in values):
        return None
    rows, (k, n) = numel(a.sizes[:-1]), b.sizes
    if device == "cpu" or k.value in (None, 0) or n.value in (None, 0) or rows is ZERO:
        return None
    if bias is not None and bias.rank > (2 if a.rank == 2 else 1):
        return None
    product = DeviceProduct(dtype.label, rows.value, k.value or 0, n.value or 0)
    arch = g.ctx.target.arch
    if writes_broken_rows(product, arch):
        # padding has left it to the template; ATen would read the matrix from memory, too
        g.realize(b)
    by_columns = b.view is not None and b.view.strides[0] is ONE
    ruled = by_columns and pays_by_rule(product, rows.bounds()[1], arch)
    if not takes_template(product, g.ctx.options.matmul_template, dict(g.ctx.device_products), ruled):
        return None
    right = g.realize(b)
    if ONE not in right.strides:
        return None
    left = _as_rows(g, reshape_value(g, a, (rows, k)))
    return reshape_value(g, _template(g, (left, right), (rows, n), bias), (*a.sizes[:-1], n))


#: fewer rows than this do not pay for packing the other matrix; one of more bytes than this is ATen's
FEW_ROWS, MANY_BYTES = 64, 64 << 20


def _worth_packing(target: Target, rows: Expr, k: Expr, n: Expr) -> bool:
    """Whether a product of a matrix that changes with each call should be the template's.

    MKL multiplies at full width on Intel's processors only: elsewhere the template takes half its time, there it takes
    longer, for the packing (training steps on a Xeon were 0.87 x eager with it).
    """
    if (
        target.vendor == "GenuineIntel"
        or k.value is None
        or n.value is None
        or k.value * n.value * 4 > MANY_BYTES
    ):
        return False
    return n.value >= 16 and k.value >= 16 and (rows.value is None or rows.value >= FEW_ROWS)


def _as_rows(g: ProgramBuilder, a: Lazy) -> BufferView:
    """The matrix with contiguous rows, or columns; copied only if neither is."""
    view = g.realize(a)
    if view.strides[0] is ONE and known_le(view.sizes[0], view.strides[1]):
        return view
    if view.strides[1] is ONE and (view.sizes[0] is ONE or known_le(view.sizes[1], view.strides[0])):
        return view
    if view.sizes[1] is ONE and view.strides[0] is ONE:
        return BufferView(view.buffer, view.sizes, (ONE, ONE), view.offset, view.dtype)
    return g.copy(a, contiguous_strides(a.sizes))


def device_batch(g: ProgramBuilder, a: Lazy, b: Lazy, bias: Lazy | None) -> Lazy | None:
    """The Triton template's call for a batch of products, or None where it does not apply or ATen is the choice."""
    product, sizes = g.batch, (*a.sizes[:2], b.sizes[2])
    if product is None or g.symbols.exprs(g.val.stride()) != contiguous_strides(sizes):
        return None
    if bias is not None and (bias.dtype is not a.dtype or bias.device != a.device):
        return None
    ruled = g.followed and pays_by_rule(product, product.rows, g.ctx.target.arch)
    if not takes_template(product, g.ctx.options.matmul_template, dict(g.ctx.device_products), ruled):
        return None
    left, right = g.realize(a), g.realize(b)
    if ONE not in left.strides[1:] or ONE not in right.strides[1:]:
        return None
    return _template(g, (left, right), sizes, bias)


#: (g, a, b, bias) -> the product by a template or by whom a table names; None where ATen is to do it
_Ours = Callable[[ProgramBuilder, Lazy, Lazy, Lazy | None], Any]


def product(target: Any, ours: _Ours, g: ProgramBuilder, a: Lazy, b: Lazy) -> Any:
    """a @ b, of a batch for each of it."""
    out = ours(g, a, b, None)
    if out is None and a.rank == 2 and b.sizes[1] is ONE and _is_slow(g, a, b):
        out = _by_vector(g, a, b)
    if out is None and _is_wide(g, (*a.sizes, b.sizes[-1]), a, b):
        out = _wide(g, a, b, None)
    return call_extern(g, target, (a, b), {}) if out is None else out


def added_product(
    target: Any,
    ours: _Ours,
    g: ProgramBuilder,
    bias: Lazy,
    a: Lazy,
    b: Lazy,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Any:
    """beta * bias + alpha * a @ b, of a batch for each of it."""
    out = ours(g, a, b, bias) if beta == 1 and alpha == 1 else None
    if out is None and _is_wide(g, (*a.sizes, b.sizes[-1]), a, b, bias):
        out = _wide(g, a, b, bias, beta, alpha)
    scales = {name: v for name, v in (("beta", beta), ("alpha", alpha)) if v != 1}
    return call_extern(g, target, (bias, a, b), scales) if out is None else out


for _lower, _ours, _target in (
    (product, _by_choice, aten.mm.default),
    (product, device_batch, aten.bmm.default),
    (added_product, _by_choice, aten.addmm.default),
    (added_product, device_batch, aten.baddbmm.default),
):
    lowering(_target)(partial(_lower, _target, _ours))


@lowering(aten.dot.default, aten.mv.default)
def by_aten(g: ProgramBuilder, *args: Any) -> Any:
    """A product with a vector: ATen's kernel is the intended way."""
    return call_extern(g, getattr(aten, g.op_name).default, args, {})


@lowering(aten.scaled_dot_product_attention.default)
def attention(
    g: ProgramBuilder, q: Lazy, k: Lazy, v: Lazy, mask: Any = None, *rest: Any, **named: Any
) -> Any:
    """softmax(q @ k.T * scale + mask) @ v by ATen's choice of kernels, which a mask narrows.

    A mask that hides nothing is left out; on a GPU one with gaps between its columns is copied, since
    only the slowest of ATen's kernels takes such a mask. An empty result is not asked for: in the layout that operands
    get here ATen may choose a kernel that divides by the number of heads, and before PyTorch 2.13 dies of none.
    """
    if ZERO in g.symbols.exprs(g.val.shape):
        return filled(g, 0)
    mask = named.pop("attn_mask", mask)
    if isinstance(mask, Lazy):
        same = constant_of(mask)
        if same is not None and same.dtype is DType.BOOL and same.attr:
            mask = None
        elif g.ctx.target.kind != "cpu" and g.realize(mask).strides[-1] is not ONE:
            mask = strided_lazy(g, g.copy(mask), mask.device)
    given = (mask, *rest) if mask is not None or rest else ()
    return call_extern(g, aten.scaled_dot_product_attention.default, (q, k, v, *given), named)
