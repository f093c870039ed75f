"""Grouped products: rows that lie sorted by which of a batch of matrices multiplies them, as a mixture's tokens by expert."""

from __future__ import annotations

from typing import Any

from braze.loops import build
from braze.loops.ir import Axis, BufferView, DType, Store, TemplateCall
from braze.lower.values.fallback import call_extern
from braze.lower.values.lazy import Lazy
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.products import takes_grouped
from braze.symbolic.expr import ONE, ZERO, axis_symbol, linear


@lowering(aten._grouped_mm.default)
def grouped_product(
    g: ProgramBuilder, a: Lazy, b: Lazy, offs: Lazy | None = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """Rows up to ``offs[0]`` by the first matrix, from there up to ``offs[1]`` by the second, and so on: the template's, or ATen's."""
    out = None
    if bias is None and out_dtype is None and offs is not None and g.ctx.target.kind == "cuda":
        out = device_grouped(g, a, b, offs)
    if out is not None:
        return out
    named = {"offs": offs, "bias": bias, "out_dtype": out_dtype}
    given = {name: value for name, value in named.items() if value is not None}
    return call_extern(g, aten._grouped_mm.default, (a, b), given)


def device_grouped(g: ProgramBuilder, a: Lazy, b: Lazy, offs: Lazy) -> Lazy | None:
    """The template's call, or None where it does not apply or ATen is the choice."""
    which = g.grouped
    if which is None or not takes_grouped(
        which, g.ctx.options.grouped_template, dict(g.ctx.grouped), g.ctx.target.arch
    ):
        return None
    made, layout = g.symbols.exprs(g.val.shape), g.symbols.exprs(g.val.stride())
    if ZERO in made or offs.dtype is not DType.I32 or offs.rank != 1 or offs.sizes[0] is not b.sizes[0]:
        return None
    left, right, ends = (g.realize(x) for x in (a, b, offs))
    if left.strides[1] is not ONE or ONE not in right.strides[1:]:
        return None
    buffer = g.new_buffer(a.dtype, made, layout, a.device)
    axes = tuple(Axis(axis_symbol(x, n), n) for x, n in zip("mn", made, strict=True))
    index = [ZERO if x.extent is ONE else x.symbol for x in axes]
    store = Store(buffer, linear(index, layout, ZERO), g.rounded(build.reduced(0, DType.F32), a.dtype))
    name, ops = g.name_step((g.op_name,)), (g.op_name,)
    given: tuple[BufferView, ...] = (left, right, ends)
    g.add(TemplateCall(name, "grouped", given, axes, (store,), False, a.device, ops, g.origin))
    return g.lazy(buffer)
