"""Choices among the ways to compute a GPU's products: measured once, kept, followed. Times are made up, and no GPU is needed."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from braze import pipeline
from braze.autotune import device_times, gemm_times, gemm_trials
from braze.autotune.device_times import alike
from braze.codegen.triton.gemm import tiles_of
from braze.codegen.triton.gemm_tiles import parsed
from braze.loops.ir import TemplateCall
from braze.products import RULED_BATCHES, DeviceProduct, Way, pays_by_rule, takes_template
from braze.schedule.facts.records import GroupKind
from braze.schedule.rewrites.unfused import unfused
from braze.target import cuda_target
from tests.autotune.untimed import as_if_measuring
from tests.codegen.triton_bench import captured, context, planned
from tests.loops.interpret import interpret


def layer(x, r, w, v):
    return r + F.linear(F.linear(x, w).relu(), v)


SHAPES = (torch.ones(4, 256, dtype=torch.float16), torch.ones(4, 256, dtype=torch.float16),
          torch.ones(96, 256, dtype=torch.float16), torch.ones(256, 96, dtype=torch.float16))  # fmt: skip


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """Measurements that give what the test says: seconds by (columns, way)."""
    as_if_measuring(gemm_times, monkeypatch, tmp_path)
    measured = []

    def seconds(trial):
        p = trial.product()
        measured.append(p)
        names = list(trial.texts)
        found = dict.fromkeys(names, 5e-6) | {Way.ATEN.value: 9e-6 if p.columns == 96 else 1e-6}
        found[names[1]] = 3e-6
        del found[names[0]]  # a kernel that could not be built
        return found

    monkeypatch.setattr(gemm_trials.Trial, "seconds", seconds)
    return measured


def compiled(**options):
    """(kinds of the groups, tiles by group) of the layer."""
    ctx = context(**options)
    partition = captured(layer, ctx, *SHAPES)
    _, plan = pipeline.scheduled(partition, ctx)
    return [g.kind for g in plan.groups], gemm_times.with_tiles([plan], ctx).tiles


def test_the_quicker_way_of_each_product_is_taken(clock):
    kinds, tiles = compiled(max_autotune=True)
    assert kinds.count(GroupKind.TEMPLATE) == 1 and kinds.count(GroupKind.EXTERN) == 1
    assert sorted(p.columns for p in clock) == [96, 256]
    assert len(tiles) == 1 and parsed(tiles[0][1])


def test_nothing_is_measured_twice_and_the_default_follows_what_is_kept(clock, monkeypatch):
    first = compiled(max_autotune=True)
    monkeypatch.setattr(device_times, "_KEPT", {})  # another process
    assert compiled(max_autotune=True) == compiled() == first
    assert len(clock) == 2


def test_the_default_measures_nothing(clock):
    kinds, tiles = compiled()
    assert GroupKind.TEMPLATE not in kinds and not tiles and not clock


def test_everywhere_and_nowhere_ask_nobody(clock):
    assert compiled(matmul_template=True, max_autotune=True)[0].count(GroupKind.TEMPLATE) == 2
    assert GroupKind.TEMPLATE not in compiled(matmul_template=False, max_autotune=True)[0]
    assert not clock


def test_a_product_that_no_kernel_of_ours_could_compute_stays_with_aten(clock, monkeypatch):
    monkeypatch.setattr(gemm_trials.Trial, "seconds", lambda trial: {Way.ATEN.value: 1.0})
    assert GroupKind.TEMPLATE not in compiled(max_autotune=True)[0]


def test_a_template_apart_computes_the_same():
    def gated(x, g, w):
        wide = x.float()
        y = g * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        a, b = F.linear(y, w).chunk(2, -1)
        return F.silu(a) * b

    given = [torch.randn(3, 32), torch.randn(32), torch.randn(20, 32)]
    plan = planned(gated, *given, matmul_template=True)
    (group,) = plan.groups
    program = unfused(group.call, {b.name: b for b in plan.program.buffers})
    by_name = dict(zip(plan.program.inputs, given, strict=True))
    (ours,) = interpret(program, [by_name[n] for n in program.inputs])
    torch.testing.assert_close(ours, gated(*given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("work", "steps"),
    [
        (lambda x, w, b, r: F.linear(x, w, b), ["aten.addmm.default"]),
        (lambda x, w, b, r: F.linear(x, w), ["aten.mm.default"]),
        (lambda x, w, b, r: F.gelu(F.linear(x, w, b)), ["aten.addmm.default", "after"]),
        (lambda x, w, b, r: r + F.linear(x, w, b), ["aten.addmm.default", "after"]),
        (lambda x, w, b, r: F.linear(x, w) + r, ["aten.mm.default", "after"]),
        (lambda x, w, b, r: F.linear(x, w, b).t(), ["aten.addmm.default"]),
    ],
    ids=["bias", "none", "bias and gelu", "bias and residual", "residual", "turned"],
)
def test_a_bias_is_added_by_atens_product_as_a_graph_without_the_template_has_it(work, steps, dtype):
    given = [torch.randn(*sizes).to(dtype) for sizes in ((3, 32), (20, 32), (20,), (3, 20))]
    plan = planned(work, *given, matmul_template=True)
    (group,) = plan.groups
    program = unfused(group.call, {b.name: b for b in plan.program.buffers})
    assert [getattr(s, "target", "after") for s in program.steps] == steps
    by_name = dict(zip(plan.program.inputs, given, strict=True))
    (ours,) = interpret(program, [by_name[n] for n in program.inputs])
    wanted = work(*given)
    apart = {} if dtype is torch.float32 else {"rtol": 0.02, "atol": 0.1}
    torch.testing.assert_close(
        ours.reshape(-1),
        wanted.t().reshape(-1) if ours.shape != wanted.shape else wanted.reshape(-1),
        **apart,
    )


def test_types_that_the_template_does_not_multiply():
    for dtype, rows, can in (
        ("f32", 8, True),
        ("f32", 9, False),
        ("f32", None, False),
        ("f64", 1, False),
        ("bf16", None, True),
    ):
        assert takes_template(DeviceProduct(dtype, rows, 8, 8), True, {}) is can


def test_a_trial_runs_the_kernel_in_each_way_and_the_work_apart(monkeypatch, tmp_path):
    """In Triton's interpreter, on the CPU's memory."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))

    def gated(x, w, r):
        a, b = F.linear(x, w).chunk(2, -1)
        return r + a.sigmoid() * b

    given = [torch.randn(3, 40), torch.randn(20, 40), torch.randn(3, 10)]
    plan = planned(gated, *given, matmul_template=True)
    (group,) = plan.groups
    values = dict(zip(plan.program.inputs, given, strict=True))
    made = {}

    def memory(buffers):
        for b in buffers:
            sizes = [e.value for e in b.sizes]
            made[b.name] = values.get(b.name, torch.zeros(sizes, dtype=torch.float32))
        return {b.name: made[b.name] for b in buffers}

    results = []

    def seconds(ways, least):
        (out,) = group.writes
        for runs in ways.values():
            made[out].fill_(torch.nan)
            runs[-1]()
            results.append(made[out].clone())
        return dict.fromkeys(ways, 1.0)

    monkeypatch.setattr(gemm_trials, "memory_of", memory)
    monkeypatch.setattr(gemm_trials, "seconds_in_turn", seconds)
    trial = gemm_trials.Trial(group, {b.name: b for b in plan.program.buffers}, context().target)
    spent = trial.seconds()
    assert Way.ATEN.value in spent and len(spent) == len(trial.texts) + 1
    assert trial.product() == DeviceProduct("f32", 3, 40, 20)
    for result in results:
        torch.testing.assert_close(result, gated(*given))


