"""Every form of Triton kernel in Triton's interpreter: the form that was planned, and eager's numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze import pipeline
from braze.codegen.triton import generate
from braze.context import CompileContext
from braze.loops import build
from braze.loops.ir import Axis, Buffer, BufferKind, DType, LoopNest, Op, ReduceKind, Reduction, Store
from braze.loops.rewrite import roots, walk
from braze.options import Options
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.gpu import column_tiles, cuts, kernels
from braze.schedule.gpu.kernels import plan_kernel
from braze.schedule.rewrites.one_hot import known_sums
from braze.support.device_costs import H200
from braze.symbolic.expr import Integer, Symbol, axis_symbol
from braze.target import cuda_target
from tests.codegen.triton_bench import captured, context, forms, interpreted, planned
from tests.loops.interpret import interpret

NAN, INF = torch.nan, torch.inf
CONTEXT = CompileContext(Options(), cuda_target((9, 0), 132))


@pytest.fixture
def small(monkeypatch):
    """Tiles and parts so small that a few hundred numbers are many of them: the interpreter is slow."""
    monkeypatch.setattr(kernels, "WALK", 64)
    monkeypatch.setattr(cuts, "LEAST_ROW", 40)
    monkeypatch.setattr(cuts, "LEAST_COLUMN", 10)
    monkeypatch.setattr(cuts, "LEAST_MOVED", 1)
    monkeypatch.setattr(Choices, "persistent_bytes", 256)


def numbers(*shape, dtype=torch.float32, seed=0):
    """Random numbers of a type, small where they are whole."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if dtype is torch.bool:
        return made > 0
    return made.to(dtype) if dtype.is_floating_point else (made * 5).to(dtype)


def exact(fn, *inputs):
    """Eager's results in double precision."""
    found = fn(*(x.double() if x.is_floating_point() else x for x in inputs))
    return found if isinstance(found, (tuple, list)) else [found]


def agree(results, wanted, digits=1e-5):
    """Values of floats near, of others equal."""
    assert len(results) == len(wanted)
    for ours, theirs in zip(results, wanted):
        assert ours.shape == theirs.shape
        if ours.is_floating_point():
            torch.testing.assert_close(ours.double(), theirs, rtol=digits, atol=digits, equal_nan=True)
        else:
            assert torch.equal(ours, theirs)


def check(fn, folder, *inputs, cores=132, digits=1e-5):
    """Run, compare, and give the forms of the kernels. The loops alone, interpreted, must agree as well."""
    plan, results = interpreted(fn, folder, *inputs, cores=cores)
    wanted = exact(fn, *inputs)
    agree(results, wanted, digits)
    if not any(x.dtype is torch.bfloat16 for x in inputs):
        agree(interpret(plan.program, list(inputs)), wanted, digits)
    return forms(plan)


# -- points -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(65, 70), (64, 128), (33, 1000)])
def test_a_transpose_is_read_and_written_in_squares(shape, dtype, tmp_path):
    x, y = numbers(*shape, dtype=dtype), numbers(*shape[::-1], dtype=dtype, seed=1)
    join = torch.logical_xor if dtype is torch.bool else torch.add
    assert check(lambda x, y: join(x, y.t()), tmp_path, x, y, digits=1e-2) == ["tiled"]


@pytest.mark.parametrize(
    ("shape", "tile"), [((3000, 2000), (64, 64)), ((10, 3000), (16, 256)), ((3000, 10), (256, 16))]
)
def test_squares_of_thin_matrices_are_longer_but_no_larger(shape, tile):
    x, y = torch.empty(shape, device="meta"), torch.empty(shape[::-1], device="meta")
    (plan,) = plans(planned(lambda x, y: x + y.t(), x, y, cores=132))
    assert tuple(t.block for t in plan.points) == tile


def test_a_transpose_in_a_batch(tmp_path):
    x, y = numbers(3, 40, 30), numbers(3, 30, 40, seed=1)
    assert check(lambda x, y: x.transpose(1, 2) * y, tmp_path, x, y) == ["tiled"]


def test_channels_last_and_first_in_one_kernel(tmp_path):
    x = numbers(2, 10, 12, 11).to(memory_format=torch.channels_last)
    y = numbers(2, 10, 12, 11, seed=1)
    assert check(lambda x, y: (x + y).relu(), tmp_path, x, y) == ["tiled"]


@pytest.mark.parametrize("shape", [(1, 70), (70, 1), (0, 5), (3, 300)])
def test_thin_ones_need_no_squares(shape, tmp_path):
    x, y = numbers(*shape), numbers(*shape[::-1], seed=1)
    assert check(lambda x, y: x.t() + y, tmp_path, x, y) == ["flat"]


def test_an_expanded_and_an_offset_input(tmp_path):
    x, y = numbers(40, 1).expand(40, 50), numbers(51, 41, seed=1)[1:, 1:]
    z = numbers(40, 50, seed=2)
    assert check(lambda x, y, z: x + y.t() + z, tmp_path, x, y, z) == ["tiled"]


# -- columns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (7, 1), (70, 65), (300, 3)])
def test_sums_of_columns_run_along_them(rows, columns, tmp_path):
    found = check(lambda x: x.sum(0), tmp_path, numbers(rows, columns), digits=1e-4)
    assert found == (["columns"] if rows > 1 and columns > 1 else found)


def test_columns_of_a_batch(tmp_path):
    assert check(lambda x: (x.sum(1), x * 2), tmp_path, numbers(3, 20, 70))[0] == "columns"


