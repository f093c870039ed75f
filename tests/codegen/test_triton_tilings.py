"""Every cut of every form of kernel that tuning may choose, in Triton's interpreter: eager's numbers, whatever the tiles, warps and walks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.codegen.triton.kernels import kernel
from braze.loops.ir import Axis, LoopNest, LoopProgram, Node, Op, Store
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group, GroupKind, MemoryPlan, Schedule
from braze.schedule.forms import whole_vectors
from braze.schedule.gpu import tilings as tilings_module
from braze.schedule.gpu.kernels import plan_kernel
from braze.schedule.gpu.tilings import (
    LONGEST,
    WARP,
    Tiling,
    neighbours,
    parsed_tiling,
    planned_as,
    tiling_of,
    tilings,
)
from braze.symbolic.expr import ZERO, as_expr, axis_symbol
from tests.codegen.test_triton import offline
from tests.codegen.test_triton_forms import agree, exact, numbers, small  # noqa: F401  a fixture
from tests.codegen.test_triton_mixed import layer_norm as norm_backward
from tests.codegen.test_triton_mixed import norm_inputs
from tests.codegen.triton_bench import context, launcher, planned, run
from tests.codegen.triton_groups import F32, buffer, read
from tests.codegen.triton_offline import dropout

NAN, INF = torch.nan, torch.inf


def cuts(plan):
    """(kernel's name, cut) of all that tuning may choose beside the rule's."""
    buffers = {b.name: b for b in plan.program.buffers}
    return [(g.name, t) for g in plan.groups if g.steps for t in tilings(g, buffers)[1:]]


def made(plan, folder, name, tiling, inputs, cores=132):
    """What a schedule gives with one kernel cut so."""
    texts = generate(plan, replace(context(cores), tiles=((name, tiling.text()),)))
    (text,) = (t for t in texts if t.name == name)
    plain = next(t for t in generate(plan, context(cores)) if t.name == name)
    assert text.canonical != plain.canonical, "another cut is another kernel"
    return run(plan, folder, *inputs, cores=cores, texts=texts)


def check(fn, folder, *inputs, cores=132, digits=1e-5):
    """Each cut gives eager's numbers; the cuts."""
    plan = planned(fn, *inputs, cores=cores)
    wanted, found = exact(fn, *inputs), cuts(plan)
    for name, tiling in found:
        agree(made(plan, folder, name, tiling, inputs, cores), wanted, digits)
    return [t for _, t in found]


# -- points -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(3, 1000), (1, 4099), (2049,), (1,)])
def test_points(shape, dtype, tmp_path):
    x, y = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)
    join = torch.logical_xor if dtype is torch.bool else torch.add
    found = check(lambda x, y: join(x, y), tmp_path, x, y, digits=2e-2)
    assert len(found) >= (3 if math.prod(shape) > 1 else 0)


@pytest.mark.parametrize("shape", [(65, 70), (64, 128), (3, 300)])
def test_squares(shape, tmp_path):
    assert check(lambda x, y: x + y.t(), tmp_path, numbers(*shape), numbers(*shape[::-1], seed=1))


def test_squares_of_an_expanded_and_an_offset_input(tmp_path):
    x, y = numbers(40, 1).expand(40, 50), numbers(51, 41, seed=1)[1:, 1:]
    assert check(lambda x, y, z: x + y.t() + z, tmp_path, x, y, numbers(40, 50, seed=2))


def test_nothing_at_all(tmp_path):
    check(lambda x: (x * 2, x.sum(0)), tmp_path, numbers(0, 5))


def test_random_numbers_are_those_of_the_rule(tmp_path):
    group, buffers = dropout()
    plan = Schedule(
        LoopProgram("p", tuple(buffers), group.steps, ("x", "seed"), ()), (group,), MemoryPlan((), ZERO)
    )
    found = cuts(plan)
    memory = {"x": torch.ones(1000), "seed": torch.tensor(7)}
    results = []
    for tiling in (None, *(t for _, t in found)):
        text = kernel(group, planned_as(group, {b.name: b for b in buffers}, tiling), plan)
        path = tmp_path / f"cut_{len(results)}.py"
        path.write_text(text.source)
        memory["out"] = torch.full((1000,), NAN)
        launcher(path, text)(*(memory[a] for a in text.args))
        results.append(memory["out"])
    assert len(results) > 3 and results[0].unique().numel() > 900
    assert all(torch.equal(r, results[0]) for r in results)


# -- rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(5, 300), (1, 2100), (70, 33), (3, 1), (2, 1024)])
def test_whole_rows(shape, dtype, tmp_path):
    digits = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    check(lambda x: torch.softmax(x, -1), tmp_path, numbers(*shape, dtype=dtype), digits=digits)


