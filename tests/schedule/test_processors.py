"""Plans of a processor's kernels: where vectors lie, what a task takes, what is kept between phases, and what all costs."""

from __future__ import annotations

import math

import pytest

from braze.loops.ir import Buffer, BufferKind, DType, Op, ReduceKind, Store, StoreMode
from braze.schedule.cpu.processors import plan_kernel
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group, GroupKind
from braze.symbolic.expr import ONE, ZERO, Symbol
from braze.target import Target
from tests.codegen.c_bench import axis, const, fold, load, nest, op, result

F, D = DType.F32, DType.F64
SUM = ReduceKind.SUM


def plan(steps, dtypes, *, axes=None, row_axes=(), internal=(), cores=4, vector_bytes=64):
    """The plan of one group for a processor of 16 lanes of floats."""
    buffers = {n: Buffer(n, d, (ONE,), (ONE,), "cpu", BufferKind.TEMPORARY) for n, d in dtypes.items()}
    kind = GroupKind.LOOPED if row_axes else GroupKind.POINTWISE
    points = steps[0].axes if axes is None else tuple(axes)
    group = Group("k", kind, tuple(steps), points, tuple(row_axes), tuple(internal))
    return plan_kernel(group, buffers, Target("cpu", "x", (), vector_bytes, cores))


def copied(i, j, at, dtype=F):
    """``y = -x``, ``x`` read elsewhere than ``y`` is written."""
    value = op(Op.NEG, load("x", dtype, at))
    return plan([nest([i, j], [Store("y", i.symbol * j.extent + j.symbol, value)])], {"x": dtype, "y": dtype})


def summed(points, length, *, columns, cores=4, dtype=F, vector_bytes=64, folds=1):
    """Sums of a matrix's rows, or of its columns."""
    i, r = axis("i0", points), axis("r0", length)
    at = r.symbol * i.extent + i.symbol if columns else i.symbol * r.extent + r.symbol
    stores = [Store(f"y{k}", i.symbol, result(k, dtype)) for k in range(folds)]
    values = [op(Op.MUL, load("x", dtype, at), const(k + 1.0, dtype)) for k in range(folds)]
    step = nest([i], stores, [r], [fold(SUM, value) for value in values])
    dtypes = {"x": dtype, **{store.buffer: dtype for store in stores}}
    made = plan([step], dtypes, axes=[i], row_axes=[r], cores=cores, vector_bytes=vector_bytes)
    return made, i, r


def test_vectors_lie_along_memory_and_few_points_are_cut_in_blocks():
    i, j = axis("i0", 3), axis("i1", 10_000)
    found = copied(i, j, i.symbol * 10_000 + j.symbol)
    assert (found.form, found.vector, found.lanes, found.outer) == (Form.FLAT, j, 16, (i,))
    assert found.points[0].block == 4096 and found.tasks.value == 3 * 3
    many = copied(axis("i0", 64), j, axis("i0", 64).symbol * 10_000 + j.symbol)
    assert many.points == () and many.tasks.value == 64


def test_what_is_read_across_is_turned_in_squares():
    i, j = axis("i0", 48), axis("i1", 64)
    found = copied(i, j, j.symbol * 48 + i.symbol)
    assert (
        found.form is Form.TILED
        and len(found.turned) == 1
        and {found.vector, *found.points[0].axes} == {i, j}
    )
    assert found.outer == () and found.vector is j and found.tasks.value == 3


def test_the_widest_value_that_differs_between_lanes_decides_how_many_there_are():
    i, j = axis("i0", 3), axis("i1", 100)
    assert copied(i, j, i.symbol * 100 + j.symbol, D).lanes == 8
    same = op(Op.ADD, load("x", F, j.symbol), op(Op.CAST, load("z", D, ZERO), dtype=F))
    step = nest([j], [Store("y", j.symbol, same)])
    assert plan([step], {"x": F, "y": F, "z": D}).lanes == 16


@pytest.mark.parametrize("extent", [0, 1])
def test_an_axis_without_neighbours_has_no_vectors(extent):
    i = axis("i0", extent)
    found = plan([nest([i], [Store("y", i.symbol, load("x", F, i.symbol))])], {"x": F, "y": F})
    assert found.vector is None and found.points == () and found.tasks.value == extent


def test_sizes_that_vary_are_named_and_counted_at_run_time():
    n = Symbol("s0", 2, None)
    i = axis("i0", n)
    found = plan([nest([i], [Store("y", i.symbol, load("x", F, i.symbol))])], {"x": F, "y": F})
    assert found.sizes == (n,) and found.vector == i and found.tasks.symbols() == {n}
    assert found.work.static == 0 and found.work.counts == ((n, 4), (n, 4))


def test_rows_are_folded_in_several_vectors_side_by_side():
    found, i, r = summed(100, 1000, columns=False)
    assert (found.form, found.vector, found.outer, found.parts) == (Form.ROWS, r, (i,), 0)
    assert 4 in found.copies and found.tasks.value == 100
    short, _, _ = summed(100, 20, columns=False)
    assert set(short.copies) == {1}


def test_columns_are_walked_down_in_strips_as_wide_as_leaves_no_core_idle():
    found, i, _ = summed(4096, 50, columns=True)
    assert (found.form, found.vector, found.strip, found.tasks.value) == (Form.COLUMNS, i, 4, 64)
    assert summed(256, 100, columns=True)[0].strip == 2


def test_strips_of_short_vectors_are_as_wide_as_those_of_long_ones_where_each_has_one_accumulator():
    found, _, _ = summed(4096, 50, columns=True, vector_bytes=32)
    assert (found.strip, found.tasks.value) == (8, 64)
    assert summed(4096, 50, columns=True, vector_bytes=32, folds=2)[0].strip == 4
    assert summed(4096, 50, columns=True, vector_bytes=16)[0].strip == 4