# -- batches, and sums in parts ---------------------------------------------------------------------------


def attended(q, k, r):
    return torch.bmm(q, k.transpose(1, 2)) * 0.125 + r


def long_sum(x, w, r):
    return F.linear(x, w).relu() + r


BATCH = (torch.ones(6, 32, 64, dtype=torch.float16), torch.ones(6, 48, 64, dtype=torch.float16),
         torch.ones(6, 32, 48, dtype=torch.float16))  # fmt: skip
LONG = (torch.ones(24, 2048, dtype=torch.float16), torch.ones(40, 2048, dtype=torch.float16),
        torch.ones(24, 40, dtype=torch.float16))  # fmt: skip


def tuned(fn, shapes, **options):
    ctx = context(**options)
    _, plan = pipeline.scheduled(captured(fn, ctx, *shapes), ctx)
    return plan, gemm_times.with_tiles([plan], ctx).tiles


@pytest.fixture
def parts(clock, monkeypatch):
    """Sums in parts take what the test says, in the second way to cut them; ATen alone takes 4."""
    said = {"seconds": 0.5e-6}

    def seconds(trial):
        return {Way.ATEN.value: 4e-6, trial.tiles[0]: 5e-6, trial.tiles[1]: said["seconds"]}

    monkeypatch.setattr(gemm_trials.PartsTrial, "seconds", seconds)
    return said


