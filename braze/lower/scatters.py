"""Writes at computed positions: ATen's in-place kernel on a fresh copy, rather than its functional form, which copies once more."""

from __future__ import annotations

from typing import Any

from braze.lower.fallback import argument, device_of, target_name
from braze.lower.lazy import Lazy, dense_order
from braze.lower.realize import ProgramBuilder
from braze.lower.registry import aten, lowering

#: scatter -> the operator that does the same in place
IN_PLACE: dict[Any, Any] = {
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_copy.default: aten.index_copy_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
    aten.put.default: aten.put_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
}


def _row(functional: Any, in_place: Any) -> None:
    """A row: ``functional`` by ``in_place`` on a copy of its first argument."""

    def lower(g: ProgramBuilder, x: Lazy, *args: Any, **kwargs: Any) -> Any:
        if not x.dtype.is_computable or _places_overlap(g, x):
            return NotImplemented
        rest = tuple(argument(g, a) for a in args)
        named = tuple((name, argument(g, a)) for name, a in kwargs.items())
        view = g.copy(x, g.symbols.exprs(g.val.stride()))
        g.call(
            target_name(in_place), (view, *rest), kwargs=named, mutates=(view.buffer,), device=device_of(g)
        )
        return g.lazy(view.buffer)

    lowering(functional)(lower)


def _places_overlap(g: ProgramBuilder, x: Lazy) -> bool:
    return dense_order(x.sizes, g.symbols.exprs(g.val.stride())) is None


for _functional, _in_place in IN_PLACE.items():
    _row(_functional, _in_place)
