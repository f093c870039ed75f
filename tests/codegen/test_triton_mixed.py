"""Rows and columns of one matrix from one read, in Triton's interpreter: the backward of norms, and what must not become that."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.codegen.triton.kernels import kernel
from braze.loops.ir import Op
from braze.loops.rewrite import roots, walk
from braze.schedule.facts.records import GroupKind
from braze.schedule.forms import mixed as mixed_form
from braze.schedule.gpu import held, kernels, tile_sizes
from braze.schedule.stage import scheduler
from tests.codegen.test_triton_forms import agree, exact, numbers
from tests.codegen.triton_bench import context, interpreted, planned
from tests.loops.interpret import interpret

NAN, INF = torch.nan, torch.inf
DIGITS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 0.2}


def layer_norm(g, x, w, mean, rstd):
    n = x.shape[-1:]
    return torch.ops.aten.native_layer_norm_backward(g, x, n, mean, rstd, w, w, [True, True, True])


def rms_norm(g, x, w, rstd):
    away = (g * w * x).mean(1, keepdim=True)
    return (g * w - x * rstd * rstd * away) * rstd, (g * x * rstd).sum(0)


def norm_inputs(rows, width, dtype):
    g, x, w = (
        numbers(*s, dtype=dtype, seed=k) for k, s in enumerate([(rows, width), (rows, width), (width,)])
    )
    wide = x.double()
    mean, rstd = wide.mean(1, keepdim=True), (wide.var(1, correction=0, keepdim=True) + 1e-5).rsqrt()
    return g, x, w, mean.to(dtype), rstd.to(dtype)


def mixed(plan):
    return [g for g in plan.groups if g.kind is GroupKind.MIXED]


def check(fn, folder, *inputs, cores=1, digits=1e-4):
    """Run, compare, and give the schedule; the loops alone, interpreted, must agree as well."""
    plan, results = interpreted(fn, folder, *inputs, cores=cores)
    agree(results, exact(fn, *inputs), digits)
    if inputs[0].dtype is not torch.bfloat16:
        agree(interpret(plan.program, list(inputs)), exact(fn, *inputs), digits)
    return plan


@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize("shape", [(64, 64), (61, 33), (97, 1), (40, 300)])
def test_the_backward_of_a_layer_norm_reads_once(shape, dtype, tmp_path):
    plan = check(layer_norm, tmp_path, *norm_inputs(*shape, dtype), digits=DIGITS[dtype])
    if shape[1] > 1:
        assert len(mixed(plan)) == 1 and len(plan.groups) == 2
        assert {"g", "x"} <= set(mixed(plan)[0].reads) and not {"g", "x"} & set(plan.groups[1].reads)


@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize("cores", [1, 3])
def test_the_backward_of_an_rms_norm_reads_once(dtype, cores, tmp_path):
    g, x, w, _, rstd = norm_inputs(67, 48, dtype)
    plan = check(rms_norm, tmp_path, g, x, w, rstd, cores=cores, digits=DIGITS[dtype])
    assert len(mixed(plan)) == 1 and len(plan.groups) == 2


@pytest.mark.parametrize("rows", [16, 17, 20, 31, 32, 65])
def test_rows_that_programs_share_unevenly(rows, tmp_path):
    """Tiles and parts that end before, at and past the last row."""
    plan = check(layer_norm, tmp_path, *norm_inputs(rows, 40, torch.float32))
    assert len(mixed(plan)) == 1


def test_many_parts_are_added_by_one_kernel(monkeypatch):
    monkeypatch.setattr(mixed_form, "PROGRAMS", 8)
    shapes = [(65536, 1024), (65536, 1024), (1024,), (65536, 1), (65536, 1)]
    plan = planned(layer_norm, *(torch.empty(s, device="meta") for s in shapes))
    assert len(mixed(plan)) == 1 and len(plan.groups) == 2


def test_infinities_and_nans_stay_in_their_rows_and_columns(tmp_path):
    g, x, w, _, rstd = norm_inputs(45, 40, torch.float32)
    g[3, 7], g[44, 39], x[20, 0], g[30, 5] = NAN, INF, -INF, -0.0
    check(rms_norm, tmp_path, g, x, w, rstd)


def test_turned_offset_and_expanded_inputs(tmp_path):
    g, x, w, mean, rstd = norm_inputs(45, 40, torch.float32)
    wide = numbers(50, 90)
    check(layer_norm, tmp_path, wide[5:, 50:], x, w, mean, rstd)
    check(layer_norm, tmp_path, g[:1].expand(45, 40), x, w, mean, rstd)
    check(layer_norm, tmp_path, g, numbers(40, 45).t(), w, mean, rstd)


@pytest.mark.parametrize("rows", [0, 1, 15])
def test_few_rows_are_not_worth_it(rows, tmp_path):
    g, x, w, _, rstd = norm_inputs(rows, 40, torch.float32)
    assert not mixed(check(rms_norm, tmp_path, g, x, w, rstd))


def test_every_plain_reduction_down_the_columns(tmp_path):
    x = numbers(45, 24)
    x[4, 4], x[44, 23] = NAN, -INF
    fn = lambda x: (
        x / (x.abs().sum(1, keepdim=True) + 1),
        x.sum(0),
        x.amax(0),
        x.amin(0),
        (x * 0.9).prod(0),
        (x > 2).any(0),
        (x > -2).all(0),
    )
    plan = check(fn, tmp_path, x)
    assert len(mixed(plan)) == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (torch.softmax(x, 1), x.argmax(0)),
        lambda x: (torch.softmax(x, 1), x.var(0)),
        lambda x: (x.sum(0), x / x.sum(0).sum() + x.sum(1, keepdim=True)),  # the rows need the columns' sums
    ],
    ids=["places", "moments", "needed"],
)
def test_what_is_not_mixed(fn, tmp_path):
    assert not mixed(check(fn, tmp_path, numbers(45, 24)))


def test_a_row_that_no_program_holds_is_not_mixed():
    shapes = [(4096, 32768), (4096, 32768), (32768,), (4096, 1), (4096, 1)]
    assert not mixed(planned(layer_norm, *(torch.empty(s, device="meta") for s in shapes)))


def test_the_benchmarks_norms_are_read_once():
    few = 8, kernels.ROW_STAGES  # warps of a multiprocessor, tiles on their way
    many = 16, tile_sizes.STAGES
    for rows, width, known in (
        (65536, 1024, many),
        (16384, 4096, few),
        (8192, 2048, few),
        (65536, 768, None),
        (6000, 768, many),
        (16384, 3072, None),
    ):
        shapes = [(rows, width), (rows, width), (width,), (rows, 1), (rows, 1)]
        inputs = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in shapes]
        plan = planned(layer_norm, *inputs)
        (group,) = mixed(plan)
        loads = [n for step in group.steps[:3] for n in walk(*roots(step)) if n.op is Op.LOAD]
        assert {n.attr[0] for n in loads} >= {"g", "x"}
        made = kernels.plan_kernel(group, {b.name: b for b in plan.program.buffers})
        if known is None:
            cut = held.DOWN_CUTS[width]
            assert (made.held, made.warps, made.programs.value) == (cut.tiles, cut.warps, 132 * cut.programs)
            continue
        warps, stages = known
        assert made.programs.value == 132 * warps // made.warps and not made.held
        assert made.form is kernels.Form.MIXED and made.stages == stages


def test_sums_along_rows_are_taken_together_where_neither_waits_for_the_other(tmp_path):
    def text(fn, *inputs):
        plan = check(fn, tmp_path, *inputs)
        (group,) = mixed(plan)
        made = kernels.plan_kernel(group, {b.name: b for b in plan.program.buffers})
        return kernel(group, made, plan).source

    def one_after_the_other(x):
        away = x - x.sum(1, keepdim=True) / 64
        return away / (away * away).sum(1, keepdim=True), x.sum(0)

    assert "bz_two_sums)" in text(layer_norm, *norm_inputs(64, 40, torch.float32))
    assert "bz_two_sums)" not in text(one_after_the_other, numbers(64, 64))


@pytest.mark.parametrize("by", [4096.0, -0.125, 2.0**100, 1.0 / 2**100, 3072.0])
def test_dividing_by_a_power_of_two_is_multiplying(by, tmp_path):
    """The same number, of what rounds to a subnormal one, overflows, or is none, too."""
    x = numbers(64, 8)
    x[0] = torch.tensor([1e-38, -1e-45, 3e38, INF, -INF, NAN, 0.0, -0.0])
    plan, (found,) = interpreted(lambda x: x / by, tmp_path, x)
    torch.testing.assert_close(found, x / by, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit(), (x / by).signbit())
    (group,) = plan.groups
    made = kernels.plan_kernel(group, {b.name: b for b in plan.program.buffers})
    assert ("div_rn" in kernel(group, made, plan).source) is (by == 3072.0)


def layer_norm_of_a_sum(g, h, x, w, mean, rstd):
    """The backward of a norm whose incoming gradient is a sum that goes on to others too."""
    total = g + h
    found = layer_norm(total, x, w, mean, rstd)
    return total, found[0], found[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [40, 300])
def test_what_rows_write_is_summed_down_columns_without_a_second_read(width, dtype, tmp_path):
    g, x, w, mean, rstd = norm_inputs(61, width, dtype)
    plan = check(layer_norm_of_a_sum, tmp_path, g, x * 0.5, x, w, mean, rstd, digits=DIGITS[dtype])
    (both,) = mixed(plan)
    assert len(plan.groups) == 2
    assert len(both.writes) == 3  # the sum, the input's gradient, the parts of the weight's


def test_a_result_of_the_rows_is_summed_where_it_is_made(tmp_path):
    plan = check(lambda x: (y := torch.softmax(x, 1), y.sum(0)), tmp_path, numbers(64, 64))
    assert len(mixed(plan)) == 1


def test_two_walks_down_the_columns_and_one_along_the_rows_are_two_kernels(tmp_path):
    """The columns' powers beside the rows' results would be written and read again."""
    plan = check(lambda x: (torch.softmax(x, 1), torch.softmax(x, 0)), tmp_path, numbers(45, 24))
    assert not mixed(plan) and len(plan.groups) == 2


def test_a_sum_that_nobody_else_reads_is_not_written(tmp_path):
    g, x, w, mean, rstd = norm_inputs(61, 300, torch.float32)
    fn = lambda g, h, x, w, mean, rstd: layer_norm_of_a_sum(g, h, x, w, mean, rstd)[1:]
    plan = check(fn, tmp_path, g, x * 0.5, x, w, mean, rstd)
    assert len(mixed(plan)) == 1 and len(mixed(plan)[0].writes) == 2


def test_columns_of_another_place_than_rows_write_are_a_kernel_of_their_own(tmp_path):
    """What the columns' kernel reads of the rows' result lies elsewhere at the same point."""
    g, x, w, mean, rstd = norm_inputs(64, 64, torch.float32)

    def fn(g, x, w, mean, rstd):
        dx = layer_norm(g, x, w, mean, rstd)[0]
        return dx, (dx.flip(0) * x).sum(0)

    assert not mixed(check(fn, tmp_path, g, x, w, mean, rstd))


def test_columns_move_past_another_norm_that_is_mixed_already(monkeypatch):
    """Between a norm's rows and its columns stand the kernels that another one became, with a buffer of their own."""

    def two(g, x, h, y, w, mean, rstd):
        first, second = layer_norm(g, x, w, mean, rstd), layer_norm(h, y, w, mean, rstd)
        return first[0], first[1], second[0], second[1]

    def interleaved(groups, *rest):
        rows = [g for g in groups if len(g.axes) == 1 and g.axes[0].extent.value == 64]
        columns = [g for read in ("x", "y") for g in groups if g not in rows and read in g.reads]
        rows.sort(key=lambda g: "y" in g.reads)
        assert len(rows) == len(columns) == 2
        return mixed_form.mix_groups([*rows, *columns], *rest)

    monkeypatch.setattr(scheduler, "mix_groups", interleaved)
    shapes = [(64, 40)] * 4 + [(40,), (64, 1), (64, 1)]
    assert len(mixed(planned(two, *(torch.empty(s, device="meta") for s in shapes), cores=1))) == 2