def test_a_batch_is_measured_once_and_followed(clock, monkeypatch):
    monkeypatch.setattr(gemm_trials.Trial, "seconds", lambda trial: clock.append(trial.product()) or {Way.ATEN.value: 2.0, list(trial.texts)[2]: 1.0})  # fmt: skip
    first = tuned(attended, BATCH, max_autotune=True)
    assert [g.kind for g in first[0].groups] == [GroupKind.TEMPLATE] and len(first[1]) == 1
    assert clock == [DeviceProduct("f16", 32, 64, 48, 6, "kk")]
    monkeypatch.setattr(device_times, "_KEPT", {})  # another process
    assert tuned(attended, BATCH) == tuned(attended, BATCH, max_autotune=True) == first and len(clock) == 1


def test_a_batch_that_aten_computes_faster_is_its(clock, monkeypatch):
    monkeypatch.setattr(
        gemm_trials.Trial, "seconds", lambda trial: {Way.ATEN.value: 1.0, next(iter(trial.texts)): 2.0}
    )
    plan, tiles = tuned(attended, BATCH, max_autotune=True)
    assert GroupKind.TEMPLATE not in [g.kind for g in plan.groups] and not tiles


def test_a_sum_in_parts_is_taken_where_it_is_clearly_quicker(parts):
    plan, tiles = tuned(long_sum, LONG, max_autotune=True)
    template, added = plan.groups
    assert template.call.batch is not None and added.steps
    ((name, text),) = tiles
    assert name == template.name and text == tiles_of(template.call)[1].text()
    assert tuned(long_sum, LONG)[0] == plan, "the default follows"


@pytest.mark.parametrize("seconds", [0.99e-6, 3e-6])
def test_a_sum_in_parts_that_saves_too_little_is_not_taken(seconds, parts):
    parts["seconds"] = seconds
    plan, _ = tuned(long_sum, LONG, max_autotune=True)
    assert all(not isinstance(g.call, TemplateCall) or g.call.batch is None for g in plan.groups)


def rows_of(count: int):
    return [torch.ones(count, 256, dtype=torch.float16), torch.ones(96, 256, dtype=torch.float16),
            torch.ones(count, 96, dtype=torch.float16)]  # fmt: skip


def one_layer(x, w, r):
    return F.linear(x, w).relu() + r


def three_layers(a, b, c, d, e, f, g, h, i):
    return one_layer(a, b, c), one_layer(d, e, f), one_layer(g, h, i)


def batch_of(count: int):
    return [torch.ones(count, *x.shape[1:], dtype=x.dtype) for x in BATCH]


def three_batches(a, b, c, d, e, f, g, h, i):
    return attended(a, b, c), attended(d, e, f), attended(g, h, i)


