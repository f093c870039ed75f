"""Columns that no cache holds, walked by blocks in the order of memory, against the interpreter: kinds, types, what is left over, passes that read what earlier ones found."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from braze.loops.ir import DType, Op, ReduceKind, Store
from braze.schedule.cpu import processors
from braze.symbolic.expr import Symbol
from braze.target import cpu_target
from tests.codegen.c_bench import TORCH, Bench, axis, const, fold, load, nest, op, result
from tests.codegen.test_c_pointwise import values
from tests.codegen.test_c_rows import PLAIN, reduce_steps
from tests.helpers import together

F = DType.F32
SUM, MAX, MIN = ReduceKind.SUM, ReduceKind.MAX, ReduceKind.MIN
#: columns that fill strips and blocks, leave some over, or are hardly more than a vector; rows that do so with what is added at a time
SHAPES = [(17, 5000), (33, 33), (65, 100), (130, 900), (96, 64), (2500, 48), (4111, 40)]


@pytest.fixture(params=[1, 4], ids=lambda n: f"{n} cores")
def blocks(request, bench, monkeypatch) -> Bench:
    """Kernels that take all columns by blocks, however few bytes these are."""
    monkeypatch.setattr(processors, "_FAR", 0)
    return Bench(dataclasses.replace(bench.target, cores=request.param), bench.folder)


def by_blocks(bench: Bench, steps, tensors, **group) -> bool:
    """Whether the text adds a few rows at a time to what it holds."""
    return f" + {processors._HELD_ROWS} < " in bench.kernel(steps, tensors, **group).source


@pytest.mark.parametrize(("points", "length"), SHAPES)
@pytest.mark.parametrize("kinds", [[SUM], PLAIN], ids=len)
def test_all_kinds(blocks, points, length, kinds):
    i, r = axis("i0", points), axis("r0", length)
    step, types = reduce_steps(kinds, F, [i], [r], r.symbol * points + i.symbol, i.symbol)
    x = 1 + 0.1 / length * torch.randn(points * length)
    out = {n: torch.empty(points, dtype=TORCH[d]) for n, d in types.items()}
    assert by_blocks(blocks, [step], {"x": x, **out}, axes=[i], row_axes=[r])
    blocks.check([step], {"x": x}, out, rtol=2e-4 if len(kinds) > 1 else 1e-5, axes=[i], row_axes=[r])


@pytest.mark.parametrize(
    "dtype", [DType.U8, DType.I32, DType.I64, DType.F16, DType.BF16, DType.F64], ids=lambda d: d.label
)
def test_other_types(blocks, dtype):
    points, length = 75, 90
    i, r = axis("i0", points), axis("r0", length)
    wide = dtype if dtype in (DType.I64, DType.F64) else F if dtype.is_float else DType.I64
    x = load("x", dtype, r.symbol * points + i.symbol)
    folds = [fold(SUM, op(Op.CAST, x, dtype=wide) if wide is not dtype else x), fold(MAX, x)]
    stores = [Store("sum", i.symbol, result(0, wide)), Store("max", i.symbol, result(1, dtype))]
    data = values(dtype, points * length)
    if dtype.is_float:
        data = data.nan_to_num(0, 0, 0).clamp(-10, 10)
    out = {"sum": torch.empty(points, dtype=TORCH[wide]), "max": torch.empty(points, dtype=TORCH[dtype])}
    group = {"axes": [i], "row_axes": [r]}
    assert by_blocks(blocks, [nest([i], stores, [r], folds)], {"x": data, **out}, **group)
    blocks.check([nest([i], stores, [r], folds)], {"x": data}, out, rtol=1e-5, atol=1e-4, **group)


def test_special_values(blocks):
    """nan, infinities and the sign of zeros, in whole vectors and in what is left of a row."""
    points, length = 37, 50
    x = torch.randn(length, points)
    for column in (0, 8, 33, 36):
        x[7, column] = math.nan
    for column in (1, 9, 34):
        x[20, column] = math.inf
    x[21, 9] = -math.inf
    x[:, [2, 35]] = -0.0
    i, r = axis("i0", points), axis("r0", length)
    at = r.symbol * points + i.symbol
    for kinds, rtol in (([MAX, MIN, ReduceKind.ARGMAX, ReduceKind.ARGMIN], 0), ([SUM], 1e-5)):
        step, types = reduce_steps(kinds, F, [i], [r], at, i.symbol)
        out = {n: torch.empty(points, dtype=TORCH[d]) for n, d in types.items()}
        blocks.check(
            [step], {"x": x.flatten()}, out, rtol=rtol, atol=1e-5 * (rtol > 0), axes=[i], row_axes=[r]
        )


@pytest.mark.parametrize(("points", "length"), SHAPES)
def test_later_passes_read_what_earlier_ones_found(blocks, points, length):
    """Variances, with a value of each column between and after the passes over its rows."""
    i, r = axis("i0", points), axis("r0", length)
    moments = fold(ReduceKind.WELFORD, load("x", F, r.symbol * points + i.symbol))
    scaled = op(Op.DIV, op(Op.MUL, result(1, F), load("w", F, i.symbol)), const(float(length), F))
    stores = [Store("mean", i.symbol, result(0, F)), Store("var", i.symbol, scaled)]
    step = nest([i], stores, [r], [moments])
    x, w = 3 + torch.randn(points * length), torch.randn(points)
    out = {"mean": torch.empty(points), "var": torch.empty(points)}
    assert by_blocks(blocks, [step], {"x": x, "w": w, **out}, axes=[i], row_axes=[r])
    blocks.check([step], {"x": x, "w": w}, out, rtol=1e-4, axes=[i], row_axes=[r])


def test_a_mean_that_is_stored_nowhere_and_rows_that_are_written(blocks):
    """What lives in the group alone is read by the next pass, which stores a matrix and folds it."""
    points, length = 133, 70
    i, r = axis("i0", points), axis("r0", length)
    at = r.symbol * points + i.symbol
    x = load("x", F, at)
    mean = nest(
        [i], [Store("mean", i.symbol, op(Op.MUL, result(0, F), const(1 / length, F)))], [r], [fold(SUM, x)]
    )
    off = op(Op.SUB, x, load("mean", F, i.symbol))
    y = nest([i, r], [Store("y", at, off)])
    top = nest([i], [Store("top", i.symbol, result(0, F))], [r], [fold(MAX, off)])
    inputs = {"x": torch.randn(points * length)}
    out = {"y": torch.empty(points * length), "top": torch.empty(points)}
    group = {"axes": [i], "row_axes": [r], "internal": ("mean",), "dtypes": {"mean": F}}
    assert by_blocks(blocks, [mean, y, top], {**inputs, **out}, **group)
    blocks.check([mean, y, top], inputs, out, rtol=1e-5, atol=1e-5, **group)


def test_other_points_and_rows_of_two_axes(blocks):
    """Batches of matrices whose rows lie in two axes, with a number of each row and one of each column."""
    b, i, q, r = axis("i0", 3), axis("i1", 45), axis("r0", 5), axis("r1", 21)
    at = ((b.symbol * 6 + q.symbol) * 22 + r.symbol) * 50 + i.symbol
    row = load("m", F, q.symbol * 21 + r.symbol)
    value = op(Op.MUL, op(Op.SUB, load("x", F, at), row), load("w", F, i.symbol))
    step = nest([b, i], [Store("y", b.symbol * 45 + i.symbol, result(0, F))], [q, r], [fold(SUM, value)])
    inputs = {"x": torch.randn(3 * 6 * 22 * 50), "m": torch.randn(105), "w": torch.randn(45)}
    out = {"y": torch.empty(135)}
    group = {"axes": [b, i], "row_axes": [q, r]}
    assert by_blocks(blocks, [step], {**inputs, **out}, **group)
    blocks.check([step], inputs, out, rtol=1e-5, atol=1e-4, **group)


@pytest.mark.parametrize(
    ("points", "length"), [(1, 40), (7, 100), (16, 16), (100, 1), (2100, 33), (50, 0), (0, 50)]
)
def test_sizes_that_vary(blocks, points, length):
    """One kernel for any size: none, one, fewer than a vector, more than a block."""
    n, m = Symbol("s0", 0, None), Symbol("s1", 0, None)
    i, r = axis("i0", n), axis("r0", m)
    step, types = reduce_steps([SUM, MAX], F, [i], [r], r.symbol * n + i.symbol, i.symbol)
    x = torch.randn(max(points * length, 1))
    out = {k: torch.empty(points, dtype=TORCH[d]) for k, d in types.items()}
    group = {"axes": [i], "row_axes": [r]}
    assert by_blocks(blocks, [step], {"x": x, **out}, **group)
    blocks.check([step], {"x": x}, out, rtol=1e-5, atol=1e-5, sizes={n: points, m: length}, **group)


def test_blocks_do_not_depend_on_the_threads(tmp_path):
    """Parts of the rows of a block are combined in their order, whoever folded them."""
    x = torch.randn(1100 * 300)
    i, r = axis("i0", 300), axis("r0", 1100)
    step, _ = reduce_steps([SUM], F, [i], [r], r.symbol * 300 + i.symbol, i.symbol)
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2, before):
        torch.set_num_threads(threads)
        out = {"sum": torch.empty(300)}
        bench = Bench(dataclasses.replace(cpu_target(), cores=4), tmp_path)
        assert by_blocks(bench, [step], {"x": x, **out}, axes=[i], row_axes=[r])
        bench.run([step], {"x": x, **out}, axes=[i], row_axes=[r])
        found.append(out["sum"])
    torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found)


def test_as_in_eager_from_a_megabyte_on():
    """Whole programs over windows and columns that lie anywhere, of each type, as exact as eager's."""
    base = torch.randn(700, 500)
    given = [
        base,
        base[3:, 7:],
        base[::2, ::1],
        base.expand(3, 700, 500),
        base.bfloat16().repeat(2, 1),
        base.double(),
    ]

    def program(x):
        return x.sum(-2), x.amax(-2), x.mean(-2), x.var(-2), (x.relu() * 2).sum(-2)

    for x, ours in zip(given, together(*((program, x) for x in given)), strict=True):
        for mine, theirs, exact in zip(ours, program(x), program(x.double()), strict=True):
            off, allowed = (mine.double() - exact).abs().max(), (theirs.double() - exact).abs().max()
            assert off <= 1.5 * allowed + 1e-5, (x.shape, x.dtype, off, allowed)