@pytest.mark.parametrize("rows", [640, 521])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_long_columns_are_cut(rows, dtype, tmp_path):
    """The bias gradient: two kernels, parts of the rows and their sum; half types accumulate in single."""
    digits = {torch.float64: 1e-12, torch.float32: 1e-4}.get(dtype, 0.3)
    found = check(lambda x: x.sum(0), tmp_path, numbers(rows, 20, dtype=dtype), cores=2, digits=digits)
    assert found == ["columns", "columns"]


def test_what_follows_sums_down_columns_is_their_kernel(tmp_path):
    fn = lambda x: x.softmax(1)
    x = numbers(2, 20, 32)
    plan, results = interpreted(fn, tmp_path, x)
    assert forms(plan) == ["columns"] and results[0].stride() == (640, 32, 1)
    agree(results, exact(fn, x))
    assert forms(planned(fn, torch.empty(128, 1024, 512, dtype=torch.bfloat16))) == ["columns"]
    turned = lambda x: torch.clone(fn(x).mT, memory_format=torch.contiguous_format)
    assert forms(planned(turned, x)) != ["columns"]


@pytest.mark.usefixtures("small")
def test_what_follows_columns_in_parts_is_stored_along_them(tmp_path):
    fn = lambda x: x.softmax(0)
    x = numbers(400, 32)
    plan, results = interpreted(fn, tmp_path, x, cores=16)
    assert forms(plan) == ["columns", "columns", "flat"]
    assert plan.groups[-1].axes[-1].extent.value == 32
    agree(results, exact(fn, x))


@pytest.mark.usefixtures("small")
def test_every_reduction_of_long_columns(tmp_path):
    x = numbers(101, 4)
    x[7, 2], x[90, 2], x[9, 3], x[60:, 1] = NAN, NAN, INF, -0.0
    fn = lambda x: (x.amax(0), x.amin(0), x.argmax(0), x.argmin(0), x.var(0), x.mean(0), (x * 0.9).prod(0))
    found = check(fn, tmp_path, x, cores=2, digits=1e-4)
    assert found[0] == "columns" and len(found) > 1


@pytest.mark.usefixtures("small")
def test_whole_numbers_and_tests_of_long_columns(tmp_path):
    x = numbers(101, 4, dtype=torch.int64)
    fn = lambda x: (x.sum(0), (x > 20).any(0), (x > -30).all(0), x.amax(0), x.argmin(0))
    assert len(check(fn, tmp_path, x, cores=2)) > 1