def dropped(g, x, w, mean, rstd, mask):
    """The backward of a norm that follows a dropout."""
    found = layer_norm(g, x, w, mean, rstd)
    return found[0], found[1], found[2], found[0] * mask * 2


def test_a_mask_of_bytes_leaves_each_thread_whole_columns(tmp_path):
    """Bytes are read sixteen at a time: four warps would take two rows of 1,024 between them, and sum across each other at each tile."""
    wide = [((8192, 768), torch.float32)] * 2 + [((768,), torch.float32)] + [((8192, 1), torch.float32)] * 2
    for mask, rows in ((torch.bool, 1), (torch.float32, 2)):
        shapes = [*wide, ((8192, 768), mask)]
        (group,) = mixed(
            plan := planned(dropped, *(torch.empty(s, dtype=d, device="meta") for s, d in shapes))
        )
        tile = kernels.plan_kernel(group, {b.name: b for b in plan.program.buffers})
        assert tile.points[0].block == rows
        assert tile.row.block >= 32 * (16 // mask.itemsize) * tile.warps
    check(dropped, tmp_path, *norm_inputs(61, 33, torch.float32), numbers(61, 33) > 0)


def test_only_kernels_over_one_matrix_are_compared(monkeypatch):
    """Each of a model's norms with each of its other kernels, again after each norm that is mixed, is 5 of 7 seconds for a hundred layers."""
    compared = []
    match = mixed_form._match

    def noting(rows, columns, *rest):
        compared.append((rows, columns))
        return match(rows, columns, *rest)

    monkeypatch.setattr(mixed_form, "_match", noting)
    given = [x for width in (32, 48, 96) for x in norm_inputs(64, width, torch.float32)]

    def backwards(a, b, c, d, e, f, g, h, i, j, k, m, n, o, p):
        made = layer_norm(a, b, c, d, e), layer_norm(f, g, h, i, j), layer_norm(k, m, n, o, p)
        return [each[part] for each in made for part in range(3)]

    plan = planned(backwards, *given, cores=1)
    assert len(mixed(plan)) == 3 and len(compared) >= 3
    for rows, columns in compared:
        over = [[a.extent for a in axes] for axes in (rows.axes, rows.row_axes)]
        assert over == [[a.extent for a in axes] for axes in (columns.row_axes, columns.axes)]


# -- rows that begin anywhere -----------------------------------------------------------------------------


def plan_of_mixed(plan):
    (both,) = mixed(plan)
    return kernels.plan_kernel(both, {b.name: b for b in plan.program.buffers})


@pytest.mark.parametrize(
    ("rows", "width", "dtype"),
    [
        (32, 1025, torch.float16),
        (61, 1025, torch.float16),
        (33, 1031, torch.bfloat16),
        (33, 1026, torch.float32),
        (61, 2049, torch.float16),
        (33, 3001, torch.float32),
    ],
)
def test_the_backward_of_a_norm_whose_rows_begin_anywhere_reads_whole_vectors(rows, width, dtype, tmp_path):
    """Programs take rows that begin at one place in a vector, as many of each; the last ones have fewer, or none."""
    plan = check(layer_norm, tmp_path, *norm_inputs(rows, width, dtype), digits=DIGITS[dtype])
    made = plan_of_mixed(plan)
    assert made.begin is not None and made.to_its_end and not made.whole
    assert (made.programs.value or 1) % made.vector == 0
    g, x, w, _, rstd = norm_inputs(rows, width, dtype)
    plan = check(rms_norm, tmp_path, g, x, w, rstd, digits=DIGITS[dtype])
    assert plan_of_mixed(plan).begin is not None


def test_every_plain_reduction_down_columns_of_rows_that_begin_anywhere(tmp_path):
    x = numbers(45, 1025)
    x[4, 4], x[44, 1023], x[7, 1024], x[30, 0] = NAN, -INF, INF, NAN
    fn = lambda x: (
        x / (x.abs().sum(1, keepdim=True) + 1),
        x.sum(0),
        x.amax(0),
        x.amin(0),
        (x * 0.1 + 1).prod(0),
        (x > 2).any(0),
        (x > -2).all(0),
    )
    assert plan_of_mixed(check(fn, tmp_path, x)).begin is not None


def test_columns_alone_that_need_what_rows_sum(tmp_path):
    """Nothing is written along the rows: the columns are a walk of their own."""
    fn = lambda x, y: (s := (x * y).sum(1, keepdim=True), (x * s).sum(0))
    plan = check(fn, tmp_path, numbers(45, 1025), numbers(45, 1025, seed=1), digits=1e-3)
    assert not mixed(plan) or plan_of_mixed(plan).begin is not None


def test_rows_of_an_offset_input_begin_elsewhere_and_are_held_whole(tmp_path):
    _, x, w, mean, rstd = norm_inputs(33, 1025, torch.float32)
    wide = numbers(34, 1030)[1:, 3:1028]
    plan = check(layer_norm, tmp_path, wide, x, w, mean, rstd)
    assert not mixed(plan) or plan_of_mixed(plan).whole


def test_a_result_that_goes_on_to_the_columns_of_rows_that_begin_anywhere(tmp_path):
    g, x, w, mean, rstd = norm_inputs(41, 1025, torch.float32)
    plan = check(layer_norm_of_a_sum, tmp_path, g, x * 0.5, x, w, mean, rstd)
    assert plan_of_mixed(plan).begin is not None


# -- rows in tiles that they fill ---------------------------------------------------------------------------


@pytest.fixture
def cut(monkeypatch):
    """Rows of 48 half floats in three tiles, whatever is read of them, and however few there are."""
    cut = held.DownCut(16, 3, 1, 2, 3)
    monkeypatch.setattr(kernels, "down_cut", lambda length, sizes, rows: cut if length == 48 else None)


@pytest.mark.parametrize(("rows", "dtype"), [(32, torch.float16), (33, torch.bfloat16), (61, torch.float16)])
@pytest.mark.usefixtures("cut")
def test_the_backward_of_a_norm_whose_rows_fill_several_tiles(rows, dtype, tmp_path):
    """The last programs have fewer rows, or none."""
    plan = check(layer_norm, tmp_path, *norm_inputs(rows, 48, dtype), cores=2, digits=DIGITS[dtype])
    made = plan_of_mixed(plan)
    assert (made.held, made.row.block, made.whole, made.begin) == (3, 16, False, None)
    (both,) = mixed(plan)
    assert "bz_two_sums)" in kernel(both, made, plan).source
    g, x, w, _, rstd = norm_inputs(rows, 48, dtype)
    plan = check(rms_norm, tmp_path, g, x, w, rstd, cores=2, digits=DIGITS[dtype])
    assert plan_of_mixed(plan).held == 3


@pytest.mark.usefixtures("cut")
def test_every_plain_reduction_down_columns_of_rows_that_fill_several_tiles(tmp_path):
    x = numbers(45, 48, dtype=torch.float16)
    x[4, 4], x[44, 47], x[7, 15], x[30, 0], x[12, 16] = NAN, -INF, INF, NAN, -0.0
    fn = lambda x: (
        x / (x.abs().sum(1, keepdim=True) + 1),
        x.sum(0),
        x.amax(0),
        x.amin(0),
        (x * 0.1 + 1).prod(0),
        (x > 2).any(0),
        (x > -2).all(0),
    )
    assert plan_of_mixed(check(fn, tmp_path, x, digits=0.05)).held == 3


@pytest.mark.usefixtures("cut")
def test_a_result_that_goes_on_to_the_columns_of_rows_that_fill_several_tiles(tmp_path):
    g, x, w, mean, rstd = norm_inputs(41, 48, torch.float16)
    plan = check(layer_norm_of_a_sum, tmp_path, g, x * 0.5, x, w, mean, rstd, digits=0.05)
    assert plan_of_mixed(plan).held == 3


@pytest.mark.usefixtures("cut")
def test_two_sums_of_which_one_waits_for_the_other_in_several_tiles(tmp_path):
    def fn(x):
        away = x - x.sum(1, keepdim=True) / 64
        return away / ((away * away).sum(1, keepdim=True) + 1), x.sum(0)

    assert plan_of_mixed(check(fn, tmp_path, numbers(45, 48, dtype=torch.float16), digits=0.05)).held == 3


@pytest.mark.usefixtures("cut")
def test_infinities_and_nans_stay_in_their_rows_and_columns_of_several_tiles(tmp_path):
    g, x, w, mean, rstd = norm_inputs(45, 48, torch.float16)
    g[3, 7], g[44, 39], x[20, 0], g[30, 5], w[33] = NAN, INF, -INF, -0.0, INF
    plan = check(rms_norm, tmp_path, g, x, w, rstd, digits=0.05)
    assert plan_of_mixed(plan).held == 3
    g, x, w, mean, rstd = norm_inputs(45, 48, torch.float16)
    check(layer_norm, tmp_path, g[:1].expand(45, 48), x, w, mean, rstd, digits=0.05)
    check(layer_norm, tmp_path, numbers(50, 96, dtype=torch.float16)[5:, 48:], x, w, mean, rstd, digits=0.05)


@pytest.mark.parametrize(
    ("width", "tile", "warps"),
    [(1025, 512, 2), (3001, 1024, 4), (4097, 1024, 4), (5001, 1024, 4), (6001, 2048, 8), (8191, 2048, 8)],
)
def test_a_row_between_vectors_is_held_in_four_tiles_or_five_by_few_warps(width, tile, warps):
    shapes = [(8192, width), (8192, width), (width,), (8192, 1), (8192, 1)]
    given = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in shapes]
    plan = planned(layer_norm, *given)
    made = plan_of_mixed(plan)
    assert (made.row.block, made.warps) == (tile, warps) and made.to_its_end
    assert mixed(plan)[0].walked.part.extent.value == 8 * 132 // warps // 8 * 8


