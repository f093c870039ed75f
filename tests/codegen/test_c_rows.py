"""Reduction kernels against the interpreter: kinds, places of the row, passes over it."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from braze.loops import build
from braze.loops.ir import DType, Op, ReduceKind, Store
from braze.symbolic.expr import ZERO, Symbol, as_expr
from braze.target import cpu_target
from tests.codegen.c_bench import TORCH, Bench, axis, call, const, fold, load, nest, op, result
from tests.codegen.test_c_pointwise import values

F = DType.F32
ARG = (ReduceKind.ARGMAX, ReduceKind.ARGMIN)
PLAIN = [ReduceKind.SUM, ReduceKind.PROD, ReduceKind.MAX, ReduceKind.MIN, *ARG]


def reduce_steps(kinds, dtype, axes, row, at, out_at):
    """One nest that reduces ``x`` in several ways."""
    x = load("x", dtype, at)
    folds = [fold(k, x) for k in kinds]
    types = [DType.I64 if k in ARG else dtype for k in kinds]
    stores = [Store(k.value, out_at, result(n, t)) for n, (k, t) in enumerate(zip(kinds, types, strict=True))]
    return nest(axes, stores, row, folds), dict(zip((k.value for k in kinds), types, strict=True))


@pytest.mark.parametrize("length", [1, 7, 16, 100, 1000])
@pytest.mark.parametrize("columns", [False, True], ids=["row", "columns"])
def test_plain_kinds(bench, length, columns):
    """Sums, products, extremes and their places, along memory and across it."""
    points = 19
    i, r = axis("i0", points), axis("r0", length)
    at = r.symbol * points + i.symbol if columns else i.symbol * length + r.symbol
    step, types = reduce_steps(PLAIN, F, [i], [r], at, i.symbol)
    x = 1 + 0.1 * torch.randn(points * length)
    out = {n: torch.empty(points, dtype=TORCH[d]) for n, d in types.items()}
    bench.check([step], {"x": x}, out, rtol=1e-5, axes=[i], row_axes=[r])


@pytest.mark.parametrize(
    "dtype", [DType.U8, DType.I8, DType.I16, DType.I32, DType.I64, DType.F64], ids=lambda d: d.label
)
def test_other_types(bench, dtype):
    """Extremes of integers start from their own limits; sums of 64-bit integers are exact."""
    i, r = axis("i0", 5), axis("r0", 77)
    kinds = [ReduceKind.MAX, ReduceKind.MIN, *ARG]
    if dtype in (DType.I64, DType.F64):
        kinds.append(ReduceKind.SUM)
    step, types = reduce_steps(kinds, dtype, [i], [r], i.symbol * 77 + r.symbol, i.symbol)
    x = values(dtype, 5 * 77)
    if dtype.is_float:
        x = x.nan_to_num(0, 0, 0).clamp(-10, 10)
    out = {n: torch.empty(5, dtype=TORCH[d]) for n, d in types.items()}
    bench.check([step], {"x": x}, out, rtol=1e-13, atol=1e-13, axes=[i], row_axes=[r])


@pytest.mark.parametrize("columns", [1, 3, 16], ids=["row", "few", "vector"])
def test_places_of_truths(bench, columns):
    """The first true, the first false; the first of all where there is none."""
    i, r = axis("i0", columns), axis("r0", 77)
    step, types = reduce_steps(ARG, DType.BOOL, [i], [r], r.symbol * columns + i.symbol, i.symbol)
    x = torch.rand(77, columns) > 0.9
    x[:, 0] = columns > 1
    out = {n: torch.empty(columns, dtype=TORCH[d]) for n, d in types.items()}
    for bits in (x, ~x):
        bench.check([step], {"x": bits.flatten()}, out, axes=[i], row_axes=[r])


def test_nan_and_ties(bench):
    """A nan wins extremes and their places; the first of equals is the place; infinities count."""
    rows = torch.zeros(8, 40)
    rows[1, 33] = math.nan
    rows[2, [5, 30]] = math.nan
    rows[3, [7, 20]] = 5.0
    rows[4, [9, 38]] = -5.0
    rows[5] = -math.inf
    rows[6] = math.inf
    rows[7, 39] = 1.0
    i, r = axis("i0", 8), axis("r0", 40)
    kinds = [ReduceKind.MAX, ReduceKind.MIN, *ARG]
    step, types = reduce_steps(kinds, F, [i], [r], i.symbol * 40 + r.symbol, i.symbol)
    out = {n: torch.empty(8, dtype=TORCH[d]) for n, d in types.items()}
    bench.check([step], {"x": rows.flatten()}, out, rtol=0, axes=[i], row_axes=[r])
    step, _ = reduce_steps(kinds, F, [i], [r], r.symbol * 8 + i.symbol, i.symbol)
    bench.check([step], {"x": rows.t().flatten().contiguous()}, out, rtol=0, axes=[i], row_axes=[r])


@pytest.mark.parametrize("dtype", [F, DType.F64], ids=lambda d: d.label)
@pytest.mark.parametrize("columns", [False, True], ids=["row", "columns"])
def test_extremes_have_the_processors_instructions(bench, columns, dtype):
    """With nan wherever it stands: what the instruction alone gives is the second operand."""
    points, length = 24, 150
    x = torch.randn(points, length, dtype=TORCH[dtype])
    x[0], x[1], x[2] = 0.0, -0.0, -math.inf
    x[3] = math.inf
    for row, place in enumerate((0, 1, 64, 100, 148, 149), start=4):
        x[row, place] = math.nan
    x[10, :2], x[11, 5], x[12, 5] = math.nan, math.inf, -math.inf
    i, r = axis("i0", points), axis("r0", length)
    at = r.symbol * points + i.symbol if columns else i.symbol * length + r.symbol
    step, types = reduce_steps([ReduceKind.MAX, ReduceKind.MIN], dtype, [i], [r], at, i.symbol)
    out = {n: torch.empty(points, dtype=TORCH[d]) for n, d in types.items()}
    data = (x.t() if columns else x).flatten().contiguous()
    source = bench.kernel([step], {"x": data, **out}, axes=[i], row_axes=[r]).source
    assert f"bz_highest_{dtype.label}x" in source and f"bz_lowest_{dtype.label}x" in source
    bench.check([step], {"x": data}, out, rtol=0, axes=[i], row_axes=[r])


@pytest.mark.parametrize("columns", [False, True], ids=["row", "columns"])
def test_any_and_all(bench, columns):
    """Bools."""
    i, r = axis("i0", 37), axis("r0", 23)
    at = r.symbol * 37 + i.symbol if columns else i.symbol * 23 + r.symbol
    x = load("x", DType.BOOL, at)
    step = nest(
        [i],
        [Store("any", i.symbol, result(0, DType.BOOL)), Store("all", i.symbol, result(1, DType.BOOL))],
        [r],
        [fold(ReduceKind.ANY, x), fold(ReduceKind.ALL, op(Op.NOT, x))],
    )
    out = {n: torch.empty(37, dtype=torch.bool) for n in ("any", "all")}
    bench.check([step], {"x": torch.rand(37 * 23) < 0.05}, out, axes=[i], row_axes=[r])


def layer_norm_steps(n, at, m, r, dtype=F):
    """(x + z) normalised over the row, scaled and shifted."""
    x = op(Op.ADD, load("x", F, at), load("z", F, at))
    t = load("t", F, at)
    mean, rest = result(0, F), result(1, F)
    scale = op(Op.RSQRT, op(Op.ADD, op(Op.DIV, rest, const(float(n), F)), const(1e-5, F)))
    y = op(Op.MUL, op(Op.SUB, t, load("mu", F, m.symbol)), load("rs", F, m.symbol))
    y = op(Op.ADD, op(Op.MUL, y, load("g", F, r.symbol)), load("b", F, r.symbol))
    return [
        nest([m, r], [Store("t", at, x)]),
        nest(
            [m],
            [Store("mu", m.symbol, mean), Store("rs", m.symbol, scale)],
            [r],
            [fold(ReduceKind.WELFORD, t)],
        ),
        nest([m, r], [Store("y", at, y)]),
    ]


@pytest.mark.parametrize("n", [1, 30, 256, 1000])
def test_layer_norm_with_its_addition(bench, n):
    """Row buffers that only this kernel sees stay in scratch; results are forwarded."""
    m, r = axis("i0", 23), axis("r0", n)
    steps = layer_norm_steps(n, m.symbol * n + r.symbol, m, r)
    inputs = {k: torch.randn(23 * n) + (3 if k == "x" else 0) for k in "xz"} | {
        k: torch.randn(n) for k in "gb"
    }
    internal = {"t": F, "mu": F, "rs": F}
    group = dict(axes=[m], row_axes=[r], internal=list(internal), dtypes=internal)
    text = bench.kernel(steps, {**inputs, "y": torch.empty(1)}, **group)
    assert set(text.args) == {"x", "z", "g", "b", "y"}
    bench.check(steps, inputs, {"y": torch.empty(23 * n)}, rtol=1e-5, atol=1e-5, **group)
    group["internal"], group["dtypes"] = ["rs"], {"rs": F}
    out = {"y": torch.empty(23 * n), "t": torch.empty(23 * n), "mu": torch.empty(23)}
    bench.check(steps, inputs, out, rtol=1e-5, atol=1e-5, **group)


def softmax_steps(at, m_at, axes, row):
    x = load("x", F, at)
    e = op(Op.EXP, op(Op.SUB, x, load("mx", F, m_at)))
    return [
        nest(
            axes,
            [Store("mx", m_at, result(0, F)), Store("sm", m_at, result(1, F))],
            row,
            [fold(ReduceKind.ONLINE_SOFTMAX, x)],
        ),
        nest([*axes, *row], [Store("y", at, op(Op.DIV, e, load("sm", F, m_at)))]),
    ]


@pytest.mark.parametrize("n", [1, 5, 16, 127, 4096, 50000])
def test_softmax(bench, n):
    """One pass for the maximum, one for the exponentials, which the last pass reads again."""
    m, r = axis("i0", 7), axis("r0", n)
    steps = softmax_steps(m.symbol * n + r.symbol, m.symbol, [m], [r])
    group = dict(axes=[m], row_axes=[r], internal=["mx", "sm"], dtypes={"mx": F, "sm": F})
    x = torch.randn(7, n) * 4
    x[3] = -math.inf
    x[4, n // 2] = -math.inf
    bench.check(steps, {"x": x.flatten()}, {"y": torch.empty(7 * n)}, rtol=3e-6, **group)
    text = bench.kernel(steps, {"x": x, "y": x}, **group)
    exponentials = text.source.count("bz_exp_f32")
    once = bench.kernel(steps[:1], {"x": x, "mx": x, "sm": x}, axes=[m], row_axes=[r]).source.count(
        "bz_exp_f32"
    )
    assert exponentials == once, "the exponential is computed once per element"


def test_softmax_across_memory(bench):
    """The row's elements are far apart: vectors hold neighbouring points."""
    m, k, r = axis("i0", 3), axis("i1", 45), axis("r0", 20)
    at = (m.symbol * 20 + r.symbol) * 45 + k.symbol
    steps = softmax_steps(at, m.symbol * 45 + k.symbol, [m, k], [r])
    group = dict(axes=[m, k], row_axes=[r], internal=["mx", "sm"], dtypes={"mx": F, "sm": F})
    bench.check(steps, {"x": torch.randn(2700) * 3}, {"y": torch.empty(2700)}, rtol=2e-6, **group)


