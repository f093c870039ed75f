"""The C library's functions of float64: their distance from 40 digits, special values, the ends of their ranges, exact remainders."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

from braze.loops.ir import DType, Op, Store
from braze.loops.scalars import SCALARS
from tests.codegen.c_bench import axis, load, nest, op

NAN, INF = math.nan, math.inf

#: operation -> (function of many digits, ranges, its values at 0, -0, inf, -inf, nan)
FUNCTIONS = {
    Op.EXP: (mpmath.exp, [(-20, 20), (-708, 709.7), (-1e-3, 1e-3)], (1, 1, INF, 0.0, NAN)),
    Op.EXPM1: (mpmath.expm1, [(-40, 709.7), (-1, 1), (-1e-9, 1e-9)], (0.0, -0.0, INF, -1, NAN)),
    Op.LOG: (mpmath.log, [(0, 1e308), (0.5, 2), (0.999, 1.001), (0, 1e-300)], (-INF, -INF, INF, NAN, NAN)),
    Op.LOG1P: (mpmath.log1p, [(-1, 2), (-1e-9, 1e-9), (0, 1e30), (-0.35, 0.5)], (0.0, -0.0, INF, NAN, NAN)),
    Op.SIN: (mpmath.sin, [(-10, 10), (-65535, 65535), (-1e6, 1e6), (3.141592, 3.141593)], (0.0, -0.0, NAN, NAN, NAN)),
    Op.COS: (mpmath.cos, [(-10, 10), (-65535, 65535), (-1e6, 1e6), (1.570796, 1.570797)], (1, 1, NAN, NAN, NAN)),
    Op.TANH: (mpmath.tanh, [(-3, 3), (-25, 25), (-1e-6, 1e-6)], (0.0, -0.0, 1, -1, NAN)),
    Op.ERF: (mpmath.erf, [(-0.9, 0.9), (-7, 7), (1.9, 2.1), (-1e-6, 1e-6)], (0.0, -0.0, 1, -1, NAN)),
    Op.SIGMOID: (lambda x: 1 / (1 + mpmath.exp(-x)), [(-30, 30), (-700, 40)], (0.5, 0.5, 1, 0.0, NAN)),
}  # fmt: skip

#: argument, function, what it gives
EDGES = [
    (709.7827128933840, Op.EXP, math.exp(709.7827128933840)), (709.79, Op.EXP, INF), (-745.13, Op.EXP, 5e-324), (-745.14, Op.EXP, 0.0),
    (-1e300, Op.EXP, 0.0), (1e300, Op.EXP, INF), (-720.0, Op.EXP, math.exp(-720.0)),
    (709.7827128933840, Op.EXPM1, math.exp(709.7827128933840)), (709.79, Op.EXPM1, INF), (-1e300, Op.EXPM1, -1.0), (5e-324, Op.EXPM1, 5e-324),
    (5e-324, Op.LOG, math.log(5e-324)), (1.7976931348623157e308, Op.LOG, math.log(1.7976931348623157e308)), (1.0, Op.LOG, 0.0), (-1e-300, Op.LOG, NAN),
    (-1.0, Op.LOG1P, -INF), (-1.5, Op.LOG1P, NAN), (1.7976931348623157e308, Op.LOG1P, math.log(1.7976931348623157e308)), (5e-324, Op.LOG1P, 5e-324),
    (5e-324, Op.TANH, 5e-324), (-1e300, Op.TANH, -1.0), (5e-324, Op.SIN, 5e-324), (1e22, Op.SIN, math.sin(1e22)), (1e22, Op.COS, math.cos(1e22)),
    (1e300, Op.ERF, 1.0), (-6.5, Op.ERF, -1.0), (-1e300, Op.SIGMOID, 0.0),
]  # fmt: skip


def evaluate(bench, which: Op, *operands: list[float] | np.ndarray) -> np.ndarray:
    """A function at every point."""
    given = {f"x{k}": torch.tensor(np.asarray(x), dtype=torch.float64) for k, x in enumerate(operands)}
    out = torch.empty_like(given["x0"])
    i = axis("i0", out.numel())
    value = op(which, *(load(name, DType.F64, i.symbol) for name in given))
    bench.run([nest([i], [Store("out", i.symbol, value)])], {**given, "out": out})
    return out.numpy()


def ulps(got: float, exact: mpmath.mpf) -> float:
    """Distance from the exact value in units of the last place there."""
    rounded = float(exact)
    if (math.isnan(got) and math.isnan(rounded)) or got == rounded:
        return 0.0
    return float(abs(mpmath.mpf(got) - exact) / mpmath.mpf(math.ulp(rounded)))


@pytest.mark.parametrize("which", FUNCTIONS, ids=lambda o: o.value)
def test_accuracy(bench, which):
    function, ranges, _ = FUNCTIONS[which]
    generator = np.random.default_rng(5)
    x = np.concatenate([generator.uniform(low, high, 1000) for low, high in ranges])
    got = evaluate(bench, which, x)
    with mpmath.workdps(40):
        found = [
            (ulps(g, function(mpmath.mpf(p))), p, g) for g, p in zip(got.tolist(), x.tolist(), strict=True)
        ]
    worst = max(found)
    assert worst[0] <= SCALARS[which].wide, (which, worst)


def equal(got: float, wanted: float) -> bool:
    if math.isnan(wanted):
        return math.isnan(got)
    return got == wanted and math.copysign(1, got) == math.copysign(1, wanted)


@pytest.mark.parametrize("which", FUNCTIONS, ids=lambda o: o.value)
def test_special_values(bench, which):
    wanted = FUNCTIONS[which][2]
    got = evaluate(bench, which, [0.0, -0.0, INF, -INF, NAN])
    assert all(map(equal, got.tolist(), wanted)), (got, wanted)


@pytest.mark.parametrize("which", FUNCTIONS, ids=lambda o: o.value)
def test_ends_of_ranges(bench, which):
    edges = [(x, wanted) for x, o, wanted in EDGES if o is which]
    for got, (x, wanted) in zip(evaluate(bench, which, [x for x, _ in edges]).tolist(), edges, strict=True):
        assert got == pytest.approx(wanted, rel=4e-16, abs=5e-324, nan_ok=True), (which, x)


def test_powers(bench):
    """Few and huge exponents, results from denormal to infinite."""
    generator = np.random.default_rng(6)
    x = np.concatenate(
        [
            generator.uniform(0, 3, 1000),
            10 ** generator.uniform(-300, 300, 1000),
            1 + generator.uniform(-1e-3, 1e-3, 1000),
        ]
    )
    y = np.concatenate([generator.uniform(-5, 5, 1000), generator.uniform(-1, 1, 1000), generator.uniform(-6e5, 6e5, 1000)])  # fmt: skip
    got = evaluate(bench, Op.POW, x, y)
    with mpmath.workdps(60):
        for g, a, b in zip(got.tolist(), x.tolist(), y.tolist(), strict=True):
            exact = mpmath.mpf(a) ** mpmath.mpf(b)
            if exact > 1e308 or exact < 2.3e-308:
                assert g == pytest.approx(float(exact), rel=1e-15, abs=5e-324), (a, b)
            else:
                assert ulps(g, exact) <= SCALARS[Op.POW].wide, (a, b, g)


def test_special_powers(bench):
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, -3.0, 1e300, 5e-324, 1e-310, INF, -INF, NAN]
    x, y = [a for a in values for _ in values], values * len(values)
    wanted = np.power(np.array(x), np.array(y))
    got = evaluate(bench, Op.POW, x, y)
    for a, b, ours, theirs in zip(x, y, got.tolist(), wanted.tolist(), strict=True):
        assert equal(ours, theirs) or ours == pytest.approx(theirs, rel=3e-16), (a, b, ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("which", [Op.FMOD, Op.REMAINDER, Op.FLOORDIV], ids=lambda o: o.value)
def test_remainders_are_exact(bench, which, dtype):
    """As eager's, at quotients of every size and at every pair of special values."""
    generator = np.random.default_rng(7)
    many, span = 20_000, 20 if dtype is torch.float32 else 200
    x, y = generator.standard_normal((2, many)) * 10 ** generator.uniform(-span, span, (2, many))
    x[: many // 2] = y[: many // 2] * generator.integers(-1000, 1000, many // 2)
    x[: many // 4] *= 1 + 2e-16 * generator.integers(-2, 3, many // 4)
    tiny = 1e-45 if dtype is torch.float32 else 5e-324
    values = [0.0, -0.0, 1.0, -1.0, 2.5, -7.0, 1e30, tiny, -3 * tiny, INF, -INF, NAN]
    x = torch.tensor([*x.tolist(), *(a for a in values for _ in values)]).double().to(dtype)
    y = torch.tensor([*y.tolist(), *(values * len(values))]).double().to(dtype)
    out, i = torch.empty_like(x), axis("i0", x.numel())
    kind = DType.F32 if dtype is torch.float32 else DType.F64
    value = op(which, load("x", kind, i.symbol), load("y", kind, i.symbol))
    bench.run([nest([i], [Store("out", i.symbol, value)])], {"x": x, "y": y, "out": out})
    eager = {Op.FMOD: torch.fmod, Op.REMAINDER: torch.remainder, Op.FLOORDIV: torch.floor_divide}[which]
    # one by one: eager's own vectors are not exact on every processor
    wanted = torch.stack([eager(a, b) for a, b in zip(x.unbind(), y.unbind(), strict=True)])
    same = ((out == wanted) & (out.signbit() == wanted.signbit())) | (out.isnan() & wanted.isnan())
    assert same.all(), (x[~same][:5], y[~same][:5], out[~same][:5], wanted[~same][:5])
