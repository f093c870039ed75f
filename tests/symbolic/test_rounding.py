"""Whole numbers that are made of floats: a quotient of integers stands for them only where it gives the same."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import braze
from braze.support import trace
from braze.support.errors import Unsupported
from braze.symbolic.border import SizeSymbols
from tests.helpers import logged

#: what a program may make of a size: n -> a float
FLOATS = {
    "half": lambda n: n * 0.5,
    "half the other way": lambda n: 0.5 * n,
    "three halves": lambda n: n * 1.5,
    "large": lambda n: n * 1024.0,
    "minus a quarter": lambda n: n * -0.25,
    "quotient": lambda n: n / 3,
    "of less": lambda n: (n - 40) / 7,
    "by less than nothing": lambda n: n / -3,
    "of floats": lambda n: n / 2.5,
    "tenths": lambda n: n * 1.7,
    "a third": lambda n: n * (1 / 3),
    "of two steps": lambda n: (n + 2 - 3) / 2 + 1,
    "and a part": lambda n: n * 0.75 + 0.5,
    "and a third": lambda n: n / 3 + 0.25,
    "below": lambda n: n * 0.5 - 30.0,
}
RULES = {"int": (torch.sym_int, int), "floor": (math.floor, math.floor), "ceil": (math.ceil, math.ceil)}


def size(n: int) -> tuple[torch.SymInt, ShapeEnv]:
    env = ShapeEnv()
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    x = FakeTensorMode(shape_env=env).from_tensor(torch.empty(1).expand(n), symbolic_context=context)
    return x.shape[0], env


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("made", FLOATS)
def test_a_rounded_float_is_what_python_makes_of_it(made: str, rule: str) -> None:
    n, _ = size(60)
    symbolic, plain = RULES[rule]
    table = SizeSymbols()
    try:
        form = table.expr(symbolic(FLOATS[made](n)))
    except Unsupported:
        assert (made, rule) in {("tenths", "ceil")}, "no quotient of integers was found"
        return
    symbol = table.expr(n)
    for k in (*range(2, 200), 999, 1000, 30_000, 65_535):
        assert form.evaluate({symbol: k}) == plain(FLOATS[made](k)), k


@pytest.mark.parametrize("factor", [0.29, 0.7, 0.35, math.pi])
def test_a_float_that_rounds_across_an_integer_has_no_quotient(factor: float) -> None:
    # 0.29 * 100 is 28.999999999999996
    n, _ = size(60)
    with pytest.raises(Unsupported, match="BZ3002"):
        SizeSymbols().expr(math.floor(n * factor))


@pytest.mark.parametrize(("made", "most"), [("half", 1 << 51), ("quotient", 1 << 51), ("tenths", 1 << 15)])
def test_a_guard_keeps_a_size_below_what_is_known(made: str, most: int) -> None:
    n, env = size(60)
    SizeSymbols().expr(math.floor(FLOATS[made](n)))
    guards = [guard.expr for guard in env.guards]
    assert guards, "nothing was asked"
    assert all(bool(g.subs({n.node.expr: most})) for g in guards)
    assert not all(bool(g.subs({n.node.expr: 1 << 53})) for g in guards)


@pytest.mark.parametrize("made", ["half", "quotient", "tenths", "of two steps"])
def test_a_size_above_it_has_no_quotient(made: str) -> None:
    n, _ = size(1 << 60)
    with pytest.raises(Unsupported, match="floats round"):
        SizeSymbols().expr(math.floor(FLOATS[made](n)))


@pytest.mark.parametrize(
    "divide",
    [lambda n: int(n / 2), lambda n: math.floor(n * 0.5), lambda n: math.ceil(n / 3), lambda n: int(n * 1.7)],
)
def test_integers_that_are_no_floats_are_rounded_as_in_eager(divide) -> None:
    def f(x, n):
        return x + divide(n)

    compiled = braze.compile(f, dynamic=True)
    x = torch.zeros(2, dtype=torch.int64)
    for n in (7, 9, -7, 0, 1, 2**60 + 2, 2**53 + 3, 2**52 - 1, -(2**53) - 3, 70_001, 10):
        assert torch.equal(compiled(x, n), f(x, n)), n


@pytest.mark.parametrize("scale", [0.5, 1.5, 1.7, 0.3, (0.75, 1 / 3)])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_pictures_of_any_size_are_scaled_in_one_graph(scale, mode) -> None:
    def f(x):
        return F.interpolate(x * 2, scale_factor=scale, mode=mode) + 1

    compiled = braze.compile(f)
    with logged() as lines, trace.collect() as events:
        for rows, columns in ((8, 12), (9, 14), (10, 20), (33, 47), (64, 100)):
            x = torch.randn(2, 3, rows, columns)
            torch.testing.assert_close(compiled(x), f(x), rtol=1e-5, atol=1e-5)
    assert sum(kind == "capture" for kind, _ in events) == 2  # of the first size, and of all
    assert not [line for line in lines if "BZ3002" in line]
