"""Sizes that PyTorch made symbolic become our expressions."""

from __future__ import annotations

import math
import subprocess
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from braze.symbolic.border import SizeSymbols
from braze.symbolic.expr import Integer, Symbol


def symbolic(*sizes: int) -> torch.Tensor:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(sizes))
    return mode.from_tensor(torch.empty(*sizes), symbolic_context=context)


def test_numbers_stay_numbers() -> None:
    assert SizeSymbols().exprs((3, 4)) == (Integer(3), Integer(4))


def test_one_symbol_per_size() -> None:
    x = symbolic(5, 8)
    table = SizeSymbols()
    a, b = table.exprs(x.shape)
    assert isinstance(a, Symbol)
    assert a is table.expr(x.shape[0])
    assert a is not b
    assert a.bounds()[0] == 2


def test_arithmetic_carries_over() -> None:
    x = symbolic(6, 8)
    table = SizeSymbols()
    a, b = table.exprs(x.shape)
    n, m = x.shape
    assert table.expr(n * m + 3) is a * b + 3
    assert table.expr(n * n) is a * a
    assert table.expr(n // 2) is a // 2
    assert table.expr(m % 3) is b % 3
    assert table.expr(n - m) is a - b
    assert table.expr(torch.sym_max(n, m)).evaluate({a: 4, b: 9}) == 9
    assert table.expr(torch.sym_min(n, 7)).evaluate({a: 4, b: 9}) == 4


def test_a_quotient_of_any_sign_is_rounded_as_python_rounds_it() -> None:
    (n,) = symbolic(7).shape
    table = SizeSymbols()
    size, quotient = table.expr(n), (n - 10) / 4
    for rounded, rule in (
        (torch.sym_int(quotient), int),
        (math.ceil(quotient), math.ceil),
        (math.floor(quotient), math.floor),
    ):
        for k in (2, 5, 6, 9, 10, 13, 14):
            assert table.expr(rounded).evaluate({size: k}) == rule((k - 10) / 4)


def test_static_sizes_do_not_need_sympy() -> None:
    """The static path never imports it through us."""
    code = (
        "import sys; from braze.symbolic.border import SizeSymbols; SizeSymbols().exprs((1, 2)); "
        "sys.exit('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