@pytest.mark.parametrize("shape", [(4, 6, 10), (2, 3, 33), (5, 1, 64)])
@pytest.mark.parametrize("inner", [0, 1, 2])
def test_several_row_axes(bench, shape, inner):
    """Rows over two axes, with the remaining axis anywhere in memory; places count in the row's order."""
    n = dict(zip("abc", shape, strict=True))
    order = ["abc", "bac", "bca"][inner]
    i, r, s = axis("i0", n["a"]), axis("r0", n["b"]), axis("r1", n["c"])
    symbols = {"a": i.symbol, "b": r.symbol, "c": s.symbol}
    at = as_expr(0)
    for letter in order:
        at = at * n[letter] + symbols[letter]
    step, types = reduce_steps(PLAIN, F, [i], [r, s], at, i.symbol)
    x = torch.randn(math.prod(shape)).round()
    out = {k: torch.empty(n["a"], dtype=TORCH[d]) for k, d in types.items()}
    bench.check([step], {"x": x}, out, rtol=1e-6, atol=1e-6, axes=[i], row_axes=[r, s])


@pytest.mark.parametrize("n", [1, 1000, 200_000, 200_003])
def test_full_reductions(bench, n):
    """Everything into one element, of long rows too, as exact as pairwise summation."""
    r = axis("r0", n)
    kinds = [ReduceKind.SUM, ReduceKind.MAX, ReduceKind.MIN, *ARG]
    step, types = reduce_steps(kinds, F, [], [r], r.symbol, as_expr(0))
    x = torch.randn(n)
    out = {k: torch.empty(1, dtype=TORCH[d]) for k, d in types.items()}
    bench.check([step], {"x": x}, out, rtol=1e-6, atol=3e-7 * math.sqrt(n), axes=[], row_axes=[r])


