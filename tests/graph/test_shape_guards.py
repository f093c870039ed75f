"""Relations between sizes: text that holds exactly where the trace's assumptions hold."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from braze.graph.fakes import fakes
from braze.graph.fakes.fakes import spec_of
from braze.graph.sizes.shape_guards import python_text, relations
from braze.support.errors import Unsupported


def holds(found: list[tuple[str, tuple[str, ...]]], **values: int) -> bool:
    scope = {"math": math, **values}
    return all(eval(text, scope) for text, _ in found)


def traced(use: Any, *shape: int) -> tuple[list[Any], list[str]]:
    """The relations after ``use(tensor)``, and the names of the tensor's sizes."""
    real = torch.rand(shape)
    mode = fakes.new_mode(dynamic=True)
    with mode:
        fake = mode.fake(real, symbolic_dims=set(range(len(shape))), source="L[0]")
        use(fake)
    return mode.shape_relations(), [str(s) for s in spec_of(fake).sizes]


def test_sizes_are_not_zero_or_one() -> None:
    found, (a, b) = traced(lambda x: x + 1, 4, 6)
    assert holds(found, **{a: 2, b: 100})
    assert not holds(found, **{a: 1, b: 6}) and not holds(found, **{a: 4, b: 0})


def test_conditions_become_relations() -> None:
    def use(x: Any) -> None:
        if x.shape[0] % 2 == 0 and x.shape[1] // 3 >= 2:
            return

    found, (a, b) = traced(use, 4, 6)
    assert holds(found, **{a: 8, b: 7})
    assert not holds(found, **{a: 5, b: 7}) and not holds(found, **{a: 8, b: 5})
    assert all(set(names) <= {a, b} for _, names in found)


def test_a_shape_that_must_agree() -> None:
    found, (a, b) = traced(lambda x: x @ torch.ones(6, 2), 4, 6)
    assert b == "6"  # a number in the specs too
    assert holds(found, **{a: 9}) and all(set(names) == {a} for _, names in found)


def test_sizes_found_equal_are_one_symbol() -> None:
    def use(x: Any) -> None:
        assert x.shape[0] == x.shape[1] * 2

    found, sizes = traced(use, 8, 4)
    names = {n for _, ns in found for n in ns}
    assert len(names) == 1 and any("*" in size for size in sizes)
    assert holds(found, **{names.pop(): 5})


def test_an_int_symbol() -> None:
    mode = fakes.new_mode(dynamic=True)
    n = mode.symbol(7, "n")
    assert n > 3 and n % 2 == 1
    found, name = mode.shape_relations(), str(n.node.expr)
    assert holds(found, **{name: 9}) and not holds(found, **{name: 3}) and not holds(found, **{name: 8})


def test_an_int_found_to_be_a_number_or_a_size_is_held_to_it() -> None:
    real = torch.rand(5, 3)
    mode = fakes.new_mode(dynamic=True)
    with mode:
        fake = mode.fake(real, symbolic_dims={0}, source="L[0]")
        n, k = mode.symbol(7, "n"), mode.symbol(9, "k")
        assert n == 7 and k == fake.shape[0] + 4
    found, size = mode.shape_relations(), str(spec_of(fake).sizes[0])
    by_hint = {mode.symbols[name].hint: name for name in mode.ints}
    good = {by_hint[7]: 7, by_hint[9]: 12, size: 8}
    assert holds(found, **good)
    assert not holds(found, **{**good, by_hint[7]: 8}) and not holds(found, **{**good, by_hint[9]: 11})


def test_what_cannot_be_written_is_refused() -> None:
    import sympy

    with pytest.raises(Unsupported, match="BZ2010"):
        python_text(sympy.Function("Strange")(sympy.Symbol("s0")))


def test_a_static_mode_assumes_nothing() -> None:
    assert fakes.new_mode().shape_relations() == []
    assert relations(type("Env", (), {"var_to_range": {}, "guards": [], "replacements": {}})()) == []


def test_ends_of_a_range_that_every_size_keeps_are_not_asked_for() -> None:
    import sympy
    from torch.utils._sympy.value_ranges import ValueRanges

    size = sympy.Symbol("s0", integer=True)
    for end, asked in ((100, True), (2**62 - 1, True), (2**62, False), (2**63 - 1, False)):
        env = type(
            "Env", (), {"var_to_range": {size: ValueRanges(2, end)}, "guards": [], "replacements": {}}
        )()
        assert [text for text, _ in relations(env)] == ["s0 >= 2", *[f"s0 <= {end}"] * asked]
