"""Cuts of a GPU's kernels: measured once, kept, followed. Times are made up, and no GPU is needed."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze import pipeline
from braze.autotune import device_times, kernel_times
from braze.autotune.kernel_times import Trial, alike, chosen, fill, with_tilings
from braze.codegen.triton import generate
from braze.options import Options
from braze.schedule.gpu.tilings import neighbours, parsed_tiling, tilings
from braze.support import trace
from braze.support.errors import BrazeError
from tests.autotune.untimed import as_if_measuring
from tests.codegen.triton_bench import context, planned
from tests.helpers import logged


def norm_and_sum(x, w):
    return F.rms_norm(x, (640,), w) * 2, x.sum(0)


SHAPES = (torch.empty(8192, 640, device="meta"), torch.empty(640, device="meta"))
SMALL = (torch.empty(16, 640, device="meta"), torch.empty(640, device="meta"))


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """Measurements that give what the test says: a second for each cut but the third, which takes half of one."""
    as_if_measuring(kernel_times, monkeypatch, tmp_path)
    measured = []

    def seconds(trial):
        measured.append(trial.group.name)
        return {name: 0.5 if k == 2 else 1.0 for k, name in enumerate(trial.texts)}

    monkeypatch.setattr(Trial, "seconds", seconds)
    return measured


def tuned(shapes=SHAPES, **options):
    """(the schedule, its kernels' texts, what was chosen) of the norm and the sum."""
    ctx = context(**options)
    plan = planned(norm_and_sum, *shapes)
    ctx = with_tilings([plan], ctx)
    return plan, generate(plan, ctx), dict(ctx.tiles)


def loops(plan):
    return [g for g in plan.groups if g.steps]


def test_the_quickest_cut_of_each_kernel_is_taken(clock):
    plan, texts, found = tuned(max_autotune=True)
    buffers = {b.name: b for b in plan.program.buffers}
    large = {g.name: g for g in loops(plan) if g.name in clock}
    assert large and found.keys() == large.keys()
    for name, group in large.items():
        third = tilings(group, buffers)[2]
        assert parsed_tiling(found[name]) == third
        (text,) = (t for t in texts if t.name == name)
        assert text.launch.num_warps == third.warps


def test_nothing_is_measured_twice_and_the_default_follows_what_is_kept(clock, monkeypatch):
    first = tuned(max_autotune=True)
    count = len(clock)
    monkeypatch.setattr(device_times, "_KEPT", {})  # another process
    assert tuned(max_autotune=True) == tuned() == first
    assert len(clock) == count > 0


def test_the_default_measures_nothing_and_makes_no_keys(clock, monkeypatch):
    monkeypatch.setattr(kernel_times, "_key", lambda *rest: pytest.fail("a key where nothing is kept"))
    _, texts, found = tuned()
    assert texts and not found and not clock


def test_small_kernels_keep_the_rules_cut(clock):
    assert tuned(SMALL, max_autotune=True)[2] == {} and not clock


def test_equal_kernels_are_measured_once(clock):
    def fn(x, y):
        return torch.mm(x.exp(), y).exp()

    plan = planned(fn, torch.empty(2048, 2048, device="meta"), torch.empty(2048, 2048, device="meta"))
    ctx = with_tilings([plan], context(max_autotune=True))
    assert len(loops(plan)) == 2 and len(clock) == 1
    assert {name for name, _ in ctx.tiles} == {g.name for g in loops(plan)}


def test_where_no_time_is_left_nothing_is_kept(clock):
    assert tuned(max_autotune=True, autotune_seconds=-1.0)[2] == {} and not clock
    assert tuned(max_autotune=True)[2]


def test_a_kernel_that_could_not_be_run_is_tried_again(clock, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Trial, "seconds", lambda trial: {})
        assert tuned(max_autotune=True)[2] == {}
    assert tuned(max_autotune=True)[2] and clock


def test_a_cut_that_saves_less_than_noise_is_not_taken():
    assert chosen({"rule": 1.0, "other": 0.98}, "rule") == "rule"
    assert chosen({"rule": 1.0, "other": 0.9, "third": 0.8}, "rule") == "third"


def test_the_pipeline_follows_it(clock):
    ctx = dataclasses.replace(context(max_autotune=True), options=Options(max_autotune=True))
    plan = planned(norm_and_sum, *SHAPES)
    before = trace.COUNTERS["kernels_measured"]
    host = pipeline.generate_code(plan, ctx)
    assert host.source and clock and trace.COUNTERS["kernels_measured"] == before + len(clock)


# -- coordinate descent ----------------------------------------------------------------------------------


DESCENT = dict(max_autotune=True, coordinate_descent_tuning=True)


@pytest.fixture
def slope(monkeypatch, tmp_path):
    """Kernels that are the quicker the fewer warps they have and the more stages; how often each cut was measured."""
    as_if_measuring(kernel_times, monkeypatch, tmp_path)
    measured = Counter()

    def seconds(trial):
        measured.update((trial.group.name, text) for text in trial.texts)
        each = {text: parsed_tiling(text) for text in trial.texts}
        return {text: t.warps / (1 + t.stages) for text, t in each.items()}

    monkeypatch.setattr(Trial, "seconds", seconds)
    return measured


def test_descent_goes_on_from_the_quickest_cut_until_nothing_beside_it_is_quicker(slope):
    plan, texts, found = tuned(**DESCENT)
    buffers = {b.name: b for b in plan.program.buffers}
    assert found
    for group in loops(plan):
        if group.name not in found:
            continue
        end = parsed_tiling(found[group.name])
        time = lambda t: t.warps / (1 + t.stages)
        assert end not in tilings(group, buffers), "no cut that is tried without it"
        assert all(time(end) <= time(n) for n in neighbours(group, buffers, end))
        (text,) = (t for t in texts if t.name == group.name)
        assert text.launch.num_warps == end.warps
        rule, *_ = tilings(group, buffers)
        often = {t: n for (name, t), n in slope.items() if name == group.name}
        ends = {rule.text(), end.text()}
        assert all(n <= 2 for t, n in often.items() if t not in ends), (
            "its own step, and as where the next begins"
        )


def test_descent_is_never_repeated_and_the_default_follows_it(slope, monkeypatch):
    first = tuned(**DESCENT)
    count = slope.total()
    monkeypatch.setattr(device_times, "_KEPT", {})  # another process
    assert tuned(**DESCENT) == tuned(max_autotune=True) == tuned() == first
    assert slope.total() == count


def test_descent_may_be_asked_for_alone(slope):
    assert tuned(coordinate_descent_tuning=True)[2] == tuned(**DESCENT)[2] != {}


def test_descent_begins_at_what_was_measured_without_it(slope):
    tuned(max_autotune=True)
    before = slope.copy()
    _, _, found = tuned(**DESCENT)
    again = slope - before
    rules = {t for (_, t), n in before.items() if n}
    assert again and found and any(t not in rules for _, t in again)
    assert tuned(**DESCENT)[2] == found and slope - before == again


def test_descent_that_gains_too_little_stays(monkeypatch, tmp_path):
    as_if_measuring(kernel_times, monkeypatch, tmp_path)
    rules = set()

    def seconds(trial):
        rules.add(trial.rule)
        return {t: 1.0 if t == trial.rule else 0.99 for t in trial.texts}

    monkeypatch.setattr(Trial, "seconds", seconds)
    assert set(tuned(**DESCENT)[2].values()) == rules


def test_descent_ends_with_its_time_and_goes_on_another_time(slope, monkeypatch):
    clock = iter(range(10_000))
    with monkeypatch.context() as patch:
        patch.setattr(kernel_times.time, "monotonic", lambda: next(clock))
        some = tuned(**DESCENT, autotune_seconds=8.0)[2]
    assert some != tuned(**DESCENT)[2]
    assert tuned(**DESCENT) == tuned()


@pytest.mark.parametrize("seconds", [{}, {"other": 1.0}], ids=["nothing ran", "the rule did not"])
def test_descent_without_memory_is_tried_another_time(slope, monkeypatch, seconds):
    first = tuned(max_autotune=True)[2]
    with monkeypatch.context() as patch:
        patch.setattr(Trial, "seconds", lambda trial: seconds)
        assert tuned(**DESCENT)[2] == first
    assert tuned(**DESCENT)[2] != first


# -- a trial, in Triton's interpreter --------------------------------------------------------------------


@pytest.fixture
def trial(monkeypatch, tmp_path):
    """A trial of a kernel on the CPU's memory, and what its clock was given."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    given = {}

    def seconds(ways, least):
        given.update(ways)
        return {name: 1.0 for name in ways}

    monkeypatch.setattr(kernel_times, "seconds_in_turn", seconds)
    monkeypatch.setattr(kernel_times, "room", lambda device: 1 << 30)
    monkeypatch.setattr(kernel_times, "_COLD", 100_000)
    plan = planned(
        lambda x, b: torch.softmax(x + b, -1), torch.empty(12, 600), torch.empty(1, 600).expand(12, 600)
    )
    (group,) = plan.groups
    made = Trial(group, plan)
    made.buffers = [dataclasses.replace(b, device="cpu") for b in made.buffers]
    return made, given


def test_a_trial_runs_each_cut_on_memory_that_the_cache_does_not_hold(trial):
    made, given = trial
    spent = made.seconds()
    assert list(spent) == list(made.texts) == list(given) and len(spent) > 3
    assert {len(runs) for runs in given.values()} == {-(-100_000 // made.bytes)}


def test_a_cut_that_gives_other_results_or_is_refused_is_left_out(trial, monkeypatch):
    made, _ = trial
    rule, second, third, *rest = made.texts
    real = kernel_times.launcher

    def launcher(text):
        if text is made.texts[third]:
            raise BrazeError("BZ5010", "too much shared memory")
        if text is made.texts[second]:
            return lambda *memory: real(text)(*memory) or memory[-1].add_(1)
        return real(text)

    monkeypatch.setattr(kernel_times, "launcher", launcher)
    with logged() as lines:
        spent = made.seconds()
    assert list(spent) == [rule, *rest]
    assert any("gives other results" in line for line in lines)


def test_without_memory_a_trial_gives_nothing(trial, monkeypatch):
    made, given = trial
    monkeypatch.setattr(kernel_times, "room", lambda device: 2 * made.bytes)
    assert made.seconds() == {} and not given

    def full(buffers):
        raise torch.OutOfMemoryError("none is left")

    monkeypatch.setattr(kernel_times, "room", lambda device: 1 << 30)
    monkeypatch.setattr(kernel_times, "memory_of", full)
    assert made.seconds() == {} and not given


@pytest.mark.parametrize(
    "said", ["CUDA error: out of memory", "Triton Error [CUDA]: out of memory"], ids=["PyTorch", "Triton"]
)
def test_a_trial_for_one_of_whose_cuts_the_driver_has_no_memory_gives_nothing(trial, monkeypatch, said):
    """What is chosen is kept for good: of the cuts that happened to run it may not be chosen."""
    made, given = trial
    _, second, *_ = made.texts
    real = kernel_times.launcher

    def launcher(text):
        if text is made.texts[second]:
            raise RuntimeError(said)
        return real(text)

    monkeypatch.setattr(kernel_times, "launcher", launcher)
    assert made.seconds() == {} and not given


def test_other_errors_are_not_hidden(trial, monkeypatch):
    made, _ = trial
    monkeypatch.setattr(kernel_times, "launcher", lambda text: {}["nothing"])
    with pytest.raises(KeyError):
        made.seconds()


@pytest.mark.parametrize("shape", [(0,), (1,), (4093,), (3, 5000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_floats_are_filled_by_a_pattern_and_whole_numbers_by_zeros(shape, dtype):
    x = torch.ones(shape, dtype=dtype)
    fill(x)
    if dtype.is_floating_point:
        assert ((x > 0) & (x <= 1)).all() and x.unique().numel() >= min(x.numel(), 200)
    else:
        assert not x.any()


def test_results_are_alike_up_to_the_order_of_sums():
    x = torch.rand(1000)
    for dtype, step in (
        (torch.float64, 1e-8),
        (torch.float32, 1e-3),
        (torch.float16, 0.02),
        (torch.bfloat16, 0.2),
    ):
        a = x.to(dtype)
        far = a.clone()
        far[17] += step
        assert alike(a, a.clone()) and not alike(far, a)
    a[3] = torch.nan
    assert alike(a, a.clone()) and not alike(x.bfloat16(), a)
    assert alike(torch.tensor([1, 2]), torch.tensor([1, 2])) and not alike(
        torch.tensor([1, 2]), torch.tensor([1, 3])
    )


def test_a_damaged_choice_is_not_followed(clock, tmp_path):
    """A kept text that is no choice of this kernel's: the cache tells damage by its hash, and the rule stands."""
    first = tuned(max_autotune=True)[2]
    assert first
    for path in tmp_path.rglob("*.txt"):
        path.write_bytes(b"walk 1x64 w1 p1")
    device_times._KEPT.clear()
    assert tuned()[2] == {}