@pytest.mark.parametrize("columns", [False, True], ids=["row", "columns"])
def test_long_sums_round_no_worse_than_eager(native_bench, columns):
    """Sums of a million elements of one sign."""
    n, points = 1 << 18, 16
    i, r = axis("i0", points), axis("r0", n)
    at = r.symbol * points + i.symbol if columns else i.symbol * n + r.symbol
    step, _ = reduce_steps([ReduceKind.SUM], F, [i], [r], at, i.symbol)
    x = torch.rand(points * n)
    out = {"sum": torch.empty(points)}
    native_bench.run([step], {"x": x, **out}, axes=[i], row_axes=[r])
    shaped, dim = (x.view(n, points), 0) if columns else (x.view(points, n), 1)
    exact = shaped.double().sum(dim)
    ours, eager = ((y.double() - exact).abs().max() for y in (out["sum"], shaped.sum(dim)))
    assert ours <= eager + 2e-7 * exact.max()


@pytest.mark.parametrize("columns", [False, True], ids=["row", "columns"])
def test_sums_of_either_sign_round_little(native_bench, columns):
    """As the gradient of a bias or of batch norm: what is added up is much smaller than what is lost in long chains."""
    n, points = 8192, 256
    i, r = axis("i0", points), axis("r0", n)
    at = r.symbol * points + i.symbol if columns else i.symbol * n + r.symbol
    step, _ = reduce_steps([ReduceKind.SUM], F, [i], [r], at, i.symbol)
    x = torch.randn(points * n, generator=torch.Generator().manual_seed(0))
    out = {"sum": torch.empty(points)}
    native_bench.run([step], {"x": x, **out}, axes=[i], row_axes=[r])
    exact = (x.view(n, points) if columns else x.view(points, n).t()).double().sum(0)
    # one chain loses 1e-6 of the sums, chains of 64 lose 1.7e-7; what eager loses depends on the processor
    shaped, dim = (x.view(n, points), 0) if columns else (x.view(points, n), 1)
    ours, eager = ((y.double() - exact).norm() for y in (out["sum"], shaped.sum(dim)))
    assert ours <= max(1.2e-7 * exact.norm(), 1.2 * eager)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    m=st.integers(1, 40),
    n=st.integers(1, 140),
    columns=st.booleans(),
    half=st.sampled_from(["bf16", "f16", "f32"]),
)
@example(m=16, n=9, columns=True, half="f32")  # whole vectors of columns, and nothing behind them
@example(m=48, n=9, columns=True, half="f32")
def test_symbolic_rows(tmp_path, m, n, columns, half):
    """Row and points of sizes that are known only at the call, half types in memory."""
    bench = Bench(cpu_target(), tmp_path)
    dtype = next(d for d in TORCH if d.label == half)
    points, length = Symbol("s0", 1), Symbol("s1", 1)
    i, r = axis("i0", points), axis("r0", length)
    at = r.symbol * i.extent + i.symbol if columns else i.symbol * r.extent + r.symbol
    x = op(Op.CAST, load("x", dtype, at), dtype=F) if dtype is not F else load("x", F, at)
    centred = op(Op.SUB, x, load("mu", F, i.symbol))
    steps = [
        nest(
            [i],
            [Store("mu", i.symbol, result(0, F)), Store("m2", i.symbol, result(1, F))],
            [r],
            [fold(ReduceKind.WELFORD, x)],
        ),
        nest([i, r], [Store("y", at, op(Op.CAST, centred, dtype=dtype) if dtype is not F else centred)]),
    ]
    inputs = {"x": torch.randn(m * n).to(TORCH[dtype])}
    out = {"mu": torch.empty(m), "m2": torch.empty(m), "y": torch.empty(m * n, dtype=TORCH[dtype])}
    tolerance = {"bf16": 1e-2, "f16": 2e-3, "f32": 1e-5}[half]
    bench.check(
        steps,
        inputs,
        out,
        rtol=tolerance,
        atol=tolerance,
        axes=[i],
        row_axes=[r],
        sizes={points: m, length: n},
    )


