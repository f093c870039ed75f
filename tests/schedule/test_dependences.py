"""Who reads and writes what: an index that cannot be compared is anywhere, a size that a call makes known is waited for."""

from __future__ import annotations

import dataclasses

import pytest

from braze.loops import build
from braze.loops.ir import ExternCall, LoopNest, MadeSize, Store, StoreMode, TemplateCall
from braze.schedule.facts.dependences import accesses, group_accesses, symbol_accesses
from braze.schedule.facts.records import Group, GroupKind
from braze.symbolic.expr import Symbol, indirect
from tests.schedule.programs import Builder, axes, load

MADE = Symbol("u0", 0)


def over_made_size() -> tuple[Builder, ExternCall]:
    """A call that makes a size known, and a buffer of that size."""
    b = Builder()
    b.input("x", 8)
    b.buffer("y", (MADE,))
    return b, ExternCall("c", "aten.nonzero.default", (), (), ("y",), makes=(MadeSize(MADE, 0, 0),))


@pytest.mark.parametrize("where", ["args", "atomic"])
def test_a_store_to_a_computed_place_is_anywhere(where: str) -> None:
    (axis,) = axes("i", 8)
    value = load("x", axis.symbol)
    row = build.cast(value, build.DType.I64)
    store = (
        Store("y", indirect(0), value, args=(row,))
        if where == "args"
        else Store("y", axis.symbol, value, mode=StoreMode.ADD)
    )
    found = accesses(LoopNest("n", (axis,), (), (), (store,), "cpu"))
    assert found.writes["y"] == {None}
    plain = dataclasses.replace(store, index=axis.symbol, args=(), mode=StoreMode.PLAIN)
    assert accesses(LoopNest("n", (axis,), (), (), (plain,), "cpu")).writes["y"] == {axis.symbol}


def test_a_template_reads_the_places_that_it_stores_to() -> None:
    """Their memory was taken for dead once whoever made them had run, and rows of a product were written anywhere."""
    m, n = axes("i", 4, 8)
    row = build.cast(load("places", m.symbol), build.DType.I64)
    product = build.reduced(0, build.DType.F32)
    store = Store("y", indirect(0) * 8 + n.symbol, product, args=(row,))
    found = accesses(TemplateCall("t", "gemm", (), (m, n), (store,), False))
    assert found.reads == {"places": {m.symbol}}
    assert found.writes == {"y": {None}}


def test_who_makes_a_size_known_and_who_needs_it() -> None:
    """Loops over it, and whoever touches a buffer of that size: its strides are computed from it."""
    b, call = over_made_size()
    known = frozenset((MADE,))
    assert symbol_accesses(call, known, b.buffers, ["y"]) == (set(), {"<u0>"})
    assert symbol_accesses(call, frozenset(), b.buffers, ["y"]) == (set(), set())
    (axis,) = axes("i", 8)
    nest = LoopNest("n", (axis,), (), (), (Store("x", axis.symbol, load("y", axis.symbol)),), "cpu")
    assert symbol_accesses(nest, known, b.buffers, ["x"]) == (set(), set())
    assert symbol_accesses(nest, known, b.buffers, ["y"]) == ({"<u0>"}, set())
    assert symbol_accesses(nest, known, b.buffers, ["of another program"]) == (set(), set())
    (wide,) = axes("j", MADE)
    loop = LoopNest("n", (wide,), (), (), (), "cpu")
    assert symbol_accesses(loop, known, {}, []) == ({"<u0>"}, set())


@pytest.mark.parametrize("kind", ["nest", "template", "extern"])
def test_a_kernel_waits_for_the_sizes_of_its_buffers(kind: str) -> None:
    b, _ = over_made_size()
    (axis,) = axes("i", 8)
    store = Store("x", axis.symbol, load("y", axis.symbol))
    if kind == "extern":
        group = Group("g", GroupKind.EXTERN, call=ExternCall("d", "aten.sum.default", (), (), ("y",)))
    elif kind == "template":
        step = TemplateCall("t", "gemm", (), (axis,), (store,), True, "cpu")
        group = Group("g", GroupKind.TEMPLATE, call=step, reads=("y",), writes=("x",))
    else:
        nest = LoopNest("n", (axis,), (), (), (store,), "cpu")
        group = Group("g", GroupKind.POINTWISE, (nest,), (axis,), reads=("y",), writes=("x",))
    assert "<u0>" in group_accesses(group, frozenset((MADE,)), b.buffers).reads
    assert "<u0>" not in group_accesses(group, frozenset(), b.buffers).reads