def test_a_row_held_whole_may_be_walked(tmp_path):
    found = check(lambda x: torch.softmax(x, -1), tmp_path, numbers(1, 5000))
    assert {t.rows for t in found} == {"whole", "walk"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_is_walked_may_be_held_whole(dtype, monkeypatch, tmp_path):
    monkeypatch.setattr(Choices, "persistent_bytes", 256)
    digits = 1e-5 if dtype is torch.float32 else 2e-2
    found = check(lambda x: torch.log_softmax(x, -1), tmp_path, numbers(2, 2500, dtype=dtype), digits=digits)
    assert {t.rows for t in found} == {"whole", "walk"}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [640, 1001])
def test_rows_walked_twice_by_few_programs_at_once(width, dtype, monkeypatch, tmp_path):
    """So few that the second walk finds their rows in the cache."""
    monkeypatch.setattr(tilings_module, "AT_ONCE", 512)
    monkeypatch.setattr(tilings_module, "LONG_ROW", 0)
    x = numbers(3, width, dtype=dtype)
    x[1, 7], x[2, 90] = -INF, NAN
    digits = 1e-5 if dtype is torch.float32 else 2e-2
    found = check(lambda x: torch.log_softmax(x, -1), tmp_path, x, cores=1, digits=digits)
    assert len([t for t in found if t.rows == "alone"]) == 2


def test_long_rows_may_be_held_whole_by_all_threads():
    """Of 32,000 columns in bfloat16 a row that is held whole is 7% quicker than one that is walked, of 30,522 slower: the clock tells."""
    for columns, whole in ((32000, 2), (50257, 0)):
        groups, buffers = groups_of(
            lambda x: torch.log_softmax(x, -1),
            torch.empty(4096, columns, dtype=torch.bfloat16, device="meta"),
        )
        found = tilings(groups[0], buffers)
        assert len([t for t in found if t.rows == "whole"]) == whole and any(t.rows == "alone" for t in found)
        for t in found:
            plan = planned_as(groups[0], buffers, t)
            assert tiling_of(plan) == t and plan.streamed is (t.rows in ("alone", "held"))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("width", [640, 641, 1001])
def test_walked_rows_of_every_reduction(width, tmp_path):
    """Rows that begin anywhere, and special values."""
    x = numbers(4, width)
    x[1, 7], x[2, 90], x[3, :], x[2, 91] = NAN, INF, -INF, -INF
    fn = lambda x: (
        x.amax(1),
        x.amin(1),
        x.argmax(1),
        x.sum(1),
        torch.softmax(x, 1),
        (x > 2).any(1),
        x.clamp(0.9, 1.1).prod(1),
    )
    assert any(t.rows == "walk" for t in check(fn, tmp_path, x, cores=1, digits=1e-4))


@pytest.mark.parametrize("width", [260, 3000])
def test_norms(width, tmp_path):
    fn = lambda x, w, b: F.layer_norm(x + 100, (width,), w, b)
    assert check(fn, tmp_path, numbers(7, width), numbers(width, seed=1), numbers(width, seed=2), digits=1e-3)


@pytest.mark.usefixtures("small")
def test_a_variance_of_walked_rows(tmp_path):
    assert check(lambda x: torch.var_mean(x + 100, 1), tmp_path, numbers(3, 777), digits=1e-3)


# -- columns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (7, 1), (70, 65), (300, 3), (120, 130)])
def test_columns(rows, columns, tmp_path):
    check(lambda x: (x.sum(0), x.amax(0)), tmp_path, numbers(rows, columns), digits=1e-4)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_columns_in_parts(dtype, tmp_path):
    digits = 1e-4 if dtype is torch.float32 else 0.3
    x = numbers(521, 70, dtype=dtype)
    assert check(lambda x: x.sum(0), tmp_path, x, cores=2, digits=digits)


def test_the_norm_of_columns(tmp_path):
    fn = lambda x: x / torch.linalg.vector_norm(x, 2, (1,), keepdim=True)
    assert check(fn, tmp_path, numbers(2, 150, 40))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(61, 33), (97, 1), (40, 300)])
def test_rows_and_columns_from_one_read(shape, dtype, tmp_path):
    inputs = norm_inputs(*shape, dtype)
    plan = planned(norm_backward, *inputs, cores=1)
    buffers = {b.name: b for b in plan.program.buffers}
    assert any(plan_kernel(g, buffers).form is Form.MIXED for g in plan.groups) or shape[1] == 1
    digits = 1e-4 if dtype is torch.float32 else 0.2
    check(norm_backward, tmp_path, *inputs, cores=1, digits=digits)


# -- which ------------------------------------------------------------------------------------------------


def groups_of(fn, *inputs):
    plan = planned(fn, *inputs)
    return plan.groups, {b.name: b for b in plan.program.buffers}


