"""Writes at computed positions: on a GPU loops of ours (``scattered.py``), else ATen's in-place kernel on a fresh copy, rather than its functional
form, which copies once more.

One value for all places of a mask is a choice, element by element: nobody needs to look for these places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from braze.loops.ir import DType
from braze.lower.elementwise.pointwise import masked_choice
from braze.lower.scatters.scattered import scattered
from braze.lower.scatters.segments import rows_added
from braze.lower.values.fallback import argument, device_of, target_name
from braze.lower.values.lazy import Lazy, dense_order
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.lower.views.views import expand_value, reshape_value
from braze.symbolic.expr import ONE

#: scatter -> the operator that does the same in place
IN_PLACE: dict[Any, Any] = {
    getattr(getattr(aten, name), overload): getattr(getattr(aten, f"{name}_"), overload)
    for name, overload in (
        ("index_put", "default"), ("index_add", "default"), ("index_copy", "default"), ("index_fill", "int_Scalar"),
        ("index_fill", "int_Tensor"),
        ("scatter", "src"), ("scatter", "value"), ("scatter_add", "default"), ("scatter_reduce", "two"),
        ("put", "default"), ("masked_scatter", "default"),
    )
}  # fmt: skip


def _row(functional: Any, in_place: Any) -> Callable[..., Any]:
    """A row: ``functional`` by ``in_place`` on a copy of its first argument."""

    def lower(g: ProgramBuilder, x: Lazy, *args: Any, **kwargs: Any) -> Any:
        if functional is aten.masked_scatter.default:  # the others write where an index says
            x = expand_value(g, x, g.symbols.exprs(g.val.shape))
        if not x.dtype.is_computable or dense_order(x.sizes, g.symbols.exprs(g.val.stride())) is None:
            return NotImplemented
        made = scattered(g, functional, x, args, kwargs)
        if made is not NotImplemented:
            return made
        rest = tuple(argument(g, a) for a in args)
        named = tuple((name, argument(g, a)) for name, a in kwargs.items())
        view = g.copy(x, g.symbols.exprs(g.val.stride()))
        g.call(
            target_name(in_place), (view, *rest), kwargs=named, mutates=(view.buffer,), device=device_of(g)
        )
        return g.lazy(view.buffer)

    return lower


ROWS = {functional: _row(functional, in_place) for functional, in_place in IN_PLACE.items()}

for _functional, _lower in ROWS.items():
    if _functional is not aten.index_put.default:
        lowering(_functional)(_lower)


@lowering(aten.index_put.default)
def index_put(
    g: ProgramBuilder, x: Lazy, indices: Sequence[Lazy | None], values: Lazy, accumulate: bool = False
) -> Any:
    """``values`` where the indices say."""
    by = rows_added if accumulate else _by_mask
    chosen = by(g, x, indices, values)
    if chosen is not NotImplemented:
        return chosen
    return ROWS[aten.index_put.default](g, x, indices, values, accumulate)


def _by_mask(g: ProgramBuilder, x: Lazy, indices: Sequence[Lazy | None], values: Lazy) -> Any:
    """``values`` where the one index, a mask, says, if they are the same at all of its places; what eager refuses is ATen's."""
    given = [(at, i) for at, i in enumerate(indices) if i is not None]
    if len(given) != 1 or given[0][1].dtype is not DType.BOOL or values.dtype is not x.dtype:
        return NotImplemented
    (at, mask), *_ = given
    end = at + len(mask.sizes)
    if mask.device != x.device or tuple(mask.sizes) != tuple(x.sizes[at:end]):
        return NotImplemented
    places = len(values.sizes) - 1 - (len(x.sizes) - end)  # the dim of them, behind those before the mask
    if places >= 0:
        if places > at or values.sizes[places].value != 1:
            return NotImplemented
        before, behind = values.sizes[:places], values.sizes[places + 1 :]
        values = reshape_value(g, values, (*before, *(ONE for _ in mask.sizes), *behind))
    if any(n.value != 1 and n != m for n, m in zip(reversed(values.sizes), reversed(x.sizes), strict=False)):
        return NotImplemented
    return masked_choice(g, reshape_value(g, mask, (*mask.sizes, *(ONE for _ in x.sizes[end:]))), values, x)