def test_empty_rows_give_neutral_elements(bench):
    """A row of no elements."""
    i, r = axis("i0", 3), axis("r0", Symbol("s0", 0))
    kinds = [ReduceKind.SUM, ReduceKind.PROD]
    step, types = reduce_steps(kinds, F, [i], [r], i.symbol * r.extent + r.symbol, i.symbol)
    tensors = {"x": torch.ones(1), **{k: torch.empty(3) for k in types}}
    text = bench.kernel([step], tensors, axes=[i], row_axes=[r])
    call(bench.library(text), text, tensors, {"s0": 0})
    assert tensors["sum"].tolist() == [0, 0, 0] and tensors["prod"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("points", [1, 3])
def test_long_rows_are_shared_among_cores(native_bench, points):
    """Few points: parts of each row are folded apart, then combined; later statements follow."""
    many = Bench(dataclasses.replace(native_bench.target, cores=64), native_bench.folder)
    n, m = 300, 301
    i, r, s = axis("i0", points), axis("r0", n), axis("r1", m)
    at = (i.symbol * n + r.symbol) * m + s.symbol
    step, types = reduce_steps([ReduceKind.SUM, *ARG, ReduceKind.MAX], F, [i], [r, s], at, i.symbol)
    mean = op(Op.DIV, load("sum", F, i.symbol), const(float(n * m), F))
    steps = [step, nest([i], [Store("mean", i.symbol, mean)])]
    x = torch.randn(points * n * m)
    x[points * n * m // 2 + 7] = x[points * n * m // 2 + 70] = 9.0
    out = {k: torch.empty(points, dtype=TORCH[d]) for k, d in {**types, "mean": F}.items()}
    assert "_rest" in many.kernel(steps, {"x": x, **out}, axes=[i], row_axes=[r, s]).source
    many.check(steps, {"x": x}, out, rtol=1e-5, atol=2e-4, axes=[i], row_axes=[r, s])
    any_step = nest(
        [i],
        [Store("y", i.symbol, result(0, DType.BOOL))],
        [r, s],
        [fold(ReduceKind.ANY, load("x", DType.BOOL, at))],
    )
    bits = torch.zeros(points * n * m, dtype=torch.bool)
    bits[n * m - 1] = True
    many.check(
        [any_step], {"x": bits}, {"y": torch.empty(points, dtype=torch.bool)}, axes=[i], row_axes=[r, s]
    )


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        ((3, 34, 9, 50), (40_000, 1000, 100, 1)),  # stretches that lie apart
        ((2, 60, 300), (10, 20, 1350)),  # read across
        ((5, 7, 1030), (0, 3000, 2)),  # each read several times, every other number
    ],
)
@pytest.mark.parametrize("special", [9.0, float("nan"), float("-inf")])
def test_long_rows_of_several_axes_are_shared(native_bench, sizes, strides, special):
    """Each element is in one part, the last one too."""
    many = Bench(dataclasses.replace(native_bench.target, cores=64), native_bench.folder)
    rows = [axis(f"r{k}", n) for k, n in enumerate(sizes)]
    at = sum((r.symbol * step for r, step in zip(rows, strides, strict=True)), ZERO)
    step, types = reduce_steps([ReduceKind.SUM, *ARG, ReduceKind.MAX], F, [], rows, at, ZERO)
    x = torch.randn(1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)))
    x[-1] = special
    out = {k: torch.empty(1, dtype=TORCH[d]) for k, d in types.items()}
    assert "_rest" in many.kernel([step], {"x": x, **out}, axes=[], row_axes=rows).source
    many.check([step], {"x": x}, out, rtol=1e-5, atol=2e-4, axes=[], row_axes=rows)