def test_the_rule_is_first_and_its_text_names_the_same_plan():
    for fn, shape in (
        (lambda x: x.sigmoid(), (64, 4096)),
        (lambda x: x.sum(0), (4096, 64)),
        (lambda x: x.sum(1), (64, 4096)),
    ):
        groups, buffers = groups_of(fn, torch.empty(shape, device="meta"))
        for group in groups:
            rule, *others = tilings(group, buffers)
            assert rule == tiling_of(plan_kernel(group, buffers)) and len(others) <= 8
            assert planned_as(group, buffers, parsed_tiling(rule.text())) == plan_kernel(group, buffers)
            assert rule not in others


def test_what_memory_decides_keeps_the_rule():
    table, places = torch.empty(5000, 640, device="meta"), torch.empty(300, dtype=torch.int64, device="meta")
    groups, buffers = groups_of(lambda w, i: F.embedding(i, w) * 2, table, places)
    assert all(len(tilings(g, buffers)) == 1 for g in groups)


def test_what_is_written_over_keeps_the_rule():
    i = axis_symbol("i", 100000)
    for target, others in (("x", 0), ("y", 4)):
        store = Store(target, i, Node(Op.NEG, F32, (read("x", i),)))
        nest = LoopNest("n", (Axis(i, as_expr(100000)),), (), (), (store,), "cuda:0", ("neg",))
        group = Group("g", GroupKind.POINTWISE, (nest,), nest.axes, device="cuda:0")
        assert len(tilings(group, {n: buffer(n, (100000,)) for n in "xy"})) == 1 + others


def test_tiles_divide_the_parts_of_programs():
    """Of a tile that is larger than a part, or does not divide it, programs would have more than others, or none."""
    inputs = norm_inputs(61, 33, torch.float32)
    plan = planned(norm_backward, *inputs, cores=1)
    buffers = {b.name: b for b in plan.program.buffers}
    (group,) = (g for g in plan.groups if g.walked is not None)
    rule = plan_kernel(group, buffers)
    for rows in (2 * rule.walked.value, 3):
        told = replace(tiling_of(rule), blocks=(rows, tiling_of(rule).blocks[1]))
        assert planned_as(group, buffers, told) == rule


def steps(fn, folder, *inputs, cores=132, digits=1e-5, far=1):
    """Each cut to which coordinate descent may go in so many steps gives eager's numbers; the cuts."""
    plan = planned(fn, *inputs, cores=cores)
    wanted, buffers = exact(fn, *inputs), {b.name: b for b in plan.program.buffers}
    found = []
    for group in plan.groups:
        if not group.steps:
            continue
        rule = tiling_of(plan_kernel(group, buffers))
        known = {rule}
        edge = list(dict.fromkeys([rule, *tilings(group, buffers)]))
        known.update(edge)
        for _ in range(far):
            edge = list(
                dict.fromkeys(n for t in edge for n in neighbours(group, buffers, t) if n not in known)
            )
            known.update(edge)
            for tiling in edge:
                agree(made(plan, folder, group.name, tiling, inputs, cores), wanted, digits)
            found += edge
    return found


def test_descent_over_points_and_squares(tmp_path):
    assert steps(lambda x: x.sigmoid(), tmp_path, numbers(3, 1000))
    assert steps(lambda x, y: x + y.t(), tmp_path, numbers(65, 40), numbers(40, 65, seed=1))


@pytest.mark.parametrize("shape", [(3, 300), (70, 33), (2, 1024)])
def test_descent_over_whole_rows(shape, tmp_path):
    found = steps(lambda x: torch.softmax(x, -1), tmp_path, numbers(*shape))
    assert all(t.blocks[-1] >= shape[1] for t in found if t.rows == "whole"), "a row is held whole"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("width", [1001, 1024])
def test_descent_over_walked_rows(width, tmp_path):
    """Those that begin anywhere are walked one by one."""
    found = steps(lambda x: torch.log_softmax(x, 1), tmp_path, numbers(3, width), cores=1)
    walks = [t for t in found if t.rows == "walk"]
    assert len({t.stages for t in walks}) > 1 and len({t.blocks[-1] for t in walks}) > 1
    assert len({t.blocks[0] for t in walks}) == (1 if width % 2 else 2)


@pytest.mark.parametrize(("rows", "columns"), [(70, 65), (300, 3)])
def test_descent_over_columns(rows, columns, tmp_path):
    assert steps(lambda x: (x.sum(0), x.amax(0)), tmp_path, numbers(rows, columns), digits=1e-4)