def test_columns_that_no_cache_holds_are_walked_in_blocks_in_the_order_of_memory():
    """Of a megabyte and more, unless registers hold a whole row; what is held of a block fits in the first cache, and cores are kept busy by parts or narrower blocks."""
    assert summed(4096, 63, columns=True)[0].held == 0
    found = summed(4096, 64, columns=True, cores=1)[0]
    assert (found.held, found.strip, found.parts) == (16, 4, 0) and found.points[0].block == 2048
    assert found.tasks.value == 2
    odd = summed(65, 1 << 14, columns=True, cores=1, vector_bytes=32)[0]
    assert (odd.held, odd.strip, odd.points[0].block) == (16, 4, 96)
    assert summed(64, 1 << 14, columns=True, cores=1, vector_bytes=32)[0].held == 0
    assert summed(17, 1 << 16, columns=True, cores=1, vector_bytes=32)[0].strip == 2
    shared = summed(1024, 4096, columns=True, cores=4)[0]
    assert (shared.held, shared.parts, shared.points[0].block) == (16, 8, 1024)
    assert summed(1024, 4096, columns=True, cores=4, dtype=D)[0].parts == 7
    wide = summed(1 << 17, 64, columns=True, cores=4)[0]
    assert (wide.parts, wide.tasks.value) == (0, 64)


def test_blocks_are_narrower_where_their_rows_may_not_be_cut():
    """Results of places are not combined: each core has a block instead, of rows that are still read ahead."""
    i, r = axis("i0", 2048), axis("r0", 1024)
    at = load("x", F, r.symbol * 2048 + i.symbol)
    step = nest([i], [Store("y", i.symbol, result(0, DType.I64))], [r], [fold(ReduceKind.ARGMAX, at)])
    for cores, block in ((1, 2048), (4, 256), (64, 128)):
        found = plan([step], {"x": F, "y": DType.I64}, axes=[i], row_axes=[r], cores=cores)
        assert (found.held, found.parts, found.points[0].block) == (16, 0, block)


@pytest.mark.parametrize(("cores", "parts"), [(4, 64), (1, 0)])
def test_one_long_row_is_cut_in_parts_where_there_are_cores(cores, parts):
    assert summed(1, 1 << 20, columns=False, cores=cores)[0].parts == parts


def test_a_long_row_of_several_axes_is_cut_along_the_outer_ones_and_no_part_is_empty():
    """Of vectors along a short inner axis there would be few parts, each of all that lies around it; what is read across is cut along the vectors first."""
    sizes = (5, 64, 32, 512)
    r = [axis(f"r{k}", n) for k, n in enumerate(sizes)]
    places = [a.symbol * math.prod(sizes[k + 1 :]) for k, a in enumerate(r)]
    rows = sum(places[1:], places[0])
    across = r[3].symbol * math.prod(sizes[:3]) + (r[0].symbol * 64 + r[1].symbol) * 32 + r[2].symbol
    for at in (load("x", F, rows), op(Op.MUL, load("x", F, rows), load("z", F, across))):
        step = nest([], [Store("y", ZERO, result(0, F))], r, [fold(SUM, at)])
        found = plan([step], {"x": F, "y": F, "z": F}, axes=[], row_axes=r)
        assert found.vector is r[3] and found.parts == math.prod(c.parts for c in found.cuts) >= 64
        first = [r[3], r[0]] if at.op is Op.MUL else [r[0], r[1]]
        assert [c.axis for c in found.cuts][:2] == first
        assert all(
            (c.parts - 1) * c.size.value < c.axis.extent.value <= c.parts * c.size.value for c in found.cuts
        )


@pytest.mark.parametrize(("rows", "parts"), [(512, 16), (511, 0), (Symbol("s0", 2, None), 16)])
def test_few_columns_of_many_rows_are_cut_in_parts(rows, parts):
    assert summed(64, rows, columns=True)[0].parts == parts


def test_what_adds_to_memory_in_order_is_done_by_one_thread():
    i = axis("i0", 1000)
    added = Store("y", ZERO, load("x", F, i.symbol), StoreMode.ADD)
    assert plan([nest([i], [added])], {"x": F, "y": F}).serial


def test_costly_values_are_kept_from_one_phase_to_the_next():
    """A softmax: the exponential of its second walk is read by the third."""
    i, r = axis("i0", 100), axis("r0", 1000)
    x = load("x", F, i.symbol * 1000 + r.symbol)
    top = nest([i], [Store("m", i.symbol, result(0, F))], [r], [fold(ReduceKind.MAX, x)])
    power = op(Op.EXP, op(Op.SUB, x, load("m", F, i.symbol)))
    total = nest([i], [Store("t", i.symbol, result(0, F))], [r], [fold(SUM, power)])
    last = nest([i, r], [Store("y", i.symbol * 1000 + r.symbol, op(Op.DIV, power, load("t", F, i.symbol)))])
    found = plan(
        [top, total, last], dict.fromkeys("xmty", F), axes=[i], row_axes=[r], internal=("m", "t")
    ).phases
    assert found is not None and [p.over_row for p in found.phases] == [True, False, True, False, True]
    assert [dtype for _, dtype in found.kept] == [F]
    cheap = nest([i, r], [Store("y", i.symbol * 1000 + r.symbol, op(Op.ADD, x, load("t", F, i.symbol)))])
    first = nest([i], [Store("t", i.symbol, result(0, F))], [r], [fold(SUM, op(Op.ADD, x, const(1.0, F)))])
    again = plan([first, cheap], dict.fromkeys("xty", F), axes=[i], row_axes=[r], internal=("t",)).phases
    assert again is not None and again.kept == ()