#: vector columns that fill strips, leave some over, or are fewer than a vector; rows in several parts
COLUMNS = [(400, 70), (64, 5000), (7, 2000), (130, 900), (1500, 3)]


@pytest.mark.parametrize(("points", "length"), COLUMNS)
@pytest.mark.parametrize("kinds", [[ReduceKind.SUM, ReduceKind.MAX], PLAIN], ids=len)
def test_columns_side_by_side(bench, points, length, kinds):
    """Strips of several vectors, rows that are shared among cores, and what is left over of both."""
    i, r = axis("i0", points), axis("r0", length)
    step, types = reduce_steps(kinds, F, [i], [r], r.symbol * points + i.symbol, i.symbol)
    x = 1 + 0.01 * torch.randn(points * length)
    if ReduceKind.PROD in kinds:
        x = 1 + 0.1 / length * torch.randn(points * length)
    out = {n: torch.empty(points, dtype=TORCH[d]) for n, d in types.items()}
    rtol = 1e-5 if ReduceKind.PROD not in kinds else 2e-4
    bench.check([step], {"x": x}, out, rtol=rtol, axes=[i], row_axes=[r])


@pytest.mark.parametrize("points", [64, 500, 1000])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_parts_of_columns_fit_on_the_stack(tmp_path, points, number):
    """Rows are cut in as many parts as a stack should hold the results of."""
    bench = Bench(dataclasses.replace(cpu_target(), cores=64), tmp_path)
    i, r = axis("i0", points), axis("r0", 4096)
    kinds = [ReduceKind.SUM, ReduceKind.PROD, ReduceKind.MAX, ReduceKind.MIN][:number]
    step, types = reduce_steps(kinds, F, [i], [r], r.symbol * points + i.symbol, i.symbol)
    tensors = {"x": torch.empty(1), **{n: torch.empty(1, dtype=TORCH[d]) for n, d in types.items()}}
    taken = re.findall(r"char parts\[(\d+)\]", bench.kernel([step], tensors, axes=[i], row_axes=[r]).source)
    assert taken and all(int(n) <= 128 << 10 for n in taken)