def folds(schedule):
    """Columns of the first kernel's tiles, parts and columns of the second."""
    first, second = [p for p in plans(schedule) if p.row is not None][:2]
    return first.points[-1].extent.value, second.row.extent.value, second.points[-1].extent.value


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("width", [3, 10, 33])
def test_rows_of_few_columns_lie_side_by_side(width, dtype, tmp_path):
    """Matrices whose columns fill no tiles: as many as nearly do, in whole vectors, of which the second kernel sums what belongs together."""
    x = numbers(80 * (64 // math.gcd(width, 64)), width, dtype=dtype)
    fn = lambda x: (x * 2 + 1).sum(0)
    check(fn, tmp_path, x, cores=9, digits={torch.bfloat16: 0.5, torch.float64: 1e-11}.get(dtype, 1e-4))
    wide, parts, columns = folds(planned(fn, x, cores=9))
    fold = wide // width
    assert (wide, columns) == (fold * width, width) and parts % fold == 0 and fold > 1
    assert wide * x.itemsize % 16 == 0 and wide / (-(-wide // 64) * 64) > 0.9


@pytest.mark.usefixtures("small")
def test_every_plain_reduction_of_rows_side_by_side(tmp_path):
    x = numbers(2560, 10) * 0.1 + 1
    x[7, 2], x[90, 2], x[9, 3], x[2000:, 1], x[5, 4] = NAN, NAN, INF, -0.0, -INF
    fn = lambda x: (x.amax(0), x.amin(0), (x == 0).any(0), (x > -5).all(0), x.mean(0), x.sum(0) * 2)
    check(fn, tmp_path, x, cores=2, digits=1e-4)
    assert folds(planned(fn, x, cores=2))[0] == 320
    check(lambda x: (x * 0 - 0.0).sum(0), tmp_path, numbers(2560, 10), cores=2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "x",
    [numbers(2560, 12)[:, :10], numbers(10, 2560).t(), numbers(1, 10).expand(2560, 10)],
    ids=["gaps", "turned", "one row"],
)
def test_what_does_not_lie_row_after_row_is_cut_as_it_is(x, tmp_path):
    check(lambda x: x.sum(0), tmp_path, x, cores=2, digits=1e-4)
    kinds = [p for p in plans(planned(lambda x: x.sum(0), x, cores=2)) if p.row is not None]
    assert {a.extent.value for p in kinds for a in p.points[-1].axes[-1:]} <= {
        10,
        1,
    }  # parts may be beside each other


@pytest.mark.usefixtures("small")
def test_a_number_for_each_column_keeps_rows_apart(tmp_path):
    fn = lambda x, w: ((x - w) * w).sum(0)
    check(fn, tmp_path, numbers(2560, 10), numbers(10, seed=1), cores=2, digits=1e-4)
    plan = planned(fn, numbers(2560, 10), numbers(10), cores=9)
    # parts of rows beside each other, none folded
    assert [a.extent.value for a in plan.groups[0].axes][1:] == [10]


# -- long rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [32768, 32769])
def test_a_full_sum_is_cut(length, tmp_path):
    found = check(lambda x: x.sum(), tmp_path, numbers(length), cores=2, digits=1e-3)
    assert found == ["rows", "rows"]


@pytest.mark.usefixtures("small")
def test_positions_in_long_rows(tmp_path):
    """The first of equals in whatever part it lies, and a nan wins."""
    x = torch.zeros(3, 390)
    x[0, 100], x[0, 300] = 3, 3
    x[1, 200], x[1, 10], x[1, 389] = NAN, 8, NAN
    fn = lambda x: (x.argmax(1), x.argmin(1), x.amax(1))
    assert check(fn, tmp_path, x, cores=2) == ["rows", "rows"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [512, 700])
def test_a_softmax_of_one_long_row(length, tmp_path):
    x = numbers(length)
    x[:300] = -INF
    found = check(lambda x: (torch.softmax(x, 0), torch.logsumexp(x, 0)), tmp_path, x, cores=2)
    assert found == ["rows", "rows", "flat", "flat"]


def plans(schedule):
    """How each kernel is to be."""
    buffers = {b.name: b for b in schedule.program.buffers}
    return [plan_kernel(group, buffers) for group in schedule.groups]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [256, 512, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_softmax_of_rows_that_the_cache_does_not_hold_has_one_program_at_a_time(
    length, dtype, tmp_path, monkeypatch
):
    monkeypatch.setattr(kernels, "FORGOTTEN", 1024)
    monkeypatch.setattr(kernels, "AT_ONCE", 512)
    monkeypatch.setattr(kernels, "OF_A_WARP", 64)
    x = numbers(5, length, dtype=dtype)
    x[1, 3], x[2], x[3, 0] = INF, -INF, NAN
    digits = 1e-3 if dtype is torch.float16 else 1e-5
    check(lambda x: torch.softmax(x, 1), tmp_path, x, cores=1, digits=digits)
    (plan,) = plans(planned(lambda x: torch.softmax(x, 1), x, cores=1))
    bytes_of_row = length * dtype.itemsize
    if bytes_of_row < 1024:
        assert not plan.streamed
        return
    # rows of just so many bytes, and floats: two programs share a multiprocessor
    held = 256 if bytes_of_row == 1024 or dtype is torch.float32 else 512
    assert (plan.row.block, plan.warps, plan.streamed) == (held // dtype.itemsize, held // 64, True)
    texts = [path.read_text() for path in tmp_path.iterdir() if path.suffix == ".py"]
    assert 'eviction_policy="evict_first")' in texts[0].rsplit("tl.store", 1)[1]


def test_what_the_cache_keeps_of_rows_is_what_was_measured_on_the_gpu():
    """Of a smaller cache one program at a time has rows that two share an H200's with."""
    x = torch.empty(4096, 25000, device="meta")
    found = []
    for cache in (H200.cache, int(1.1 * H200.cache), H200.cache // 4):
        costs = replace(H200, cache=cache)
        ctx = context()
        ctx = replace(ctx, target=replace(ctx.target, costs=costs))
        partition = captured(lambda x: torch.softmax(x, 1), ctx, x)
        with torch.no_grad():
            schedule = pipeline.schedule_program(pipeline.lower_graph(partition, ctx), ctx)
        (group,), buffers = schedule.groups, {b.name: b for b in schedule.program.buffers}
        found.append((group.kept, plan_kernel(group, buffers, hold=False).streamed))
    assert found == [(1.0, False), (1.0, False), (0.25, True)]


def test_long_rows_of_16_bits_are_walked_twice_by_two_programs_with_all_threads():
    """Where none of them is held: four programs' rows of 100 KB on each multiprocessor, read and stored, are more than the cache; shorter rows and float32
    keep the rule's."""

    def cut(columns, dtype):
        x = torch.empty(8192, columns, dtype=dtype, device="meta")
        schedule = planned(lambda x: torch.log_softmax(x, 1), x)
        buffers = {b.name: b for b in schedule.program.buffers}
        (plan,) = [plan_kernel(group, buffers, hold=False) for group in schedule.groups]
        return plan.row.block, plan.warps, plan.unrolled

    assert (
        cut(50257, torch.bfloat16) == cut(50257, torch.float16) == cut(32768, torch.float16) == (8192, 32, 2)
    )
    assert cut(32000, torch.bfloat16) == (4096, 16, 2)
    assert cut(25000, torch.float32) == (4096, 16, 2)


@pytest.mark.parametrize(
    ("dtype", "rows", "cut"),
    [(torch.float32, 512, (8, 512)), (torch.bfloat16, 512, (16, 256)), (torch.float32, 64, (16, 64))],
)
def test_columns_of_few_programs_are_walked_by_a_sector_of_float32(dtype, rows, cut):
    """1,024 of them are 128 programs'. Of 16-bit numbers a sector is twice as many columns, and short columns are held whole."""
    x = torch.empty(rows, 1024, dtype=dtype, device="meta")
    (plan,) = plans(planned(lambda x: x.float().sum(0), x, cores=1))
    assert (plan.points[-1].block, plan.row.block) == cut


def test_walks_have_what_their_reductions_want_of_the_loop():
    """Two tiles a turn for maxima and sums of powers, small tiles for variances."""
    x = torch.empty(2048, 100_000)

    def plan_of(fn):
        return next(p for p in plans(planned(fn, x)) if p.row is not None)

    top = plan_of(lambda x: torch.logsumexp(x, 1))
    assert (top.unrolled, top.streamed) == (2, False)
    spread = plan_of(lambda x: torch.var_mean(x, 1))
    assert (spread.unrolled, spread.row.block, spread.warps) == (1, 1024, 4)
    assert plan_of(lambda x: x.sum(1)).row.block == 4096


@pytest.mark.parametrize(("width", "programs"), [(512, 512), (768, 384), (100, 400)])
def test_as_many_parts_of_columns_as_registers_leave_room_for(width, programs):
    first = plans(planned(lambda x: x.sum(0), torch.empty(65536, width, dtype=torch.bfloat16), cores=132))[0]
    assert first.programs.value == programs


@pytest.mark.parametrize("rows", [64, 100, 257])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_that_are_on_their_way_while_others_are_added(rows, dtype, tmp_path, monkeypatch):
    """Sums, maxima and tests down columns of whole rows, of a part of a tensor too; what is not finite stays in its column."""
    for name, number in (("WIDE_COLUMNS", 16), ("LEAST_WIDE", 10), ("LONG_WIDE", 40)):
        monkeypatch.setattr(column_tiles, name, number)
    monkeypatch.setattr(cuts, "LEAST_COLUMN", 10)
    wide = numbers(rows, 34, dtype=dtype)
    wide[3, 2], wide[5, 4], wide[6, 4], wide[rows - 1, 8] = NAN, INF, -INF, -INF
    x, y = wide[:, 1:33], numbers(rows, 32, dtype=dtype, seed=1)
    for fn in (
        lambda x, y: (x * y).sum(0),
        lambda x, y: (x.amax(0), x.amin(0), y.sum(0).relu()),
        lambda x, y: ((x > 1).any(0), (y > -3).all(0)),
    ):
        check(fn, tmp_path, x, y, cores=2, digits=2e-2)
    found = plans(planned(lambda x: x.sum(0), x, cores=2))
    assert [(p.row.block, p.stages) for p in found][0] == (16 // dtype.itemsize, 3)


@pytest.mark.parametrize(("rows", "dtype"), [(64, torch.float32), (100, torch.float16), (257, torch.float16)])
def test_a_part_of_whole_tiles_for_each_multiprocessor(rows, dtype, tmp_path, monkeypatch):
    """Its program has more on its way; the last part may be shorter, and what lies behind it in memory is the greatest."""
    for name, number in (("WIDE_COLUMNS", 16), ("LEAST_WIDE", 10), ("LONG_WIDE", 10)):
        monkeypatch.setattr(column_tiles, name, number)
    for name in ("LEAST_COLUMN", "FEW_PROGRAMS"):
        monkeypatch.setattr(cuts, name, 8)
    memory = numbers(rows + 40, 32, dtype=dtype)
    memory[rows:] = INF
    memory[3, 2], memory[5, 4], memory[6, 4] = NAN, INF, -INF
    x = memory[:rows]
    check(lambda x: (x.sum(0), x.amax(0)), tmp_path, x, cores=8, digits=2e-2)
    (first, *_) = plans(planned(lambda x: x.sum(0), x, cores=8))
    assert (first.programs.value, first.stages) == (8, 5)


def test_which_rows_are_on_their_way_while_others_are_added():
    """Those of many columns, where programs are many enough: of doubles or few rows they are read as before. For a variance, whose numbers
    are three an element, those of any columns that vectors divide."""

    def stages(fn, *sizes, dtype=torch.bfloat16):
        schedule = planned(fn, torch.empty(sizes, dtype=dtype, device="meta"), cores=132)
        text = generate(schedule, CompileContext(Options(), cuda_target((9, 0), 132)))[0].source
        plan = plans(schedule)[0]
        assert ("num_stages=" in text) == (plan.stages > 1)
        return plan.programs.value, plan.stages

    total = lambda x: x.sum(0)
    assert stages(total, 65536, 1024) == (131, 5)  # 504 rows each, but for the last
    assert stages(total, 16384, 4096) == stages(total, 65536, 1024, dtype=torch.float32) == (132, 5)
    fewer = plans(planned(total, torch.empty(65536, 1024, device="meta"), cores=108))[0]
    assert (fewer.programs.value, fewer.stages) == (128, 3)
    assert stages(total, 8192, 1024) == (2048, 1)  # of parts of 64 rows each thread has whole columns
    assert stages(lambda x: (x * x.flip(1)).sum(0), 65536, 1024, dtype=torch.float32)[1] == 1
    assert [stages(total, *s)[1] for s in ((4096, 1024), (256, 1024), (65536, 1000))] == [1, 1, 1]
    assert stages(total, 65536, 1024, dtype=torch.float64)[1] == 1
    spread = lambda x: torch.var_mean(x, 0)
    assert {stages(spread, 65536, n)[1] for n in (1024, 1000)} == {4}
    assert stages(spread, 65536, 1024, dtype=torch.float64)[1] == stages(spread, 65537, 1001)[1] == 1


def test_the_last_part_of_an_axis_of_few_ends_where_the_axis_does(small, tmp_path):
    """Five rows in parts of two: the last has one, and what lies behind it in memory is the greatest."""
    memory = numbers(6, 120)
    memory[5], memory[:, 100:] = 9, 9
    x = memory[:5, :100]
    check(lambda x: (x.argmax(), x.amax()), tmp_path, x, cores=1)
    first = plans(planned(lambda x: x.argmax(), x, cores=1))[0]
    assert first.programs.value == 3


def test_sums_along_rows_have_many_parts_that_are_alike():
    """They end cheaply, others do not; and where parts are not alike each element is looked at."""

    def programs(fn, *sizes, dtype=torch.bfloat16):
        x = torch.empty(sizes, dtype=dtype, device="meta")
        return [p.programs.value for p in plans(planned(fn, x, cores=132))]

    for fn in (lambda x: x.sum(), lambda x: x.amax(), lambda x: (x > 3).any()):
        assert programs(fn, 1 << 26) == [4096, 1]
    assert programs(lambda x: x.sum(), 1 << 24) == [2048, 1]
    assert programs(lambda x: x.sum(), 1 << 22) == [1024, 1]
    assert programs(lambda x: x.sum(1), 16, 1 << 23)[0] == 4096
    assert programs(lambda x: x.argmax(), 1 << 26) == [512, 1]
    assert programs(lambda x: x.sum(), 100_000_007) == [1023, 1]


@pytest.mark.parametrize(
    ("capability", "options", "waiting"),
    [
        ((9, 0), {}, [False, True]),
        ((8, 0), {}, [False] * 2),
        ((9, 0), {"cudagraphs": True}, [False] * 2),
        ((9, 0), {"early_launches": "none"}, [False] * 2),
        ((9, 0), {"early_launches": "all", "cudagraphs": True}, [False, True]),
        ((8, 0), {"early_launches": "all"}, [False] * 2),
    ],
)
def test_what_adds_parts_begins_while_they_end(capability, options, waiting):
    ctx = CompileContext(Options(**options), cuda_target(capability, 132))
    for fn in (lambda x: x.sum(0), lambda x: x.argmax(), lambda x: torch.var_mean(x, 0)):
        texts = generate(planned(fn, torch.empty(65536, 1024, device="meta"), cores=132), ctx)
        assert ["gdc_wait()" in text.source for text in texts] == waiting
        assert [dict(text.launch.constants).get("EARLY", 0) for text in texts] == list(map(int, waiting))
        lets = [waiting[1], False]  # who leaves the parts lets who adds them begin
        assert ["gdc_launch_dependents()" in text.source for text in texts] == lets
        assert [dict(text.launch.constants).get("LETS", 0) for text in texts] == list(map(int, lets))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [200, 203])
def test_a_variance_with_a_large_mean(length, tmp_path):
    x = numbers(2, 4, length) + 3000
    fn = lambda x: torch.var_mean(x, (0, 2), correction=0)
    plan, results = interpreted(fn, tmp_path, x, cores=8)
    agree([r / s for r, s in zip(results, exact(fn, x))], [torch.ones(4, dtype=torch.double)] * 2, 2e-4)
    assert len(plan.groups) > 1


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 700])
def test_variances_of_what_lies_far_from_its_first_number(length, dtype, tmp_path):
    """One that is alone, equal ones, one far off first or last, what is not finite."""
    x = numbers(8, length, dtype=dtype)
    x[1, 0], x[2, -1], x[3], x[4], x[7] = 1e6, -1e6, 0.1, x[4] * 1e-3 + 50, x[7] * 1e-15
    x[5, length // 2], x[6, length // 3] = INF, NAN
    fn = lambda x: torch.var_mean(x, 1, correction=0)
    _, results = interpreted(fn, tmp_path, x, cores=1)
    for ours, wanted, digits in zip(results, exact(fn, x), (2e-4, 1e-5)):
        rows = [k for k in range(8) if k not in (3, 5)]
        torch.testing.assert_close(ours[rows].double(), wanted[rows], rtol=digits, atol=0, equal_nan=True)
        assert not ours[5].isfinite()
    assert 0 <= results[0][3] < 1e-12 and (results[0][3].sqrt() >= 0)


@pytest.mark.usefixtures("small")
def test_what_a_long_row_stores_across_what_it_reads_is_a_kernel_of_squares(tmp_path):
    """Group norm of a picture whose channels are innermost: its result's are not."""
    fn = lambda x, w: F.silu(F.group_norm(x, 2, w))
    x, w = numbers(2, 32, 8, 16).to(memory_format=torch.channels_last), numbers(32, seed=1)
    plan, results = interpreted(fn, tmp_path, x, w, cores=1)
    assert forms(plan) == ["rows", "tiled"]
    agree(results, exact(fn, x, w), 1e-4)
    plan, results = interpreted(fn, tmp_path, x.contiguous(), w, cores=1)
    assert forms(plan) == ["rows"]
    agree(results, exact(fn, x, w), 1e-4)


def test_a_gpu_writes_over_what_it_reads_for_that_alone():
    """Another thread may store before one loads what a second result is made of."""

    def alone(x, y):
        return x.add_(y)

    def crossed(x, y):
        z = x * 2
        x.fill_(1).add_(y.exp())
        y.fill_(0.5).add_(z)

    x, y = numbers(8, 8), numbers(8, 8)
    assert planned(alone, x, y).memory.renewed == (("buf0", "x"),)
    assert planned(crossed, x, y).memory.renewed == ()
    assert planned(lambda x, y: (x.add_(y), y * 2), x, y).memory.renewed == (("buf0", "x"),)


def test_small_kernels_over_one_domain_share_a_launch(tmp_path):
    fn = lambda a, b, c, d: (a * 2, b + 1, c.exp() + a, d - 1)
    inputs = [numbers(3, 20, seed=k) for k in range(3)] + [numbers(61)]
    plan, results = interpreted(fn, tmp_path, *inputs)
    assert [len(g.members) for g in plan.groups] == [3]  # two have an input in common
    agree(results, exact(fn, *inputs))
    large = [torch.empty(4 << 20) for _ in range(4)]
    assert len(planned(fn, *large).groups) == 3  # two have an input in common


def test_what_keeps_a_gpu_busy_is_not_cut(tmp_path):
    for shape in ((4096, 128256), (512, 131072)):
        plan = planned(lambda x: torch.softmax(x, -1), torch.empty(shape, device="meta"))
        assert len(plan.groups) == 1
    plan = planned(lambda x: x.sum(0), torch.empty(65536, 1024, device="meta"))
    assert len(plan.groups) == 2


def test_empty_rows_and_no_points(tmp_path):
    check(lambda x: x.sum(0), tmp_path, numbers(0, 5))
    check(lambda x: x.sum(1), tmp_path, numbers(0, 5))
    check(lambda x: (x.sum(), x.any()), tmp_path, numbers(0))


# -- one read ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [512, 700, 701, 702])
def test_long_rows_find_their_maximum_and_sum_of_powers_in_one_read(length, dtype, tmp_path):
    x = numbers(8, length, dtype=dtype) * 30
    x[1, :] = -INF
    x[2, 3], x[2, 600 % length] = INF, INF
    x[3, 500] = NAN
    x[4, :] = torch.finfo(dtype).min
    x[5, : length // 2] = -INF
    x[6, 7], x[6, 300] = INF, NAN
    fn = lambda x: (torch.softmax(x, 1), torch.logsumexp(x, 1), torch.log_softmax(x, 1))
    digits = 1e-12 if dtype is torch.float64 else 1e-5
    plan, results = interpreted(fn, tmp_path, x, cores=1)
    agree(results, exact(fn, x), digits)
    kinds = [r.kind for g in plan.groups for s in g.steps for r in s.reductions]
    assert set(kinds) == {ReduceKind.ONLINE_SOFTMAX}
    agree(interpret(plan.program, [x]), exact(fn, x), digits)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [511, 701, 702])
def test_a_row_that_is_read_at_two_places_at_once_is_read_one_by_one(length, dtype, tmp_path):
    """Vectors begin at both nowhere: a thread takes those of its numbers together that lie a stride apart."""
    x = numbers(4, length, dtype=dtype)
    x[1, 3], x[2, :] = INF, -INF

    def fn(x):
        both = x.narrow(1, 1, x.shape[1] - 1).float() + x.narrow(1, 0, x.shape[1] - 1)
        return torch.softmax(both, 1), torch.logsumexp(both, 1), both.amax(1)

    plan, results = interpreted(fn, tmp_path, x, cores=1)
    agree(results, exact(fn, x), 1e-5)
    kinds = {r.kind for g in plan.groups for s in g.steps for r in s.reductions}
    assert ReduceKind.ONLINE_SOFTMAX in kinds


def test_numbers_that_are_read_one_by_one_are_taken_together_as_a_thread_has_them(tmp_path):
    """Of a tile each thread has some, so many steps apart: one scaling of its sum for all of them."""

    def fn(x):
        return torch.logsumexp(x.narrow(1, 1, x.shape[1] - 1) + x.narrow(1, 0, x.shape[1] - 1), 1)

    x = numbers(2, 20001) * 9
    plan, results = interpreted(fn, tmp_path, x, cores=1)
    agree(results, exact(fn, x), 1e-5)
    assert any("[XBLOCK, 4, RBLOCK // 4]" in text.source for text in generate(plan, context(1)))


@pytest.mark.usefixtures("small")
def test_a_sum_of_powers_below_anything_else_is_read_again(tmp_path):
    x = numbers(4, 300)
    fn = lambda x: (
        torch.exp(x - x.amin(1, keepdim=True)).sum(1),
        torch.exp(2 * x - x.amax(1, keepdim=True)).sum(1),
    )
    plan, results = interpreted(fn, tmp_path, x, cores=1)
    agree(results, exact(fn, x), 1e-4)
    assert not any(
        r.kind is ReduceKind.ONLINE_SOFTMAX for g in plan.groups for s in g.steps for r in s.reductions
    )


def reads_of(plan, name):
    """The kernels that read a whole buffer, each as often as it walks it."""
    loads = [
        (g.name, node)
        for g in plan.groups
        for step in g.steps
        for node in walk(*roots(step))
        if node.op is Op.LOAD and node.attr[0] == name and not node.args
    ]
    return len(dict.fromkeys(loads))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize(
    "options", [{}, {"ignore_index": 3}, {"reduction": "none"}, {"reduction": "sum"}], ids=str
)
def test_a_cross_entropy_reads_its_logits_once(dtype, options, tmp_path):
    """The target's logit is looked up in the logits, so that nothing as large as these is written."""
    x, y = numbers(9, 700, dtype=dtype) * 5, torch.tensor([0, 699, 3, 350, 7, 3, 64, 65, 699])
    x[1, 699], x[2, :690], x[3, 350], x[4, 7] = -INF, -INF, INF, NAN
    fn = lambda x, y: F.cross_entropy(x if dtype is torch.float64 else x.float(), y, **options)
    plan, results = interpreted(fn, tmp_path, x, y, cores=1)
    wanted = [w.double() for w in exact(fn, x, y)]
    agree(results, wanted, 1e-12 if dtype is torch.float64 else 1e-5)
    assert reads_of(plan, "x") == 1
    assert all(
        b.sizes != plan.program.buffer("x").sizes for b in plan.program.buffers if b.name in written(plan)
    )


def written(plan):
    return {name for g in plan.groups for name in g.writes}


@pytest.mark.usefixtures("small")
def test_a_cross_entropy_over_a_turned_class_axis(tmp_path):
    x, y = numbers(3, 300, 5) * 5, (numbers(3, 5).abs() * 90).long()
    fn = lambda x, y: F.cross_entropy(x, y)
    plan, results = interpreted(fn, tmp_path, x, y, cores=1)
    agree(results, exact(fn, x, y))
    assert all(
        b.sizes != plan.program.buffer("x").sizes for b in plan.program.buffers if b.name in written(plan)
    )


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_backward_of_a_cross_entropy_walks_once(dtype, tmp_path):
    """The sum of a row in which the target alone is not zero is known without a walk."""
    logs = torch.log_softmax(numbers(6, 300) * 5, 1).to(dtype)
    logs[3, 7], logs[4, 9] = NAN, -INF
    y, g = torch.tensor([3, 0, 299, -100, 9, 150]), torch.tensor(1.5, dtype=dtype)
    total = torch.tensor(5.0, dtype=dtype)

    def fn(g, logs, y, total):
        down = torch.ops.aten.nll_loss_backward(g, logs, y, None, 1, -100, total)
        return torch.ops.aten._log_softmax_backward_data(down, logs, 1, logs.dtype)

    plan, results = interpreted(fn, tmp_path, g, logs, y, total, cores=1)
    agree(
        results,
        exact(lambda *a: fn(*(x.double() if x.is_floating_point() else x for x in a)), g, logs, y, total),
        1e-2 if dtype is torch.float16 else 1e-5,
    )
    assert not any(step.reductions for group in plan.groups for step in group.steps)


def summed(value):
    """Whether the sum of a value along a row of 300 is known without a walk."""
    (i, r) = (Axis(axis_symbol(n, 6 if n == "i" else 300), Integer(6 if n == "i" else 300)) for n in "ir")
    total = Reduction(ReduceKind.SUM, DType.F32, value(i.symbol, r.symbol))
    nest = LoopNest(
        "n", (i,), (r,), (total,), (Store("out", i.symbol, build.reduced(0, DType.F32)),), "cuda:0"
    )
    return not known_sums(Group("g", GroupKind.LOOPED, (nest,), (i,), (r,))).steps[0].reductions


def test_sums_of_what_differs_along_the_row_are_walked():
    zero, one = build.const(0.0, DType.F32), build.const(1.0, DType.F32)
    y = lambda i: build.load("y", DType.I64, i)
    at = lambda r: build.index(r)
    equal = lambda a, b: build.binary(Op.EQ, a, b)
    known = lambda i, r: build.where(equal(y(i), at(r)), build.load("g", DType.F32, i), zero)
    assert summed(known)
    assert summed(lambda i, r: build.where(equal(at(r), y(i)), one, zero))
    for other in (
        lambda i, r: build.where(equal(y(r), at(r)), one, zero),
        lambda i, r: build.where(equal(y(i), at(r + 1)), one, zero),
        lambda i, r: build.where(equal(y(i), at(r)), build.load("g", DType.F32, r), zero),
        lambda i, r: build.where(equal(y(i), at(r)), one, build.const(2.0, DType.F32)),
        lambda i, r: build.where(build.lt(y(i), at(r)), one, zero),
        lambda i, r: build.where(equal(build.cast(y(i), DType.I8), build.cast(at(r), DType.I8)), one, zero),
    ):
        assert not summed(other)


# -- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3, 64, 100])
def test_short_rows_share_a_program(width, tmp_path):
    x = numbers(37, width)
    assert check(lambda x: torch.softmax(x, 1), tmp_path, x) == ["rows"]


def test_a_row_over_axes_that_lie_apart(tmp_path):
    """Sums over batch and picture, threads along the picture; also where the memory is turned."""
    x = numbers(3, 5, 40)
    assert check(lambda x: x.sum((0, 2)), tmp_path, x, digits=1e-4) == ["rows"]
    assert check(lambda x: x.sum(), tmp_path, x.transpose(0, 2), digits=1e-4) == ["rows"]


# -- cheap forms of functions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results_that_are_rounded_to_half_use_cheap_powers_and_quotients(dtype, tmp_path):
    """No further from float64 than the rounding of a result, for numbers of every size."""
    x = torch.cat(
        [numbers(400) * s for s in (1e-4, 1e-2, 1, 20, 1e3)] + [torch.tensor([INF, -INF, NAN, 0.0, -0.0])]
    )
    x, y = x.to(dtype), (numbers(len(x), seed=1) * 100).to(dtype)
    fn = lambda x, y: (torch.tanh(x), torch.sigmoid(x), torch.exp(x), x / y.sum(), torch.sqrt(x))
    plan, results = interpreted(fn, tmp_path, x, y)
    assert plan_kernel(plan.groups[-1], {b.name: b for b in plan.program.buffers}).coarse
    for ours, theirs in zip(results, exact(fn, x, y)):
        wanted = theirs.to(dtype)  # half overflows where double does not
        torch.testing.assert_close(ours, wanted, rtol=2 * torch.finfo(dtype).eps, atol=1e-7, equal_nan=True)
    tanh, wanted = results[0].nan_to_num(), exact(fn, x, y)[0].nan_to_num()
    assert torch.equal(torch.signbit(tanh), torch.signbit(wanted))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_error_function_of_halves_is_as_good_as_single_precisions(dtype, tmp_path):
    """Of a half type's numbers: itself to a rounding of them, and GELU's 1 + erf, which ends at the distance from 1, to roundings of float32."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    tiny = torch.finfo(dtype).smallest_normal
    x = x[
        ~(x.abs() < 4 * tiny) | (x == 0)
    ]  # of bfloat16 the interpreter makes others of what is less, and cuts digits off
    fn = lambda x: (torch.erf(x), torch.nn.functional.gelu(x))
    plan, (erf, gelu) = interpreted(fn, tmp_path, x)
    assert "bz_coarse_erf(" in generate(plan, CONTEXT)[0].source
    wanted, other = exact(fn, x)
    digit = torch.finfo(dtype).eps * (0.5 if dtype is torch.float16 else 1.0)
    assert ((erf.double() - wanted).abs() <= 1.01 * digit * wanted.abs().clamp_min(tiny))[~x.isnan()].all()
    assert erf[x.isnan()].isnan().all() and gelu[x.isnan()].isnan().all()
    assert torch.equal(torch.signbit(erf.nan_to_num()), torch.signbit(wanted.nan_to_num()))
    finite = x.isfinite()
    away = (gelu.double() - other).abs()[finite]
    allowed = 1.01 * digit * other.abs().clamp_min(tiny) + 1.2e-7 * x.double().abs().clamp_max(6)
    assert (away <= allowed[finite]).all()
    single = (x.float() * 0.5 * (1 + torch.erf(x.float() * 0.5**0.5))).to(dtype)
    common = (x.abs() < 5) & (x.abs() > 0.01)
    ours, theirs = [((y.double() - other).abs() / other.abs())[common].mean().item() for y in (gelu, single)]
    assert dtype is torch.bfloat16 or ours < 1.01 * theirs


def test_cheap_forms_are_for_each_element_of_a_row_and_not_for_its_one_number():
    """They save nothing there, and all elements would share what they lose; where there are no rows all are cheap."""
    x = numbers(6, 40, dtype=torch.bfloat16)
    of = lambda fn: "".join(k.source.partition("def triton_")[2] for k in generate(planned(fn, x), CONTEXT))
    both = of(lambda x: torch.sigmoid(x) * torch.tanh(x.float().sum(1, keepdim=True)).to(x.dtype))
    assert "bz_coarse_sigmoid(" in both and "bz_tanh(" in both and "bz_coarse_tanh(" not in both
    assert "bz_coarse_tanh(" in of(lambda x: torch.tanh(x))


@pytest.mark.parametrize("scale", [1e38, 1e30, 1e20, 1.0, 1e-20, 1e-30, 1e-33])
def test_quotients_of_numbers_of_any_size(scale, tmp_path):
    x = numbers(6, 40, dtype=torch.bfloat16) * scale
    x[3], x[4, 3], x[5, 3] = 0, INF, NAN
    fn = lambda x: x / x.amax(1, keepdim=True)
    _, results = interpreted(fn, tmp_path, x)
    agree(results, exact(fn, x), 1e-2)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: torch.floor(x.float() / y.float()).to(x.dtype),
        lambda x, y: torch.where(torch.exp(x) > y, x, y),
        lambda x, y: torch.exp(x.float()),
    ],
)
def test_steps_and_single_precision_see_exact_quotients(fn):
    plan = planned(fn, numbers(64, dtype=torch.bfloat16), numbers(64, dtype=torch.bfloat16, seed=1))
    assert not any(plan_kernel(g, {b.name: b for b in plan.program.buffers}).coarse for g in plan.groups)


# -- random numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "width"), [(7, 64), (5, 30), (3, 2)])
def test_random_numbers_are_the_same_in_every_form(rows, width, tmp_path):
    """A place has one number whether it is drawn alone or four at once: along rows, across them, in walks."""
    seed, x = torch.tensor(5), numbers(rows, width)
    draw = lambda seed: torch.ops.braze.uniform(seed, (rows, width))
    functions = [
        lambda seed, x: draw(seed) + x,
        lambda seed, x: draw(seed).t() + x.t(),
        lambda seed, x: (draw(seed) + x) / (x.abs().sum(1, keepdim=True) * 0 + 1),
        lambda seed, x: torch.narrow(draw(seed), 1, 1, width - 1),
    ]
    first, *others = [interpreted(f, tmp_path, seed, x, cores=1)[1][0] for f in functions]
    assert 0.2 < (first - x).mean() < 0.8
    for other, wanted in zip(others, [first.t(), first, (first - x)[:, 1:]]):
        torch.testing.assert_close(other, wanted, rtol=0, atol=1e-6)


# -- width of places ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "wide"),
    [
        ((Symbol("s0", 2, None), Integer(1024)), True),
        ((Symbol("s0", 2, 4096), Integer(1024)), False),
        ((Integer(65536), Integer(32767)), False),
        ((Integer(65536), Integer(32768)), True),
    ],
)
def test_places_of_sizes_without_a_bound_have_64_bits(sizes, wide):
    """A batch of a size that nobody knows may have 2^31 elements, and one program serves every size."""
    x = Buffer("x", DType.F32, sizes, (sizes[1], Integer(1)), "cuda:0", BufferKind.INPUT)
    assert (
        plan_kernel(
            copying(x, replace(x, name="y", kind=BufferKind.OUTPUT)), {"x": x, "y": replace(x, name="y")}
        ).wide
        is wide
    )


def copying(x, y):
    """A kernel that copies one buffer to another."""
    axes = tuple(Axis(axis_symbol(f"i{k}", size), size) for k, size in enumerate(x.sizes))
    index = axes[0].symbol * x.strides[0] + axes[1].symbol
    store = Store(y.name, index, build.load(x.name, x.dtype, index))
    nest = LoopNest("copy", axes, (), (), (store,), "cuda:0", ("copy",))
    return Group("triton_poi_copy", GroupKind.POINTWISE, (nest,), axes, device="cuda:0")
