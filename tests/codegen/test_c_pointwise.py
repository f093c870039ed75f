"""Pointwise kernels against the interpreter: operations, types, places in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braze.loops.ir import DType, Op, Store, StoreMode
from braze.runtime.operators import philox
from braze.symbolic.expr import Symbol, as_expr, indirect
from braze.target import cpu_target
from tests.codegen.c_bench import TORCH, Bench, axis, call, const, load, nest, op

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.5,
    -2.5,
    3.5,
    1e-40,
    -1e-40,
    1e30,
    math.inf,
    -math.inf,
    math.nan,
    7.25,
    -7.75,
]
UNARY = [
    Op.NEG, Op.ABS, Op.SIGN, Op.SQRT, Op.RSQRT, Op.RECIPROCAL, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND, Op.EXP, Op.EXP2,
    Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG10, Op.LOG1P, Op.SIN, Op.COS, Op.TAN, Op.ASIN, Op.ACOS, Op.ATAN, Op.SINH, Op.COSH,
    Op.TANH, Op.ASINH, Op.ACOSH, Op.ATANH, Op.ERF, Op.ERFC, Op.SIGMOID,
]  # fmt: skip
BINARY = [
    Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAXIMUM, Op.MINIMUM, Op.POW, Op.ATAN2, Op.HYPOT, Op.COPYSIGN, Op.FMOD,
    Op.REMAINDER, Op.FLOORDIV, Op.TRUNCDIV,
]  # fmt: skip
TESTS = [Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE]
SIMPLE = {
    Op.NEG,
    Op.ABS,
    Op.SIGN,
    Op.SQRT,
    Op.FLOOR,
    Op.CEIL,
    Op.TRUNC,
    Op.ROUND,
    Op.ADD,
    Op.SUB,
    Op.MUL,
    Op.DIV,
}
INTEGERS = [DType.U8, DType.I8, DType.I16, DType.I32, DType.I64]


def values(dtype: DType, n: int = 61, seed: int = 0) -> torch.Tensor:
    """Special values first, then random ones."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is DType.BOOL:
        return torch.randint(0, 2, (n,), generator=generator).bool()
    if dtype.is_integer:
        info = torch.iinfo(TORCH[dtype])
        random = torch.randint(max(info.min, -(2**40)), min(info.max, 2**40), (n,), generator=generator)
        edge = torch.tensor([info.min, info.max, 0, 1, 2, 3, 5] + ([-1, -3] if info.min else []))
        return torch.cat([edge, random]).to(TORCH[dtype])[:n]
    return torch.cat([torch.tensor(SPECIAL), torch.randn(n, generator=generator) * 3]).to(TORCH[dtype])[:n]