@pytest.mark.parametrize("points", [17, 24, 100])
def test_parts_of_columns_of_two_types_lie_where_their_vectors_may(tmp_path, points):
    """Instructions for whole vectors of doubles ask for multiples of their bytes, also behind an odd number of vectors of floats."""
    bench = Bench(dataclasses.replace(cpu_target(), cores=8), tmp_path)
    i, r = axis("i0", points), axis("r0", 3000)
    x = load("x", F, r.symbol * points + i.symbol)
    folds = [fold(ReduceKind.SUM, x), fold(ReduceKind.SUM, build.cast(x, DType.F64))]
    stores = [Store(n, i.symbol, result(k, t)) for k, (n, t) in enumerate([("a", F), ("b", DType.F64)])]
    step = nest([i], stores, [r], folds)
    tensors = {
        "x": torch.randn(3000 * points),
        "a": torch.empty(points),
        "b": torch.empty(points, dtype=torch.float64),
    }
    source = bench.kernel([step], tensors, axes=[i], row_axes=[r]).source
    places = re.findall(r"parts \+ \w+\*(\d+) \+ (\d+)", source)
    assert places
    assert not any(int(n) % cpu_target().vector_bytes for place in places for n in place)
    bench.run([step], tensors, axes=[i], row_axes=[r])
    wide = tensors["x"].double().view(3000, points).sum(0)
    torch.testing.assert_close(tensors["b"], wide)
    torch.testing.assert_close(tensors["a"], wide.float(), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("points", "length"), COLUMNS)
