"""Axes are split where indices divide them and it comes out even, and nowhere else."""

from __future__ import annotations

from braze.loops.ir import LoopNest, Store
from braze.schedule.facts.linear import with_linear_indices
from braze.symbolic.expr import Expr, Symbol
from tests.schedule.programs import axes, load


def extents(size: int | Expr, divisor: int | Expr) -> list[str]:
    """Of the axes of a loop that reads a transposed matrix whose rows are ``divisor`` long."""
    (axis,) = axes("i", size)
    i = axis.symbol
    index = i % divisor * (size // divisor) + i // divisor
    nest = LoopNest("n", (axis,), (), (), (Store("y", i, load("x", index)),), "cpu")
    return [str(a.extent) for a in with_linear_indices(nest).axes]


def test_an_axis_becomes_two_where_the_divisor_divides_it() -> None:
    assert extents(24, 4) == ["6", "4"]
    s = Symbol("s", 2)
    assert extents(s * 8, 8) == ["s", "8"]


def test_an_axis_stays_where_a_rest_is_left() -> None:
    assert extents(26, 4) == ["26"]
    assert len(extents(Symbol("s", 2), 8)) == 1