@pytest.mark.parametrize("width", [1030, 20000])
def test_descent_over_rows_that_are_held(width, monkeypatch, tmp_path):
    """To their end, and in part: tiles are of another size, and as much of a row is held."""
    monkeypatch.setattr(whole_vectors, "LEAST", 2048)
    x = numbers(2, width, dtype=torch.bfloat16)
    fn = lambda x: F.layer_norm(x + 1, (width,))
    plan = planned(fn, x)
    (group,), buffers = [g for g in plan.groups if g.steps], {b.name: b for b in plan.program.buffers}
    rule = plan_kernel(group, buffers)
    assert rule.held and rule.to_its_end is (width == 1030)
    found = steps(fn, tmp_path, x, digits=3e-2)
    held = [t for t in found if t.rows == "held"]
    assert len({t.warps for t in held}) > 1
    for t in held:
        plan = planned_as(group, buffers, t)
        assert plan.held and plan.to_its_end is rule.to_its_end
        kept = plan.held * plan.row.block
        assert kept == rule.held * rule.row.block or (rule.to_its_end and width - kept < plan.row.block + 8)
    assert {t.blocks[-1] for t in held} > {rule.row.block}


def test_descent_over_rows_and_columns_from_one_read(tmp_path):
    inputs = norm_inputs(61, 33, torch.float32)
    assert steps(norm_backward, tmp_path, *inputs, cores=1, digits=1e-3)


def test_what_has_no_cut_of_its_own_has_no_neighbours():
    groups, buffers = groups_of(lambda x: x * 2, torch.empty(100, device="meta"))
    assert neighbours(groups[0], buffers, Tiling("whole", (1, 1024), 4, 1)) == ()


def test_rows_in_parts_by_where_they_begin_keep_the_rule():
    """In another cut a part has other rows: its sums down the columns could not be compared, and were always left out, with a word."""
    inputs = [
        torch.empty(x.shape, dtype=x.dtype, device="meta") for x in norm_inputs(4096, 1025, torch.bfloat16)
    ]
    plan = planned(norm_backward, *inputs)
    buffers = {b.name: b for b in plan.program.buffers}
    (group,) = (g for g in plan.groups if g.walked is not None)
    assert plan_kernel(group, buffers).begin is not None and len(tilings(group, buffers)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_summed_down_their_columns_have_no_other_form(dtype):
    """Whether they are held whole or in part: a kernel that walked them would leave out those sums."""
    shapes = [(4096, 8192), (4096, 8192), (8192,), (4096, 1), (4096, 1)]
    plan = planned(norm_backward, *(torch.empty(s, dtype=dtype, device="meta") for s in shapes))
    buffers = {b.name: b for b in plan.program.buffers}
    (group,) = (g for g in plan.groups if g.walked is not None)
    told = tilings(group, buffers)
    assert len(told) > 3 and all(planned_as(group, buffers, t).form is Form.MIXED for t in told)
    assert planned_as(group, buffers, Tiling("walk", (1, 1024), 4, 1)) == plan_kernel(group, buffers)


def test_a_cut_that_is_not_of_the_kernels_form_is_the_rules():
    groups, buffers = groups_of(lambda x: x * 2, torch.empty(100, device="meta"))
    for strange in (
        Tiling("whole", (1, 1024), 4, 1),
        Tiling("points", (8, 8), 4, 1),
        Tiling("walk", (1,), 4, 1),
    ):
        assert planned_as(groups[0], buffers, strange) == plan_kernel(groups[0], buffers)


def test_walks_of_less_than_a_warp_at_once_or_of_more_than_registers_hold_are_the_rules():
    groups, buffers = groups_of(lambda x: x.sum(1), torch.empty(4096, 200000, device="meta"))
    rule = plan_kernel(groups[0], buffers)
    for at_once, fits in ((WARP // 2, False), (WARP, True), (LONGEST, True), (2 * LONGEST, False)):
        told = replace(tiling_of(rule), blocks=(1, at_once), warps=1)
        assert tiling_of(planned_as(groups[0], buffers, told)) == (told if fits else tiling_of(rule))


def test_long_columns_are_tried_in_tiles_as_large_of_other_shapes():
    groups, buffers = groups_of(lambda x: x.sum(0), torch.empty(4096, 200000, device="meta"))
    rule, *others = tilings(groups[0], buffers)
    (x, r), shapes = rule.blocks, {t.blocks for t in others if t.blocks != rule.blocks}
    assert rule.rows == "walk" and shapes == {(x // 2, 2 * r), (2 * x, r // 2)}


def test_a_text_that_is_no_cut_is_refused():
    with pytest.raises(ValueError, match="not a tiling"):
        parsed_tiling("cores 16x32x256 s4 w4 p2 b1")


@pytest.mark.slow
def test_cuts_fit_a_multiprocessor():
    """Compiled to sm_90 machine code: registers and shared memory; few cuts spill."""
    printed = [
        line for line in offline("tests.codegen.tilings_offline").splitlines() if line.startswith("cut ")
    ]
    spilled = [line for line in printed if " 0 bytes of stack" not in line]
    assert len(printed) > 40 and len(spilled) <= 3