def pairs(dtype: DType, n: int = 61) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of special values, then random ones."""
    a = values(dtype, 16)
    x, y = a.repeat_interleave(16), a.repeat(16)
    return torch.cat([x, values(dtype, n, 1)]), torch.cat([y, values(dtype, n, 2)])


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda d: d.label)
def test_float_unary(bench, dtype):
    """Every function of one float, on special values too, side by side in one kernel."""
    x = values(dtype, 100)
    i = axis("i0", x.numel())
    v = load("x", dtype, i.symbol)
    stores = [Store(o.value, i.symbol, op(o, v)) for o in UNARY]
    out = {o.value: torch.empty_like(x) for o in UNARY}
    bench.check([nest([i], stores)], {"x": x}, out, rtol=4e-7 if dtype is DType.F32 else 4e-15, atol=1e-44)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda d: d.label)
def test_float_binary(bench, dtype):
    """Every function of two floats on all pairs of special values."""
    x, y = pairs(dtype)
    i = axis("i0", x.numel())
    a, b = load("x", dtype, i.symbol), load("y", dtype, i.symbol)
    stores = [Store(o.value, i.symbol, op(o, a, b)) for o in BINARY]
    stores += [Store(o.value, i.symbol, op(o, a, b, dtype=DType.BOOL)) for o in TESTS]
    out = {o.value: torch.empty_like(x) for o in BINARY}
    out |= {o.value: torch.empty(x.shape, dtype=torch.bool) for o in TESTS}
    bench.check(
        [nest([i], stores)], {"x": x, "y": y}, out, rtol=2e-7 if dtype is DType.F32 else 1e-15, atol=1e-44
    )


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda d: d.label)
def test_exact_float_operations_are_exact(native_bench, dtype):
    """Arithmetic, rounding and tests give the very bits, signs of zero included."""
    x, y = pairs(dtype)
    i = axis("i0", x.numel())
    a, b = load("x", dtype, i.symbol), load("y", dtype, i.symbol)
    ops = sorted(SIMPLE, key=lambda o: o.value)
    binary = {Op.ADD, Op.SUB, Op.MUL, Op.DIV}
    stores = [Store(o.value, i.symbol, op(o, a, b) if o in binary else op(o, a)) for o in ops]
    stores += [Store(o.value, i.symbol, op(o, a, dtype=DType.BOOL)) for o in (Op.ISNAN, Op.ISINF, Op.SIGNBIT)]
    out = {o.value: torch.empty_like(x) for o in ops}
    out |= {o.value: torch.empty(x.shape, dtype=torch.bool) for o in (Op.ISNAN, Op.ISINF, Op.SIGNBIT)}
    native_bench.check([nest([i], stores)], {"x": x, "y": y}, out, rtol=0)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda d: d.label)
def test_quotients_and_remainders_are_exact(bench, dtype):
    """Signs of zero included, and quotients that lie next to an integer."""
    x, y = pairs(dtype)
    tenths = torch.arange(-60, 61, dtype=torch.float64).mul(0.1).to(x.dtype)
    by = torch.tensor([0.1, -0.1, 0.3, 0.7, 1e-3], dtype=x.dtype)
    x = torch.cat([x, tenths.repeat(len(by))])
    y = torch.cat([y, by.repeat_interleave(len(tenths))])
    i = axis("i0", x.numel())
    a, b = load("x", dtype, i.symbol), load("y", dtype, i.symbol)
    ops = (Op.FLOORDIV, Op.TRUNCDIV, Op.REMAINDER, Op.FMOD)
    out = {o.value: torch.empty_like(x) for o in ops}
    bench.check(
        [nest([i], [Store(o.value, i.symbol, op(o, a, b)) for o in ops])], {"x": x, "y": y}, out, rtol=0
    )


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.label)
def test_integer_operations(bench, dtype):
    """Integers wrap; quotients round as their names say."""
    x, y = pairs(dtype)
    y[y == 0] = 3
    shift = torch.randint(0, dtype.itemsize * 8 - 1, x.shape).to(x.dtype)
    i = axis("i0", x.numel())
    a, b, s = (load(n, dtype, i.symbol) for n in "xys")
    binary = [Op.ADD, Op.SUB, Op.MUL, Op.FLOORDIV, Op.TRUNCDIV, Op.REMAINDER, Op.FMOD, Op.MAXIMUM, Op.MINIMUM]
    binary += [Op.AND, Op.OR, Op.XOR]
    stores = [Store(o.value, i.symbol, op(o, a, b)) for o in binary]
    stores += [Store(o.value, i.symbol, op(o, a)) for o in (Op.NEG, Op.ABS, Op.SIGN, Op.NOT)]
    stores += [Store(o.value, i.symbol, op(o, a, s)) for o in (Op.SHL, Op.SHR)]
    stores += [Store(o.value, i.symbol, op(o, a, b, dtype=DType.BOOL)) for o in TESTS]
    out = {t.buffer: torch.empty(x.shape, dtype=TORCH[t.value.dtype]) for t in stores}
    bench.check([nest([i], stores)], {"x": x, "y": y, "s": shift}, out)


def test_bool_operations(bench):
    """Logic, comparisons and choices of bools."""
    x, y = values(DType.BOOL, 77, 1), values(DType.BOOL, 77, 2)
    i = axis("i0", 77)
    a, b = load("x", DType.BOOL, i.symbol), load("y", DType.BOOL, i.symbol)
    stores = [Store(o.value, i.symbol, op(o, a, b)) for o in (Op.AND, Op.OR, Op.XOR, *TESTS)]
    stores.append(Store("not", i.symbol, op(Op.NOT, a)))
    stores.append(Store("where", i.symbol, op(Op.WHERE, a, b, const(True, DType.BOOL), dtype=DType.BOOL)))
    out = {t.buffer: torch.empty(77, dtype=torch.bool) for t in stores}
    bench.check([nest([i], stores)], {"x": x, "y": y}, out)


@pytest.mark.parametrize("source", list(TORCH), ids=lambda d: d.label)
def test_casts(bench, source):
    """Every type into every other, also where the result is cast on: what does not fit has wrapped or is rounded before."""
    x = values(source, 70)
    if source.is_float:
        x = x.nan_to_num(1.0, 100.0, 3.0).clamp(0, 120)
    i = axis("i0", x.numel())
    a = load("x", source, i.symbol)
    there = {d: op(Op.CAST, a, dtype=d) for d in TORCH}
    stores = [Store(f"to_{d.label}", i.symbol, b) for d, b in there.items()]
    stores += [Store(f"past_{d.label}", i.symbol, op(Op.CAST, b, dtype=DType.F64)) for d, b in there.items()]
    out = {f"to_{d.label}": torch.empty(x.shape, dtype=t) for d, t in TORCH.items()}
    out |= {f"past_{d.label}": torch.empty(x.shape, dtype=torch.float64) for d in TORCH}
    bench.check([nest([i], stores)], {"x": x}, out, rtol=0)


@pytest.mark.parametrize("source", [d for d in TORCH if d.is_float], ids=lambda d: d.label)
def test_floats_beyond_an_integer_type_are_cast_as_eager_casts_them(bench, source):
    """By lanes, for one number that all share, and in the interpreter."""
    beyond = [
        math.nan,
        math.inf,
        -math.inf,
        1e30,
        -1e30,
        3e9,
        -3e9,
        2.0**31,
        2.0**32 + 5,
        2.0**63,
        -(2.0**63),
        7e4,
        300,
        -1.5,
    ]
    x = torch.tensor([*beyond, *(n + 0.5 for n in range(9))], dtype=torch.float64).to(TORCH[source])
    i = axis("i0", len(x))
    whole = [d for d in TORCH if d.is_integer]
    stores = [
        Store(f"to_{d.label}", i.symbol, op(Op.CAST, load("x", source, i.symbol), dtype=d)) for d in whole
    ]
    stores += [
        Store(f"one{k}_{d.label}", i.symbol, op(Op.CAST, load("x", source, k), dtype=d))
        for d in whole
        for k in (0, 8)
    ]
    eager = {s.buffer: x.to(TORCH[s.value.dtype]) for s in stores}
    eager = {n: v if n.startswith("to_") else v[int(n[3])].expand(len(x)) for n, v in eager.items()}
    out = {n: torch.empty(len(x), dtype=v.dtype) for n, v in eager.items()}
    bench.check([nest([i], stores)], {"x": x}, out, rtol=0)
    bench.run([nest([i], stores)], tensors := {"x": x, **out})
    assert all(torch.equal(tensors[n], v) for n, v in eager.items())


@pytest.mark.parametrize("half", [DType.F16, DType.BF16], ids=lambda d: d.label)
def test_half_types_round_to_nearest_even(bench, half):
    """Conversions to half types round ties to even, keep nan and infinities, and overflow to infinity."""
    bits = torch.randint(-(2**31), 2**31 - 1, (4099,), dtype=torch.int64).to(torch.int32)
    x = torch.cat(
        [bits.view(torch.float32), torch.tensor(SPECIAL), torch.randn(999), torch.randn(999) * 1e-6]
    )
    ties = torch.randn(512).to(TORCH[half]).view(torch.int16)
    middle = (ties.to(torch.int32) << 16) + 0x8000 if half is DType.BF16 else ties.to(torch.int32)
    x = torch.cat([x, middle.view(torch.float32), torch.tensor([65519.0, 65520.0, 65536.0, 3.39e38])])
    i = axis("i0", x.numel())
    a = load("x", DType.F32, i.symbol)
    y = torch.empty(x.shape, dtype=TORCH[half])
    bench.run([nest([i], [Store("y", i.symbol, op(Op.CAST, a, dtype=half))])], tensors := {"x": x, "y": y})
    wanted = x.to(TORCH[half])
    got = tensors["y"]
    assert ((got == wanted) | (got.isnan() & wanted.isnan())).all()
    back = torch.empty(x.shape)
    b = op(Op.CAST, load("y", half, i.symbol), dtype=DType.F32)
    bench.run([nest([i], [Store("z", i.symbol, b)])], {"y": got, "z": back})
    assert ((back == got.float()) | back.isnan()).all()


def test_bitcast(bench):
    """Bits are kept."""
    x = values(DType.F32, 61)
    i = axis("i0", 61)
    a = load("x", DType.F32, i.symbol)
    as_int = op(Op.BITCAST, a, dtype=DType.I32)
    stores = [Store("y", i.symbol, as_int), Store("z", i.symbol, op(Op.BITCAST, as_int, dtype=DType.F32))]
    bench.check(
        [nest([i], stores)], {"x": x}, {"y": torch.empty(61, dtype=torch.int32), "z": torch.empty(61)}, rtol=0
    )


BITS = [(DType.F32, DType.I32), (DType.I32, DType.F32), (DType.F64, DType.I64), (DType.I64, DType.F64),
        (DType.F16, DType.I16), (DType.I16, DType.BF16), (DType.U8, DType.I8), (DType.I8, DType.U8)]  # fmt: skip


def test_bitcast_of_one_number_for_all(native_bench):
    """Outside vectors, of each width."""
    i = axis("i0", 19)
    x = {f"x{k}": values(a, 3)[1:2] for k, (a, _) in enumerate(BITS)}
    y = {f"y{k}": torch.empty(19, dtype=TORCH[b]) for k, (_, b) in enumerate(BITS)}
    stores = [
        Store(f"y{k}", i.symbol, op(Op.BITCAST, load(f"x{k}", a, 0), dtype=b))
        for k, (a, b) in enumerate(BITS)
    ]
    native_bench.run([nest([i], stores)], tensors := {**x, **y})
    for k, (_, b) in enumerate(BITS):
        assert (tensors[f"y{k}"].view(torch.uint8).view(19, -1) == x[f"x{k}"].view(torch.uint8)).all(), b


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 37), min_size=1, max_size=4),
    order=st.permutations(range(4)),
    broadcast=st.integers(0, 15),
    dtype=st.sampled_from([DType.F32, DType.F64, DType.BF16, DType.I64, DType.U8]),
    avx2=st.booleans(),
)
def test_any_layout(tmp_path, sizes, order, broadcast, dtype, avx2):
    """Permuted, broadcast and offset operands, contiguous and permuted results."""
    target = cpu_target()
    if avx2 and target.vector_bytes == 64:
        target = type(target)("cpu", "x86-64-avx2", ("avx2", "fma", "f16c"), 32, target.cores)
    axes = [axis(f"i{k}", n) for k, n in enumerate(sizes)]
    total = math.prod(sizes)

    def place(which):
        at, step = as_expr(0), 1
        for k in which:
            at, step = at + axes[k].symbol * step, step * sizes[k]
        return at

    ranked = [k for k in order if k < len(sizes)]
    permuted, plain = place(ranked), place(reversed(range(len(sizes))))
    some = place([k for k in reversed(range(len(sizes))) if broadcast >> k & 1])
    x, y, z = (values(dtype, total + 3, k) for k in range(3))
    a, b, c = load("x", dtype, plain), load("y", dtype, permuted + 3), load("z", dtype, some)
    if dtype is DType.BF16:
        wide = [op(Op.CAST, v, dtype=DType.F32) for v in (a, b, c)]
        total_value = op(Op.CAST, op(Op.ADD, op(Op.ADD, wide[0], wide[1]), wide[2]), dtype=dtype)
    else:
        total_value = op(Op.ADD, op(Op.ADD, a, b), c)
    stores = [Store("p", plain, total_value), Store("q", permuted, op(Op.NEG, a))]
    out = {n: torch.zeros(total, dtype=TORCH[dtype]) for n in "pq"}
    Bench(target, tmp_path).check([nest(axes, stores)], {"x": x, "y": y, "z": z}, out, rtol=0)


def test_steps_forward_what_they_store(bench):
    """A later step reads an earlier one's result; an internal buffer has no memory at all."""
    i = axis("i0", 1000)
    x = load("x", DType.F32, i.symbol)
    steps = [
        nest([i], [Store("t", i.symbol, op(Op.MUL, x, x))]),
        nest([i], [Store("y", i.symbol, op(Op.ADD, load("t", DType.F32, i.symbol), x))]),
        nest([i], [Store("z", i.symbol, op(Op.NEG, load("y", DType.F32, i.symbol)))]),
    ]
    out = {"y": torch.empty(1000), "z": torch.empty(1000)}
    text = bench.kernel(steps, {"x": torch.empty(1000), **out}, internal=["t"], dtypes={"t": DType.F32})
    assert "t" not in text.args
    bench.check(steps, {"x": torch.randn(1000)}, out, internal=["t"], dtypes={"t": DType.F32}, rtol=0)


