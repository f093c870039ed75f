"""The vector math library against float64: bounds in units of the last place, and special values."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch
from scipy import special

from braze.codegen.c.mathlib import SECTIONS
from braze.loops.ir import DType, Node, Op, Store
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
    Op.TAN: (np.tan, [(-1.6, 1.6), (-6e4, 6e4), (-1e30, 1e30)]),
    Op.ASIN: (np.arcsin, [(-1, 1), (-1e-3, 1e-3), (0.45, 0.55)]),
    Op.ACOS: (np.arccos, [(-1, 1), (0.99, 1), (-1, -0.99)]),
    Op.ATAN: (np.arctan, [(-2, 2), (-1e-3, 1e-3), (-1e30, 1e30)]),
    Op.SINH: (np.sinh, [(-2, 2), (-89.4, 89.4), (-1e-3, 1e-3)]),
    Op.COSH: (np.cosh, [(-2, 2), (-89.4, 89.4)]),
    Op.ASINH: (np.arcsinh, [(-3, 3), (-1e-3, 1e-3), (-3e38, 3e38)]),
    Op.ACOSH: (np.arccosh, [(1, 1.01), (1, 3), (1, 3e38)]),
    Op.ATANH: (np.arctanh, [(-1, 1), (-1e-3, 1e-3), (0.999, 1)]),
    Op.LOG10: (np.log10, [(0, 3e38), (0.5, 2), (0, 1e-37)]),
    Op.ERFC: (special.erfc, [(-5, 5), (0, 10.05), (-1e-3, 1e-3)]),
    Op.SQRT: (np.sqrt, [(0, 3e38)]),
    Op.RSQRT: (lambda x: 1 / np.sqrt(x), [(1e-30, 3e38)]),
}


def _power(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.power(a, b))


#: two operands -> (float64 function, C's own for special values)
PAIRS = {
    Op.ATAN2: (np.arctan2, math.atan2),
    Op.HYPOT: (np.hypot, math.hypot),
    Op.POW: (np.power, _power),
}


def F32(x: float) -> float:
    """A number as float32 has it."""
    return float(np.float32(x))


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
    Op.TAN: (0.0, -0.0, math.nan, math.nan, math.nan),
    Op.ASIN: (0.0, -0.0, math.nan, math.nan, math.nan),
    Op.ACOS: (F32(math.pi / 2), F32(math.pi / 2), math.nan, math.nan, math.nan),
    Op.ATAN: (0.0, -0.0, F32(math.pi / 2), F32(-math.pi / 2), math.nan),
    Op.SINH: (0.0, -0.0, math.inf, -math.inf, math.nan),
    Op.COSH: (1, 1, math.inf, math.inf, math.nan),
    Op.ASINH: (0.0, -0.0, math.inf, -math.inf, math.nan),
    Op.ACOSH: (math.nan, math.nan, math.inf, math.nan, math.nan),
    Op.ATANH: (0.0, -0.0, math.nan, math.nan, math.nan),
    Op.LOG10: (-math.inf, -math.inf, math.inf, math.nan, math.nan),
    Op.ERFC: (1, 1, 0.0, 2, math.nan),
    Op.SQRT: (0.0, -0.0, math.inf, math.nan, math.nan),
    Op.RSQRT: (math.inf, -math.inf, 0.0, math.nan, math.nan),
}


#: argument, function, what it gives
EDGES = [
    (1.0, Op.ASIN, math.pi / 2),
    (-1.0, Op.ACOS, math.pi),
    (1.0, Op.ACOS, 0.0),
    (1.0, Op.ATANH, math.inf),
    (-1.0, Op.ATANH, -math.inf),
    (1.0, Op.ACOSH, 0.0),
    (89.375, Op.SINH, math.sinh(89.375)),
    (-89.5, Op.SINH, -math.inf),
    (89.5, Op.COSH, math.inf),
    (1e10, Op.ERFC, 0.0),
    (-1e10, Op.ERFC, 2.0),
    (2.0**127, Op.ASINH, math.asinh(2.0**127)),
]


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


def test_ends_of_domains(bench):
    """At the ends of their domains, and of what they can give, functions give what C's do."""
    found = evaluate(bench, torch.tensor([x for x, _, _ in EDGES]))
    for k, (x, o, wanted) in enumerate(EDGES):
        assert found[o][k].item() == pytest.approx(wanted, rel=3e-7), (o, x)