@pytest.fixture
def own_tiles(clock, monkeypatch):
    """Each trial of a product finds other tiles than the rule's: those that this names by product."""
    said = {}

    def seconds(trial):
        p, names = trial.product(), list(trial.texts)
        said[p] = names[-1] if p.rows % 3 else names[1]
        return {Way.ATEN.value: 9e-6, **dict.fromkeys(names, 5e-6), said[p]: 3e-6}

    monkeypatch.setattr(gemm_trials.Trial, "seconds", seconds)
    return said


def followed(xs, fn3, fn, make, others, own_tiles):
    """What was measured of some sizes in one graph is followed by each alone, and by no other."""
    three_inputs = [x for n in xs for x in make(n)]
    tiles = tuned(fn3, three_inputs, max_autotune=True)[1]
    assert len(own_tiles) == len(tiles) == 3, "each is measured, and has its choice"
    for n in xs:
        alone, (choice,) = tuned(fn, make(n))
        (group,) = alone.groups
        trial = gemm_trials.Trial(group, {b.name: b for b in alone.program.buffers}, context().target)
        assert choice == (group.name, own_tiles[trial.product()])
    for n in others:
        assert tuned(fn, make(n))[1] == (), f"{n} was not measured"


def test_each_number_of_rows_runs_the_tiles_that_were_measured_for_it_and_others_none(own_tiles):
    followed((4, 48, 512), three_layers, one_layer, rows_of, (16, 64, 4096), own_tiles)


def test_each_number_of_batches_runs_the_tiles_that_were_measured_for_it_and_others_none(own_tiles):
    followed((6, 12, 96), three_batches, attended, batch_of, (5, 24), own_tiles)


def test_a_product_has_its_tiles_wherever_other_work_stands_around_it(own_tiles):
    tuned(one_layer, rows_of(48), max_autotune=True)
    plan, tiles = tuned(lambda x, w, r: (F.linear(x, w) * r).sigmoid(), rows_of(48))
    (group,) = plan.groups
    assert tiles == ((group.name, *own_tiles.values()),)


def test_tiles_that_save_less_than_a_clock_tells_are_not_taken(clock, monkeypatch):
    def seconds(trial):
        names = list(trial.texts)
        return {Way.ATEN.value: 9e-6, **dict.fromkeys(names, 5e-6), names[1]: 4.9e-6}

    monkeypatch.setattr(gemm_trials.Trial, "seconds", seconds)
    plan, ((_, text),) = tuned(one_layer, rows_of(48), max_autotune=True)
    assert text == tiles_of(plan.groups[0].call)[0].text()


def test_what_is_the_templates_by_rule_stays_its_unless_aten_is_clearly_quicker(clock, monkeypatch, tmp_path):
    wide = [torch.ones(4, 256, dtype=torch.float16), torch.ones(512, 256, dtype=torch.float16),
            torch.ones(4, 512, dtype=torch.float16)]  # fmt: skip
    for aten, kind in ((4.9e-6, GroupKind.TEMPLATE), (4.5e-6, GroupKind.EXTERN)):
        monkeypatch.setattr(device_times, "_KEPT", {})
        monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / kind.name))
        monkeypatch.setattr(
            gemm_trials.Trial,
            "seconds",
            lambda trial, aten=aten: {Way.ATEN.value: aten} | dict.fromkeys(trial.texts, 5e-6),
        )
        assert tuned(one_layer, wide, max_autotune=True)[0].groups[0].kind is kind


def test_parts_that_save_less_than_a_launch_of_one_kernel_are_not_taken(parts, monkeypatch):
    monkeypatch.setattr(
        gemm_trials.Trial, "seconds", lambda trial: {Way.ATEN.value: 9e-6} | dict.fromkeys(trial.texts, 1e-6)
    )
    parts["seconds"] = 0.9e-6
    assert [g.kind for g in tuned(long_sum, LONG, max_autotune=True)[0].groups] == [GroupKind.TEMPLATE]