def test_variances_of_columns_and_what_follows(bench, points, length):
    """Two passes over the rows of a strip, with values of each column between and after them."""
    i, r = axis("i0", points), axis("r0", length)
    moments = fold(ReduceKind.WELFORD, load("x", F, r.symbol * points + i.symbol))
    scaled = op(Op.DIV, op(Op.MUL, result(1, F), load("w", F, i.symbol)), const(float(length), F))
    stores = [Store("mean", i.symbol, result(0, F)), Store("var", i.symbol, scaled)]
    x, w = 3 + torch.randn(points * length), torch.randn(points)
    out = {"mean": torch.empty(points), "var": torch.empty(points)}
    bench.check([nest([i], stores, [r], [moments])], {"x": x, "w": w}, out, rtol=1e-4, axes=[i], row_axes=[r])


def test_shared_columns_do_not_depend_on_the_threads(tmp_path):
    """The parts of the rows are combined in their order, whoever folded them."""
    x = torch.randn(6000 * 48)
    i, r = axis("i0", 48), axis("r0", 6000)
    step, _ = reduce_steps([ReduceKind.SUM], F, [i], [r], r.symbol * 48 + i.symbol, i.symbol)
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2, before):
        torch.set_num_threads(threads)
        out = {"sum": torch.empty(48)}
        bench = Bench(dataclasses.replace(cpu_target(), cores=4), tmp_path)
        bench.run([step], {"x": x, **out}, axes=[i], row_axes=[r])
        found.append(out["sum"])
    torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found)


def test_a_value_of_each_column_that_lives_in_the_group_alone(bench):
    """A mean that is stored nowhere, used by a second pass and by a step after it."""
    points, length = 400, 70
    i, r = axis("i0", points), axis("r0", length)
    x = load("x", F, r.symbol * points + i.symbol)
    mean = nest(
        [i],
        [Store("mean", i.symbol, op(Op.MUL, result(0, F), const(1 / length, F)))],
        [r],
        [fold(ReduceKind.SUM, x)],
    )
    off = op(Op.SUB, x, load("mean", F, i.symbol))
    spread = nest(
        [i], [Store("spread", i.symbol, result(0, F))], [r], [fold(ReduceKind.SUM, op(Op.MUL, off, off))]
    )
    both = nest(
        [i], [Store("y", i.symbol, op(Op.ADD, load("spread", F, i.symbol), load("mean", F, i.symbol)))]
    )
    bench.check(
        [mean, spread, both], {"x": 1 + torch.randn(points * length)}, {"y": torch.empty(points)}, rtol=1e-4,
        axes=[i], row_axes=[r], internal=("mean", "spread"), dtypes={"mean": F, "spread": F},
    )  # fmt: skip