def pairs(bench, o: Op, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """A function of two operands at every pair."""
    i, out = axis("i0", x.numel()), torch.empty_like(x)
    value = op(o, load("x", DType.F32, i.symbol), load("y", DType.F32, i.symbol))
    bench.run([nest([i], [Store("out", i.symbol, value)])], {"x": x, "y": y, "out": out})
    return out.numpy()


@pytest.mark.parametrize("o", PAIRS, ids=lambda o: o.value)
def test_accuracy_of_two_operands(bench, o):
    """Errors stay within the bound for operands of like and of very unlike sizes."""
    generator = np.random.default_rng(6)
    sizes = generator.choice([1, 1e-3, 1e18, 1e37, 1e-18, 1e-38], (2, 8000))
    x, y = (generator.standard_normal((2, 8000)) * sizes).astype(np.float32)
    wide = [v.astype(np.float64) for v in (x, y)]
    with np.errstate(all="ignore"):
        errors = ulps(pairs(bench, o, torch.from_numpy(x), torch.from_numpy(y)), PAIRS[o][0](*wide))
    worst = errors.argmax()
    assert errors[worst] <= SCALARS[o].ulps, (o, x[worst], y[worst], errors[worst])


@pytest.mark.parametrize("o", PAIRS, ids=lambda o: o.value)
def test_special_values_of_two_operands(bench, o):
    """Every pair of zeros of either sign, infinities, nan and a number gives what C gives."""
    values = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan]
    x = torch.tensor([a for a in values for _ in values])
    y = torch.tensor(values * len(values))
    wanted = [F32(PAIRS[o][1](a, b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    got = pairs(bench, o, x, y)
    with np.errstate(all="ignore"):
        assert ulps(got, np.array(wanted)).max() <= 1
    assert (np.signbit(got) == np.signbit(wanted))[~np.isnan(got)].all()


def test_powers(bench):
    """Few and huge exponents, bases next to one, denormal ones and results; whole powers of negative numbers."""
    generator = np.random.default_rng(7)
    x = [
        generator.uniform(0, 3, 4000),
        1 + generator.uniform(-1e-3, 1e-3, 4000),
        10 ** generator.uniform(-45, 38, 4000),
    ]
    y = [
        generator.uniform(-5, 5, 4000),
        generator.uniform(-9e4, 9e4, 4000),
        generator.uniform(-1.2, 1.2, 4000),
    ]
    x.append(generator.uniform(-9, 9, 4000))
    y.append(generator.integers(-45, 45, 4000).astype(np.float64))
    a, b = (np.concatenate(v).astype(np.float32) for v in (x, y))
    with np.errstate(all="ignore"):
        errors = ulps(
            pairs(bench, Op.POW, torch.from_numpy(a), torch.from_numpy(b)),
            np.power(a.astype(np.float64), b.astype(np.float64)),
        )
    worst = errors.argmax()
    assert errors[worst] <= SCALARS[Op.POW].ulps, (a[worst], b[worst], errors[worst])


def test_special_powers(bench):
    """As C's of every two of zeros, ones, whole and broken, huge and tiny numbers of either sign."""
    values = [0.0, 1.0, 0.5, 1.5, 2.0, 3.0, 16777215.0, 16777216.0, 3e38, 1e-40, math.inf, math.nan]
    values += [-v for v in values]
    x, y = [a for a in values for _ in values], values * len(values)
    with np.errstate(all="ignore"):
        wanted = np.power(np.array(x, np.float32).astype(np.float64), np.array(y, np.float32)).astype(
            np.float32
        )
    got = pairs(bench, Op.POW, torch.tensor(x), torch.tensor(y))
    same = (np.isnan(got) & np.isnan(wanted)) | (
        (np.abs(got - wanted) <= np.abs(wanted) * 6e-8) | (got == wanted)
    )
    assert same.all(), [(x[k], y[k], got[k], wanted[k]) for k in np.flatnonzero(~same)]
    assert (np.signbit(got) == np.signbit(wanted))[~np.isnan(got)].all()


def test_denormals(bench):
    """Denormal arguments and results are not flushed."""
    x = torch.tensor([1e-40, -1e-40, 1.4e-45, -88.0, -100.0, -103.0, -130.0, -148.5])
    found = evaluate(bench, x)
    wide = x.double()
    for o in (
        Op.EXPM1,
        Op.LOG1P,
        Op.TANH,
        Op.SIN,
        Op.SQRT,
        Op.TAN,
        Op.ASIN,
        Op.ATAN,
        Op.SINH,
        Op.ASINH,
        Op.ATANH,
    ):
        function = FUNCTIONS[o][0]
        exact = torch.from_numpy(np.asarray(function(wide[:3].numpy()))).float()
        torch.testing.assert_close(found[o][:3], exact, rtol=0, atol=2e-45, equal_nan=True)
    torch.testing.assert_close(found[Op.EXP][3:6], wide[3:6].exp().float(), rtol=0, atol=2e-45)
    torch.testing.assert_close(found[Op.EXP2][6:], wide[6:].exp2().float(), rtol=0, atol=2e-45)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda d: d.label)
def test_what_is_rounded_to_nothing_is_not_computed(bench, dtype):
    """A masked number's exponential is 0 without underflow, which takes a processor a hundred cycles; one that has a denormal result has it."""
    libm, underflow = ctypes.CDLL("libm.so.6"), 0x10
    least = (-104.0, -151.0) if dtype is DType.F32 else (-746.0, -1076.0)
    denormal = (-100.3, -140.3) if dtype is DType.F32 else (-740.3, -1070.3)
    for o, below, near in zip((Op.EXP, Op.EXP2), least, denormal, strict=True):
        if dtype is DType.F64 and o is Op.EXP2:
            continue  # the C library's
        for numbers, computed in (([below - 0.5, -1e4, -1e9, -math.inf], False), ([near], True)):
            x = torch.tensor(numbers * 16, dtype=torch.float32 if dtype is DType.F32 else torch.float64)
            i, out = axis("i0", x.numel()), torch.full_like(x, 7)
            steps = [nest([i], [Store("out", i.symbol, op(o, load("x", dtype, i.symbol)))])]
            libm.feclearexcept(underflow)
            bench.run(steps, {"x": x, "out": out})
            assert bool(libm.fetestexcept(underflow)) is computed
            assert bool((out == 0).all()) is not computed


@pytest.mark.parametrize(
    "o", [Op.EXP, Op.TANH, Op.ERF, Op.LOG1P, Op.ATAN, Op.SINH, Op.ASINH], ids=lambda o: o.value
)
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


@pytest.mark.parametrize("function", ["bz_tan_f64", "bz_powfar_f64", "bz_fmodfar_f32", "bz_normal_i64"])
def test_the_c_library_is_called_with_clean_vector_registers(function):
    """Its functions are built without AVX, and many times slower while upper halves of registers are in use."""
    text = SECTIONS[function]
    assert text.index("__builtin_ia32_vzeroupper") < text.index("for (int l")


@pytest.mark.parametrize("low", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_bfloat16_has_the_bits_of_pytorchs_rounding(bench, low):
    """All signs, exponents and upper bits, denormals too; what is no number stays none, with its sign and quiet."""
    words = torch.arange(1 << 16) << 16 | low
    x = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).view(torch.float32)
    i = axis("i0", x.numel())
    out = torch.empty_like(x, dtype=torch.bfloat16)
    back = torch.empty_like(x)
    cast = Node(Op.CAST, DType.BF16, (load("x", DType.F32, i.symbol),))
    bench.run([nest([i], [Store("out", i.symbol, cast)])], {"x": x, "out": out, "back": back})
    numbers = ~x.isnan()
    assert torch.equal(out.view(torch.int16)[numbers], x.bfloat16().view(torch.int16)[numbers])
    assert torch.equal(out.view(torch.int16)[~numbers], ((words[~numbers] >> 16) | 0x40).to(torch.int16))
    read = Node(Op.CAST, DType.F32, (load("out", DType.BF16, i.symbol),))
    bench.run([nest([i], [Store("back", i.symbol, read)])], {"x": x, "out": out, "back": back})
    assert torch.equal(back.view(torch.int32), out.view(torch.int16).int() << 16)