def test_columns_that_are_summed_in_more_ways_leave_a_thread_fewer_elements():
    def fn(g, x, rstd, w):
        h = x.float() * rstd
        gw = g.float() * w.float()
        sums = (g.float() * h).sum(0), g.float().sum(0), (g.float() * x.float()).sum(0), x.float().sum(0)
        return ((gw - h * (gw * h).mean(1, keepdim=True)) * rstd).bfloat16(), *sums

    shapes = [(8192, 4097), (8192, 4097), (8192, 1), (4097,)]
    given = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in shapes]
    given[2] = given[2].float()
    made = plan_of_mixed(planned(fn, *given))
    assert (made.row.block, made.warps) == (2048, 8)


def test_what_a_rows_sums_are_made_of_is_there_for_what_follows_from_them():
    """Made again it takes a quarter more instructions."""
    shapes = [(8192, 4097), (8192, 4097), (4097,), (8192, 1), (8192, 1)]
    given = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in shapes]
    (text, _) = generate(planned(layer_norm, *given), context())
    assert "bz_again" not in text.source and dict(text.launch.constants)["HELD"] == 255
    assert "ebase = tl.arange(0, 128)[None, :]" in text.source


def test_few_rows_are_held_in_one_tile():
    """Each program of several tiles leaves a row of sums: of few rows those are most of what is written."""
    for rows, tiles in ((7167, 0), (7168, 3)):
        shapes = [(rows, 768), (rows, 768), (768,), (rows, 1), (rows, 1)]
        given = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in shapes]
        assert plan_of_mixed(planned(layer_norm, *given)).held == tiles
        assert plan_of_mixed(planned(layer_norm, *(x.float() for x in given))).held == 0