def test_in_place(bench):
    """A kernel may write over what it reads, and later steps see the new values."""
    i = axis("i0", 100)
    x = load("x", DType.F32, i.symbol)
    one = const(1.0, DType.F32)
    steps = [
        nest([i], [Store("y", i.symbol, op(Op.MUL, x, x))]),
        nest([i], [Store("x", i.symbol, op(Op.ADD, x, one))]),
        nest([i], [Store("z", i.symbol, op(Op.MUL, x, x))]),
    ]
    out = {"x": torch.randn(100), "y": torch.empty(100), "z": torch.empty(100)}
    bench.check(steps, {}, out, rtol=0)


def test_values_of_a_step_come_before_its_stores(bench):
    """Two stores of one step that read what the other writes: a swap."""
    i = axis("i0", 100)
    x, y = load("x", DType.F32, i.symbol), load("y", DType.F32, i.symbol)
    step = nest([i], [Store("x", i.symbol, op(Op.NEG, y)), Store("y", i.symbol, x)])
    bench.check([step], {}, {"x": torch.randn(100), "y": torch.randn(100)}, rtol=0)


def test_symbolic_sizes(bench):
    """One kernel serves every size, from none to many blocks."""
    n, m = Symbol("s0", 0), Symbol("s1", 0)
    i, j = axis("i0", n), axis("i1", m)
    at = i.symbol * m + j.symbol
    steps = [nest([i, j], [Store("y", at, op(Op.EXP, load("x", DType.F32, at)))])]
    text = bench.kernel(steps, {"x": torch.empty(1), "y": torch.empty(1)})
    library = bench.library(text)
    for rows, columns in [(0, 5), (5, 0), (1, 1), (3, 7), (2, 16), (7, 100), (1, 9000), (300, 333)]:
        x, y = torch.randn(rows * columns + 1), torch.full((rows * columns + 1,), 7.0)
        call(library, text, {"x": x, "y": y}, {"s0": rows, "s1": columns})
        torch.testing.assert_close(y[:-1], x[:-1].exp(), rtol=1e-6, atol=0)
        assert y[-1] == 7, "wrote past the end"


