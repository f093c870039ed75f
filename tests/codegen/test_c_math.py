"""The vector math library against float64: bounds in units of the last place, and special values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special

from braze.codegen.c.mathlib import SECTIONS
from braze.loops.ir import DType, Op, Store
from braze.loops.scalars import SCALARS
from tests.codegen.c_bench import axis, load, nest, op

#: operation -> (float64 function, ranges to test)
FUNCTIONS = {
    Op.EXP: (np.exp, [(-104, 89), (-1, 1)]),
    Op.EXP2: (np.exp2, [(-150, 128), (-1, 1)]),
    Op.EXPM1: (np.expm1, [(-30, 88), (-1, 1), (-1e-3, 1e-3)]),
    Op.LOG: (np.log, [(0, 3e38), (0.5, 2), (0, 1e-37)]),
    Op.LOG2: (np.log2, [(0, 3e38), (0.5, 2), (0, 1e-37)]),
    Op.LOG1P: (np.log1p, [(-1, 3), (-1e-3, 1e-3), (0, 3e38)]),
    Op.TANH: (np.tanh, [(-10, 10), (-1, 1), (-1e-3, 1e-3)]),
    Op.ERF: (special.erf, [(-5, 5), (-1, 1), (-1e-3, 1e-3)]),
    Op.SIGMOID: (special.expit, [(-80, 80), (-5, 5)]),
    Op.SIN: (np.sin, [(-6.3, 6.3), (-6e4, 6e4), (-1e30, 1e30)]),
    Op.COS: (np.cos, [(-6.3, 6.3), (-6e4, 6e4), (-1e30, 1e30)]),
    Op.SQRT: (np.sqrt, [(0, 3e38)]),
    Op.RSQRT: (lambda x: 1 / np.sqrt(x), [(1e-30, 3e38)]),
}
#: operation -> what it gives for 0, -0, inf, -inf, nan
SPECIAL = {
    Op.EXP: (1, 1, math.inf, 0.0, math.nan),
    Op.EXP2: (1, 1, math.inf, 0.0, math.nan),
    Op.EXPM1: (0.0, -0.0, math.inf, -1, math.nan),
    Op.LOG: (-math.inf, -math.inf, math.inf, math.nan, math.nan),
    Op.LOG2: (-math.inf, -math.inf, math.inf, math.nan, math.nan),
    Op.LOG1P: (0.0, -0.0, math.inf, math.nan, math.nan),
    Op.TANH: (0.0, -0.0, 1, -1, math.nan),
    Op.ERF: (0.0, -0.0, 1, -1, math.nan),
    Op.SIGMOID: (0.5, 0.5, 1, 0.0, math.nan),
    Op.SIN: (0.0, -0.0, math.nan, math.nan, math.nan),
    Op.COS: (1, 1, math.nan, math.nan, math.nan),
    Op.SQRT: (0.0, -0.0, math.inf, math.nan, math.nan),
    Op.RSQRT: (math.inf, -math.inf, 0.0, math.nan, math.nan),
}


def evaluate(bench, x: torch.Tensor) -> dict[Op, torch.Tensor]:
    """Every function at every point."""
    i = axis("i0", x.numel())
    v = load("x", DType.F32, i.symbol)
    out = {o.value: torch.empty_like(x) for o in FUNCTIONS}
    bench.run([nest([i], [Store(o.value, i.symbol, op(o, v)) for o in FUNCTIONS])], {"x": x, **out})
    return {o: out[o.value] for o in FUNCTIONS}


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance from the exact value in float32 units of the last place at that value."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        unit = np.spacing(np.abs(rounded), dtype=np.float32).astype(np.float64)
        error = np.abs(got.astype(np.float64) - exact) / unit
    both = (np.isnan(got) & np.isnan(rounded)) | (got == rounded)
    return np.where(both, np.minimum(np.nan_to_num(error, nan=0.0, posinf=0.0), 0.5), error)


def test_accuracy(bench):
    """Errors stay within each function's bound over its whole range."""
    generator = np.random.default_rng(5)
    places: list[np.ndarray] = []
    for _, ranges in FUNCTIONS.values():
        places += [generator.uniform(low, high, 4000) for low, high in ranges]
    x = np.concatenate(places).astype(np.float32)
    found = evaluate(bench, torch.from_numpy(x))
    at = 0
    for o, (function, ranges) in FUNCTIONS.items():
        n = 4000 * len(ranges)
        points, got = x[at : at + n], found[o].numpy()[at : at + n]
        with np.errstate(all="ignore"):
            errors = ulps(got, function(points.astype(np.float64)))
        worst = errors.argmax()
        assert errors[worst] <= SCALARS[o].ulps, (o, points[worst], got[worst], errors[worst])
        at += n


def test_special_values(bench):
    """Zeros keep their sign where they should, infinities and nan give what C's functions give."""
    found = evaluate(bench, torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan]))
    for o, wanted in SPECIAL.items():
        for got, w in zip(found[o].tolist(), wanted, strict=True):
            same = (
                math.isnan(got)
                if math.isnan(w)
                else got == w and math.copysign(1, got) == math.copysign(1, w)
            )
            assert same, (o, found[o].tolist(), wanted)


def test_denormals(bench):
    """Denormal arguments and results are not flushed."""
    x = torch.tensor([1e-40, -1e-40, 1.4e-45, -88.0, -100.0, -103.0, -130.0, -148.5])
    found = evaluate(bench, x)
    wide = x.double()
    for o in (Op.EXPM1, Op.LOG1P, Op.TANH, Op.SIN, Op.SQRT):
        function = FUNCTIONS[o][0]
        exact = torch.from_numpy(np.asarray(function(wide[:3].numpy()))).float()
        torch.testing.assert_close(found[o][:3], exact, rtol=0, atol=2e-45, equal_nan=True)
    torch.testing.assert_close(found[Op.EXP][3:6], wide[3:6].exp().float(), rtol=0, atol=2e-45)
    torch.testing.assert_close(found[Op.EXP2][6:], wide[6:].exp2().float(), rtol=0, atol=2e-45)


@pytest.mark.parametrize("o", [Op.EXP, Op.TANH, Op.ERF, Op.LOG1P], ids=lambda o: o.value)
def test_monotone(native_bench, o):
    """Neighbouring pieces of the approximations meet: no step goes the wrong way by more than rounding."""
    x = torch.linspace(-0.99, 8, 200_001)
    i = axis("i0", x.numel())
    y = torch.empty_like(x)
    native_bench.run(
        [nest([i], [Store("y", i.symbol, op(o, load("x", DType.F32, i.symbol)))])], {"x": x, "y": y}
    )
    drop = (y[:-1] - y[1:]) / y[1:].abs()
    assert drop.max() < 2.5e-7


@pytest.mark.parametrize("function", ["bz_tan_f32", "bz_pow_f64", "bz_remainder_f32", "bz_normal_i64"])
def test_the_c_library_is_called_with_clean_vector_registers(function):
    """Its functions are built without AVX, and many times slower while upper halves of registers are in use."""
    text = SECTIONS[function]
    assert text.index("__builtin_ia32_vzeroupper") < text.index("for (int l")