def test_a_product_that_could_not_be_run_at_all_is_asked_for_again(clock, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(gemm_trials.Trial, "seconds", lambda trial: {})
        assert GroupKind.TEMPLATE not in compiled(max_autotune=True)[0]
    assert GroupKind.TEMPLATE in compiled(max_autotune=True)[0] and clock


def on_cpu(monkeypatch):
    """Buffers of a GPU on the CPU, where Triton's interpreter is; the names of the ways that were timed."""
    timed: list[str] = []
    real = gemm_trials.memory_of

    def clock(ways, least):
        timed.extend(ways)
        return {name: float(i) for i, name in enumerate(ways)}

    monkeypatch.setattr(
        gemm_trials,
        "memory_of",
        lambda buffers: real([dataclasses.replace(b, device="cpu") for b in buffers]),
    )
    monkeypatch.setattr(gemm_trials, "seconds_in_turn", clock)
    monkeypatch.setattr(gemm_trials, "_COLD", 1)
    return timed


def test_a_trial_of_parts_runs_them_and_aten(monkeypatch, tmp_path):
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    timed = on_cpu(monkeypatch)
    plan = planned(long_sum, *LONG, matmul_template=True)
    (group,) = plan.groups
    trial = gemm_trials.PartsTrial(group.call, {b.name: b for b in plan.program.buffers}, context().target)
    assert trial.count > 1 and len(trial.texts()) >= len(trial.tiles)
    spent = trial.seconds()
    assert list(spent) == timed == [Way.ATEN.value, *trial.tiles], "all gave ATen's results"


def test_a_trial_of_a_batch_leaves_out_what_gives_other_results(monkeypatch, tmp_path):
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    on_cpu(monkeypatch)
    plan = planned(attended, *BATCH, matmul_template=True)
    (group,) = plan.groups
    trial = gemm_trials.Trial(group, {b.name: b for b in plan.program.buffers}, context().target)
    assert list(trial.seconds()) == [Way.ATEN.value, *trial.texts]
    real, wrong = gemm_trials.launcher, list(trial.texts.values())[1]

    def launcher(text):
        return (lambda *memory: None) if text is wrong else real(text)

    monkeypatch.setattr(gemm_trials, "launcher", launcher)
    rest = [name for name, text in trial.texts.items() if text is not wrong]
    assert list(trial.seconds()) == [Way.ATEN.value, *rest]


def test_a_trial_of_a_batch_with_a_scale_before_does_it_apart_as_well(monkeypatch, tmp_path):
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    on_cpu(monkeypatch)
    plan = planned(lambda q, k, r: attended(q * 0.5, k, r), *BATCH, matmul_template=True)
    (group,) = plan.groups
    trial = gemm_trials.Trial(group, {b.name: b for b in plan.program.buffers}, context().target)
    assert group.call.prologue and list(trial.seconds()) == [Way.ATEN.value, *trial.texts]


@pytest.mark.parametrize("after", [lambda y: y, F.gelu], ids=["alone", "gelu"])
def test_a_trial_of_a_linear_layer_adds_its_bias_in_atens_product(after, monkeypatch, tmp_path):
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    on_cpu(monkeypatch)
    given = [torch.randn(3, 40), torch.randn(20, 40), torch.randn(20)]
    plan = planned(lambda x, w, b: after(F.linear(x, w, b)), *given, matmul_template=True)
    (group,) = plan.groups
    trial = gemm_trials.Trial(group, {b.name: b for b in plan.program.buffers}, context().target)
    assert list(trial.seconds()) == [Way.ATEN.value, *trial.texts], "all gave ATen's results"


@pytest.mark.parametrize("step", ["memory_of", "launcher", "seconds_in_turn"])
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("none is left"), RuntimeError("CUDA error: out of memory")], ids=repr
)
def test_a_trial_without_memory_gives_nothing(step, error, monkeypatch, tmp_path):
    """Also where some ways have run before: what is chosen is kept for good."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    on_cpu(monkeypatch)

    def full(*args):
        raise error

    monkeypatch.setattr(gemm_trials, step, full)
    plan = planned(attended, *BATCH, matmul_template=True)
    trial = gemm_trials.Trial(plan.groups[0], {b.name: b for b in plan.program.buffers}, context().target)
    assert trial.seconds() == {}


# -- batches that are the template's without a measurement --------------------------------------------------


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def scores(batch, rows, inner, columns, dtype=torch.bfloat16):
    return empty(batch, rows, inner, dtype=dtype), empty(batch, columns, inner, dtype=dtype), empty(batch, rows, columns, dtype=dtype)  # fmt: skip


def templates(fn, *shapes, target=None):
    ctx = context() if target is None else dataclasses.replace(context(), target=target)
    plan = pipeline.scheduled(captured(fn, ctx, *shapes), ctx)[1]
    return [g.kind for g in plan.groups].count(GroupKind.TEMPLATE)


@pytest.mark.parametrize(
    "sizes", [(96, 512, 64, 512), (8, 2048, 128, 2048), (192, 200, 64, 200), (64, 16, 128, 2048)]
)
def test_a_batch_of_a_measured_class_is_the_templates_on_hopper_alone(clock, sizes):
    assert templates(attended, *scores(*sizes)) == 1
    assert templates(attended, *scores(*sizes, dtype=torch.float16)) == 1
    assert templates(attended, *scores(*sizes), target=cuda_target((10, 0), 132)) == 0
    assert templates(attended, *scores(*sizes), target=cuda_target((8, 0), 108)) == 0


@pytest.mark.parametrize("sizes", [(7, 512, 64, 512), (96, 199, 64, 512), (96, 512, 56, 512), (96, 512, 136, 512), (96, 512, 64, 516), (32, 1, 128, 4096)])  # fmt: skip
def test_a_batch_outside_of_every_measured_class_is_atens(clock, sizes):
    assert templates(attended, *scores(*sizes)) == 0
    assert templates(attended, *scores(96, 512, 64, 512, dtype=torch.float32)) == 0


def test_a_batch_is_the_templates_where_elementwise_work_alone_follows(clock):
    """What a softmax does on its way, and nothing, are no reason to take the product from ATen."""
    given = scores(96, 512, 64, 512)

    def alone(q, k, r):
        return torch.bmm(q, k.transpose(1, 2)).view(8, 12, 512, 512), r

    def before_softmax(q, k, r):
        return torch.softmax(attended(q, k, r), -1)

    def multiplied_again(q, k, r):
        return torch.bmm(attended(q, k, r).view(8, 12, 512, 512).relu().view(96, 512, 512), q)

    assert templates(alone, *given) == templates(before_softmax, *given) == 0
    assert templates(multiplied_again, *given) == 1


def test_the_corners_of_the_classes_of_batches_are_in_them():
    for c in RULED_BATCHES:
        for at in (0, 1):
            p = DeviceProduct("bf16", c.rows[at], c.inner[at], c.columns[at], c.batch, c.layout)
            assert pays_by_rule(p, p.rows, "sm_90") and not pays_by_rule(p, p.rows, "sm_100")
            assert not pays_by_rule(dataclasses.replace(p, layout="mn"), p.rows, "sm_90")


def test_a_batch_that_was_measured_to_be_atens_is_its_whatever_the_rule_says(clock, monkeypatch):
    monkeypatch.setattr(
        gemm_trials.Trial, "seconds", lambda trial: {Way.ATEN.value: 1.0} | dict.fromkeys(trial.texts, 2.0)
    )
    given = scores(96, 512, 64, 512)
    assert GroupKind.TEMPLATE not in [g.kind for g in tuned(attended, given, max_autotune=True)[0].groups]
    assert templates(attended, *given) == 0


def test_one_kernel_that_does_not_round_between_gives_what_two_that_do_give():
    exact = torch.linspace(1, 2, 4096)
    rounded = exact.bfloat16().float()
    assert alike(exact, rounded, torch.bfloat16)
    assert not alike(exact, rounded)
    assert not alike(exact * 1.2, rounded, torch.bfloat16)
    assert alike(exact, exact + 1e-6, torch.float32)
