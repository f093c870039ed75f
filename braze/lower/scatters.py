"""Writes at computed positions: ATen's in-place kernel on a fresh copy, rather than its functional form, which copies once more."""

from __future__ import annotations

from typing import Any

from braze.lower.fallback import argument, device_of, target_name
from braze.lower.lazy import Lazy, dense_order
from braze.lower.realize import ProgramBuilder
from braze.lower.registry import aten, lowering

#: scatter -> the operator that does the same in place
IN_PLACE: dict[Any, Any] = {
    getattr(getattr(aten, name), overload): getattr(getattr(aten, f"{name}_"), overload)
    for name, overload in (
        ("index_put", "default"), ("index_add", "default"), ("index_copy", "default"), ("index_fill", "int_Scalar"),
        ("scatter", "src"), ("scatter", "value"), ("scatter_add", "default"), ("scatter_reduce", "two"),
        ("put", "default"), ("masked_scatter", "default"),
    )
}  # fmt: skip


def _row(functional: Any, in_place: Any) -> None:
    """A row: ``functional`` by ``in_place`` on a copy of its first argument."""

    def lower(g: ProgramBuilder, x: Lazy, *args: Any, **kwargs: Any) -> Any:
        if not x.dtype.is_computable or dense_order(x.sizes, g.symbols.exprs(g.val.stride())) is None:
            return NotImplemented
        rest = tuple(argument(g, a) for a in args)
        named = tuple((name, argument(g, a)) for name, a in kwargs.items())
        view = g.copy(x, g.symbols.exprs(g.val.stride()))
        g.call(
            target_name(in_place), (view, *rest), kwargs=named, mutates=(view.buffer,), device=device_of(g)
        )
        return g.lazy(view.buffer)

    lowering(functional)(lower)


for _functional, _in_place in IN_PLACE.items():
    _row(_functional, _in_place)
