"""Depthwise convolutions on a GPU by our own kernels: a channel's window sees that channel alone, so that memory is all they wait for."""

from __future__ import annotations

from collections.abc import Sequence

from braze.loops import build
from braze.loops.build import nodes_of
from braze.loops.ir import Axis, BufferKind, BufferView, DType, Op, Store, TemplateCall, Window
from braze.lower.values.lazy import Lazy
from braze.lower.values.realize import ProgramBuilder
from braze.products import Depthwise, takes_depthwise
from braze.symbolic.expr import ONE, ZERO, axis_symbol, linear


def device_depthwise(
    g: ProgramBuilder,
    x: Lazy,
    weight: Lazy,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Lazy | None:
    """The template's call, without the bias; None where it does not apply or ATen is the choice."""
    words = (*stride, *padding, *dilation)
    if (
        x.rank != 4
        or x.dtype is not weight.dtype
        or x.device != weight.device
        or len(words) != 6
        or any(type(n) is not int for n in words)
    ):
        return None
    channels, *rest = (e.value for e in (*weight.sizes, *x.sizes[2:]))
    if not channels or None in rest or weight.sizes[1] is not ONE:
        return None
    made, layout = g.symbols.exprs(g.val.shape), g.symbols.exprs(g.val.stride())
    last = _lies_last(layout)
    _, down, across, high, wide = (int(n or 0) for n in rest)
    pairs = [(int(first), int(second)) for first, second in (stride, padding, dilation)]
    window = Window(pairs[0], pairs[1], pairs[2], last)
    which = Depthwise(
        x.dtype.label, x.sizes[0].value, channels, (high, wide), (down, across), window.stride, window.padding, window.dilation, last
    )  # fmt: skip
    wanted = g.ctx.options.depthwise_template
    if ZERO in made or not takes_depthwise(which, wanted, dict(g.ctx.depthwise), g.ctx.target.arch):
        return None
    if wanted is None and not _is_constant(g, weight):  # windows would be copied in each call
        return None
    pictures, weights = g.realize(x), _channels_together(g, weight, last)
    n, c, h, w = (Axis(axis_symbol(name, size), size) for name, size in zip("nchw", made, strict=True))
    index = [ZERO if a.extent is ONE else a.symbol for a in (n, c, h, w)]
    buffer = g.new_buffer(x.dtype, made, layout, x.device)
    store = Store(buffer, linear(index, layout, ZERO), g.rounded(build.reduced(0, DType.F32), x.dtype))
    axes = (n, h, w, c) if last else (n, c, h, w)
    name, ops = g.name_step((g.op_name,)), (g.op_name,)
    g.add(
        TemplateCall(name, "depthwise", (pictures, weights), axes, (store,), False, x.device, ops, g.origin, window=window)
    )  # fmt: skip
    return g.lazy(buffer)


def _is_constant(g: ProgramBuilder, weight: Lazy) -> bool:
    """Whether a weight is a parameter as it is, turned or cast: what is made of it is made once."""
    places = [ZERO if size is ONE else axis_symbol(f"w{d}", size) for d, size in enumerate(weight.sizes)]
    read = [n.attr[0] for n in nodes_of(weight.load(places)) if n.op is Op.LOAD]
    return all(g.buffers[name].kind is BufferKind.CONSTANT for name in read)


def _lies_last(strides: Sequence[object]) -> bool:
    """Whether results lie with their channels beside each other."""
    return strides[1] is ONE and strides[3] is not ONE


def _channels_together(g: ProgramBuilder, weight: Lazy, last: bool) -> BufferView:
    """The windows as [channels, rows, columns]; where channels lie beside each other in a copy in which theirs do, too, made once of a weight."""
    c, _, h, w = weight.sizes
    view = g.realize(weight)
    if last and view.strides[0] is not ONE:
        view = g.copy(weight, (ONE, c, w * c, c))
    return BufferView(view.buffer, (c, h, w), (view.strides[0], *view.strides[2:]), view.offset, view.dtype)
