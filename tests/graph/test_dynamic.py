"""Symbolic sizes: fakes with them, what is assumed of them, and graphs that compute with them."""

from __future__ import annotations

import torch

from braze.graph.fakes import fakes
from braze.graph.fakes.fakes import spec_of
from braze.graph.nodes.specs import SymbolSpec


def test_symbolic_dims_get_symbols_and_the_strides_follow():
    mode = fakes.new_mode(dynamic=True)
    x = mode.fake(torch.randn(5, 7, 3), symbolic_dims={0, 1}, source="x")
    spec = spec_of(x)
    a, b, c = spec.sizes
    assert isinstance(a, str) and isinstance(b, str) and c == 3
    assert spec.strides == (f"3*{b}", 3, 1)
    assert mode.symbols[a] == SymbolSpec(a, 5) and mode.symbols[b] == SymbolSpec(b, 7)


def test_equal_sizes_have_symbols_of_their_own_and_zero_and_one_stay_numbers():
    mode = fakes.new_mode(dynamic=True)
    x = mode.fake(torch.randn(5, 1), symbolic_dims={0, 1}, source="x")
    y = mode.fake(torch.randn(5), symbolic_dims={0}, source="y")
    assert spec_of(x).sizes[1] == 1
    assert spec_of(x).sizes[0] != spec_of(y).sizes[0]


def holds(mode: fakes.FakeMode, **values: int) -> bool:
    return all(eval(text, {}, {n: values[n] for n in names}) for text, names in mode.shape_relations())


def test_what_the_trace_asks_of_sizes_becomes_a_relation():
    mode = fakes.new_mode(dynamic=True)
    x = mode.fake(torch.randn(6, 4), symbolic_dims={0}, source="x")
    (name,) = mode.symbols
    assert holds(mode, **{name: 6}) and not holds(mode, **{name: 1})
    with mode:
        assert x.shape[0] % 2 == 0
        assert x.shape[0] > 3
        x.view(2, -1, 4)
    assert holds(mode, **{name: 8})
    assert not holds(mode, **{name: 7})
    assert not holds(mode, **{name: 2})


def test_an_equality_makes_one_size_an_expression_of_the_other():
    mode = fakes.new_mode(dynamic=True)
    x = mode.fake(torch.randn(6), symbolic_dims={0}, source="x")
    y = mode.fake(torch.randn(9), symbolic_dims={0}, source="y")
    a, b = mode.symbols
    with mode:
        assert x.shape[0] + 3 == y.shape[0]
    sizes = [spec_of(x).sizes[0], spec_of(y).sizes[0]]
    for values in ({a: 7, b: 10}, {a: 6, b: 9}):
        assert [eval(str(s), {}, values) for s in sizes] == list(values.values())
    assert holds(mode, **{a: 7, b: 10})
    assert not all(eval(str(s), {}, {a: 7, b: 11}) == n for s, n in zip(sizes, (7, 11)))


def test_int_inputs_are_symbols_in_a_dynamic_mode_only():
    assert fakes.new_mode().symbol(5, "n") == 5
    mode = fakes.new_mode(dynamic=True)
    n = mode.symbol(5, "n")
    assert isinstance(n, torch.SymInt) and list(mode.symbols.values())[0].hint == 5
    with mode:
        assert isinstance(torch.zeros(n).shape[0], torch.SymInt)