@pytest.mark.parametrize("n", [1, 15, 16, 17, 100])
def test_masked_loads_stay_inside(bench, n):
    """Padding: a load is not done where its condition does not hold."""
    i = axis("i0", 3)
    j = axis("i1", n + 9)
    inside = op(
        Op.AND,
        op(Op.GE, op(Op.INDEX, dtype=DType.I64, attr=j.symbol - 4), const(0, DType.I64), dtype=DType.BOOL),
        op(Op.LT, op(Op.INDEX, dtype=DType.I64, attr=j.symbol - 4), const(n, DType.I64), dtype=DType.BOOL),
    )
    value = op(Op.MUL, load("x", DType.F32, i.symbol * n + j.symbol - 4), load("s", DType.F32, i.symbol))
    masked = op(Op.MASKED, inside, value, const(-5.0, DType.F32), dtype=DType.F32)
    out = {"y": torch.empty(3 * (n + 9))}
    steps = [nest([i, j], [Store("y", i.symbol * (n + 9) + j.symbol, masked)])]
    bench.check(steps, {"x": torch.randn(3 * n), "s": torch.randn(3)}, out, rtol=0)


def test_masked_by_row_and_nested(bench):
    """A condition of the row is a branch; conditions nest; a gather inside is guarded too."""
    i, j = axis("i0", 6), axis("i1", 21)
    row = op(Op.LT, op(Op.INDEX, dtype=DType.I64, attr=i.symbol), const(4, DType.I64), dtype=DType.BOOL)
    odd = op(Op.EQ, op(Op.INDEX, dtype=DType.I64, attr=j.symbol % 2), const(1, DType.I64), dtype=DType.BOOL)
    gathered = load("x", DType.F32, (i.symbol * 21 + j.symbol) // 2)
    inner = op(Op.MASKED, odd, gathered, const(2.0, DType.F32), dtype=DType.F32)
    outer = op(Op.MASKED, row, op(Op.NEG, inner), const(9.0, DType.F32), dtype=DType.F32)
    by_row = op(Op.MASKED, row, load("x", DType.F32, j.symbol), const(1.0, DType.F32), dtype=DType.F32)
    other = op(Op.MASKED, odd, by_row, const(3.0, DType.F32), dtype=DType.F32)
    at = i.symbol * 21 + j.symbol
    out = {"y": torch.empty(126), "z": torch.empty(126)}
    bench.check(
        [nest([i, j], [Store("y", at, outer), Store("z", at, other)])], {"x": torch.randn(42)}, out, rtol=0
    )


def test_gather_rows_and_elements(bench):
    """Indices read from memory: whole rows (embedding), single elements, and scattered stores."""
    ids = torch.tensor([3, 0, 6, 6, 1])
    i, j = axis("i0", 5), axis("i1", 19)
    row = op(Op.CHECK_INDEX, load("ids", DType.I64, i.symbol), attr=as_expr(7))
    embedded = load("w", DType.F32, indirect(0) * 19 + j.symbol, row)
    column = load("cols", DType.I64, j.symbol)
    element = load("w", DType.F32, indirect(0) * 19 + indirect(1), row, column)
    at = i.symbol * 19 + j.symbol
    stores = [Store("y", at, embedded), Store("z", at, element)]
    inputs = {"ids": ids, "w": torch.randn(7 * 19), "cols": torch.randint(0, 19, (19,))}
    bench.check([nest([i, j], stores)], inputs, {"y": torch.empty(95), "z": torch.empty(95)}, rtol=0)


def test_bad_index_sets_the_status(bench):
    """An index out of range reads nothing there and is reported."""
    i = axis("i0", 40)
    row = op(Op.CHECK_INDEX, load("ids", DType.I64, i.symbol), attr=as_expr(7))
    steps = [nest([i], [Store("y", i.symbol, load("w", DType.F32, indirect(0), row))])]
    ids = torch.zeros(40, dtype=torch.int64)
    tensors = {"ids": ids, "w": torch.randn(7), "y": torch.empty(40)}
    assert bench.run(steps, tensors) == 0
    for bad in (7, -1, 2**40):
        ids[33] = bad
        assert bench.run(steps, tensors) == 1


def test_accumulating_stores(bench):
    """Several points may add to one element."""
    i = axis("i0", 1000)
    index = load("ids", DType.I64, i.symbol)
    ids = torch.randint(0, 5, (1000,))
    for dtype in (DType.F32, DType.I64):
        x = values(dtype, 1000).nan_to_num(0, 0, 0).clamp(-50, 50)
        steps = [nest([i], [Store("y", indirect(0), load("x", dtype, i.symbol), StoreMode.ADD, (index,))])]
        bench.check(steps, {"ids": ids, "x": x}, {"y": torch.ones(5, dtype=TORCH[dtype])}, rtol=1e-4)


def test_index_values(bench):
    """Index expressions as values: ramps, quotients, remainders, wide and narrow."""
    i, j = axis("i0", 13), axis("i1", 50)
    flat = i.symbol * 50 + j.symbol

    def value(e, dtype=DType.I64):
        node = op(Op.INDEX, dtype=DType.I64, attr=as_expr(e))
        return node if dtype is DType.I64 else op(Op.CAST, node, dtype=dtype)

    stores = [
        Store("a", flat, value(j.symbol * 3 - 7)),
        Store("b", flat, value(flat // 7 + flat % 5)),
        Store("c", flat, value(j.symbol, DType.F32)),
        Store("d", flat, op(Op.LE, value(j.symbol), value(i.symbol), dtype=DType.BOOL)),
        Store("e", flat, op(Op.MUL, value(flat), const(2**33, DType.I64))),
        Store("f", flat, value((j.symbol - 20) // 3)),
    ]
    out = {s.buffer: torch.empty(650, dtype=TORCH[s.value.dtype]) for s in stores}
    bench.check([nest([i, j], stores)], {}, out)


def test_random_numbers_are_philox(bench):
    """Uniform numbers follow the published generator; normal ones have their moments."""
    n = 4096
    i = axis("i0", n)
    seed = load("seed", DType.I64, 0)
    offset = op(Op.INDEX, dtype=DType.I64, attr=i.symbol)
    stores = [
        Store(kind, i.symbol, op(Op.RANDOM, seed, offset, dtype=DType.F32, attr=kind))
        for kind in ("uniform", "normal")
    ]
    tensors = {"seed": torch.zeros(1, dtype=torch.int64), "uniform": torch.empty(n), "normal": torch.empty(n)}
    bench.run([nest([i], stores)], tensors)
    # Random123's known answer for a zero key and counter begins 6627e8d5
    assert tensors["uniform"][0].item() == (0x6627E8D5 >> 8) * 2.0**-24
    assert 0 <= tensors["uniform"].min() and tensors["uniform"].max() < 1
    assert abs(tensors["uniform"].mean() - 0.5) < 0.02
    assert abs(tensors["normal"].mean()) < 0.06 and abs(tensors["normal"].std() - 1) < 0.05


def test_no_axes(bench):
    """A single element needs no loop."""
    x = load("x", DType.F32, 0)
    stores = [Store("y", as_expr(0), op(Op.EXP, op(Op.ADD, x, const(1.0, DType.F32))))]
    bench.check([nest([], stores)], {"x": torch.randn(1)}, {"y": torch.empty(1)}, axes=[])


@pytest.mark.parametrize(
    "dtype", [DType.F32, DType.I32, DType.BF16, DType.F64, DType.BOOL], ids=lambda d: d.label
)
@pytest.mark.parametrize("shape", [(32, 48), (33, 50), (8, 8), (100, 17)])
def test_transposes_go_through_squares(bench, dtype, shape):
    """What runs across the stores is turned square by square, with short squares at the edges."""
    n, m = shape
    i, j, k = axis("i0", 3), axis("i1", n), axis("i2", m)
    across = (i.symbol * m + k.symbol) * n + j.symbol
    along = (i.symbol * n + j.symbol) * m + k.symbol
    x, z = load("x", dtype, across), load("z", dtype, along)
    value = op(Op.WHERE, op(Op.EQ, x, z, dtype=DType.BOOL), x, z, dtype=dtype)
    steps = [nest([i, j, k], [Store("y", along, value), Store("w", along, x)])]
    inputs = {"x": values(dtype, 3 * n * m, 1), "z": values(dtype, 3 * n * m, 2)}
    out = {name: torch.empty(3 * n * m, dtype=TORCH[dtype]) for name in "yw"}
    assert "bz_turn_" in bench.kernel(steps, {**inputs, **out}).source
    bench.check(steps, inputs, out, rtol=0)


def _below(j, bound, which=Op.LT):
    return op(
        which, op(Op.INDEX, dtype=DType.I64, attr=as_expr(j)), const(bound, DType.I64), dtype=DType.BOOL
    )


@pytest.mark.parametrize(("n", "m"), [(32, 32), (20, 45), (1, 64), (64, 1)])
def test_concatenations_are_cut_at_their_seams(bench, n, m):
    """Rows of two tensors side by side: each part is a loop of its own, without tests or masks."""
    rows, width = 70, n + m
    i, j = axis("i0", rows), axis("i1", width)
    left = op(Op.NEG, load("x", DType.F32, i.symbol * n + j.symbol))
    right = load("z", DType.F32, i.symbol * m + j.symbol - n)
    first = _below(j.symbol, n)
    rest = op(Op.MASKED, op(Op.NOT, first), right, const(0.0, DType.F32), dtype=DType.F32)
    value = op(Op.MASKED, first, left, rest, dtype=DType.F32)
    steps = [nest([i, j], [Store("y", i.symbol * width + j.symbol, value)])]
    inputs = {"x": torch.randn(rows * n), "z": torch.randn(rows * m)}
    out = {"y": torch.empty(rows * width)}
    assert "bz_sel" not in bench.kernel(steps, {**inputs, **out}).source
    bench.check(steps, inputs, out, rtol=0)


@pytest.mark.parametrize("which", [Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE])
@pytest.mark.parametrize("backwards", [False, True])
def test_every_comparison_is_cut_where_it_changes(native_bench, which, backwards):
    """Edges of all four orders and of single places, for ramps up and down, inside and outside the loop."""
    i, j = axis("i0", 65), axis("i1", 40)
    x = load("x", DType.F32, i.symbol * 40 + j.symbol)
    stores = []
    for k, bound in enumerate((-1, 0, 1, 39, 40, 41)):
        e = as_expr(39) - j.symbol if backwards else as_expr(j.symbol)
        value = op(Op.WHERE, _below(e, bound, which), x, op(Op.NEG, x), dtype=DType.F32)
        stores.append(Store(f"y{k}", i.symbol * 40 + j.symbol, value))
    for s in stores:
        native_bench.check(
            [nest([i, j], [s])], {"x": torch.randn(2600)}, {s.buffer: torch.empty(2600)}, rtol=0
        )


@pytest.mark.parametrize("first", [0, 2**31 - 20, 2**32 - 20, 2**40 + 7])
def test_random_numbers_are_the_references(bench, first):
    """All 64 bits of the seed and of the place count, in vectors and for a single number."""
    n = 77
    i = axis("i0", n)
    key = load("seed", DType.I64, 0)

    def number(place, kind):
        offset = op(Op.INDEX, dtype=DType.I64, attr=as_expr(place))
        return op(Op.RANDOM, key, offset, dtype=DType.F32, attr=kind)

    stores = [Store(kind, i.symbol, number(i.symbol + first, kind)) for kind in ("uniform", "normal")]
    steps = [nest([i], stores), nest([], [Store("one", as_expr(0), number(first + 3, "uniform"))])]
    places = np.arange(first, first + n)
    for seed in (0, 12345, 2**32 + 1, -(2**62) + 7, -1):
        tensors = {"seed": torch.tensor([seed]), "one": torch.empty(1)}
        tensors |= {kind: torch.empty(n) for kind in ("uniform", "normal")}
        assert bench.run(steps, tensors) == 0
        uniform = torch.from_numpy(philox.uniform(seed, places))
        assert torch.equal(tensors["uniform"], uniform)
        assert torch.equal(tensors["one"], uniform[3:4])
        normal = torch.from_numpy(philox.normal(seed, places))
        torch.testing.assert_close(tensors["normal"], normal, rtol=1e-5, atol=2e-6)
