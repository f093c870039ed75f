"""Choices between our grouped products and ATen's: measured once, kept, followed. Times are made up, and no GPU is needed."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from braze import pipeline
from braze.autotune import device_times, gemm_trials, grouped_times
from braze.autotune.device_times import alike
from braze.loops.ir import TemplateCall
from braze.products import Grouped, Way, takes_grouped
from braze.schedule import schedule
from braze.schedule.facts.records import GroupKind
from braze.schedule.rewrites.unfused import unfused
from braze.target import cuda_target
from tests.autotune.untimed import as_if_measuring
from tests.codegen.triton_bench import captured, context, planned
from tests.loops.interpret import interpret

BF16 = torch.bfloat16


def layer(x, w, v, ends):
    gate, up = torch._grouped_mm(x, w, offs=ends).chunk(2, -1)
    return torch._grouped_mm(F.silu(gate) * up, v, offs=ends) * 2


GIVEN = (
    torch.ones(40, 16, dtype=BF16), torch.ones(4, 16, 64, dtype=BF16), torch.ones(4, 32, 16, dtype=BF16), torch.tensor([3, 3, 20, 40], dtype=torch.int32),
)  # fmt: skip


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """Measurements in which the template is quicker for the first product, in its second cut."""
    as_if_measuring(grouped_times, monkeypatch, tmp_path)
    measured = []

    def seconds(trial):
        measured.append(trial.of)
        names = list(trial.texts)
        found = dict.fromkeys(names, 5e-6) | {Way.ATEN.value: 9e-6 if trial.of.columns == 64 else 1e-6}
        found[names[1]] = 3e-6
        del found[names[0]]  # a kernel that could not be built
        return found

    monkeypatch.setattr(grouped_times.Trial, "seconds", seconds)
    return measured


def compiled(capability=(9, 0), **options):
    """(kinds of the groups, tiles by group) of the layer."""
    ctx = dataclasses.replace(context(**options), target=cuda_target(capability, 132))
    _, plan = pipeline.scheduled(captured(layer, ctx, *GIVEN), ctx)
    return [g.kind for g in plan.groups], grouped_times.with_grouped_tiles([plan], ctx).tiles


def test_the_quicker_way_of_each_is_taken(clock):
    kinds, tiles = compiled(max_autotune=True)
    assert kinds.count(GroupKind.TEMPLATE) == 1 and kinds.count(GroupKind.EXTERN) == 1
    assert sorted(p.columns for p in clock) == [16, 64]  # the gated one as a whole
    assert len(tiles) == 1


def test_nothing_is_measured_twice_and_the_default_follows_what_is_kept(clock, monkeypatch):
    first = compiled(max_autotune=True)
    monkeypatch.setattr(device_times, "_KEPT", {})  # another process
    assert compiled(max_autotune=True) == compiled() == first
    assert len(clock) == 2


def test_the_default_measures_nothing(clock):
    kinds, tiles = compiled()
    assert GroupKind.TEMPLATE not in kinds and not tiles and not clock


def test_what_cannot_be_recorded_is_not_timed(clock):
    """Before Hopper ATen's own asks for the ends on the host."""
    assert GroupKind.TEMPLATE not in compiled((8, 0), max_autotune=True)[0] and not clock
    assert compiled((8, 0), max_autotune=True, grouped_template=True)[0].count(GroupKind.TEMPLATE) == 2


def test_everywhere_and_nowhere_ask_nobody(clock):
    assert compiled(grouped_template=True, max_autotune=True)[0].count(GroupKind.TEMPLATE) == 2
    assert GroupKind.TEMPLATE not in compiled(grouped_template=False, max_autotune=True)[0]
    assert not clock


def test_rows_fall_to_groups_as_they_are_drawn_and_always_the_same():
    ends = grouped_times.ends_of(1000, 8)
    counts = ends.diff(prepend=ends.new_zeros(1))
    assert ends[-1] == 1000 and (counts > 90).all() and len(set(counts.tolist())) > 3
    assert (
        torch.equal(ends, grouped_times.ends_of(1000, 8)) and grouped_times.ends_of(0, 3).tolist() == [0] * 3
    )


def gated(x, w, ends):
    gate, up = torch._grouped_mm(x, w, offs=ends).chunk(2, -1)
    return F.silu(gate) * up


def looked_up(x, w, ends, order, s):
    return torch._grouped_mm(x.index_select(0, order), w, offs=ends) * s.unsqueeze(1)


@pytest.mark.parametrize("halved", [True, False])
def test_a_template_apart_computes_the_same(halved):
    torch.manual_seed(0)
    x, w, _, ends = GIVEN
    x, w = torch.randn_like(x), torch.randn_like(w)
    inputs = (x, w, ends) if halved else (x, w, ends, torch.randperm(40), torch.randn(40, dtype=BF16))
    fn = gated if halved else looked_up
    plan = planned(fn, *inputs, grouped_template=True)
    (group,) = [g for g in plan.groups if isinstance(g.call, TemplateCall)]
    program = unfused(group.call, {b.name: b for b in plan.program.buffers})
    by_name = dict(zip(plan.program.inputs, inputs, strict=True))
    (ours,) = interpret(program, [by_name[n] for n in program.inputs])
    assert alike(ours, fn(*inputs))


def test_a_trial_runs_both_ways_and_compares_them(monkeypatch):
    """On the CPU, its kernels put in by hand."""
    x, w, _, ends = GIVEN
    ctx = context()
    plan = planned(gated, x, w, ends, grouped_template=True)
    buffers = {n.name: dataclasses.replace(n, device="cpu") for n in plan.program.buffers}
    (group,) = [g for g in plan.groups if isinstance(g.call, TemplateCall)]
    trial = grouped_times.Trial(group, buffers, ctx)
    assert trial.of == Grouped("bf16", 40, 4, 16, 64, "kn")
    left, told = trial.call.args[0], trial.call.args[-1]

    def computed(memory, matrix):
        assert memory[told.buffer].tolist() == grouped_times.ends_of(40, 4).tolist()
        return gated(memory[left.buffer], matrix, memory[told.buffer])

    def apart(program_plan, memory, right, _):
        def run(matrix):
            memory[group.writes[0]].copy_(computed(memory, matrix))

        return run

    def ours(text, memory):
        trial._spread(memory)
        wrong = text is next(iter(trial.texts.values()))

        def run(matrix):
            memory[group.writes[0]].copy_(computed(memory, matrix) + (9 if wrong else 0))

        return run

    monkeypatch.setattr(grouped_times, "run_of", apart)
    monkeypatch.setattr(trial, "_kernel", ours)
    monkeypatch.setattr(
        gemm_trials, "seconds_in_turn", lambda ways, _: {n: len(runs) for n, runs in ways.items()}
    )
    found = trial.seconds()
    assert set(found) == {Way.ATEN.value, *list(trial.texts)[1:]}


def test_atens_result_is_there_to_compare_with():
    """Of a product alone, which nothing follows, it is the result."""
    x, w, _, ends = GIVEN
    plan = planned(lambda x, w, ends: torch._grouped_mm(x, w, offs=ends), x, w, ends, grouped_template=True)
    (group,) = plan.groups
    buffers = {b.name: dataclasses.replace(b, device="cpu") for b in plan.program.buffers}
    call = dataclasses.replace(group.call, device="cpu")
    memory = {
        **dict(zip(plan.program.inputs, (x, w, ends), strict=True)),
        group.writes[0]: torch.zeros(40, 64, dtype=BF16),
    }
    ctx = context()
    gemm_trials.run_of(schedule(unfused(call, buffers), ctx), memory, call.rights[0].buffer, ctx)(w)
    assert torch.equal(memory[group.writes[0]], torch._grouped_mm(x, w, offs=ends))


def test_the_rule_takes_what_was_measured_to_be_quicker():
    p = Grouped("bf16", 64, 8, 4096, 28672, "kk")
    assert takes_grouped(p, None, {}, "sm_90") and not takes_grouped(p, None, {}, "sm_80")
    for change in (
        {"dtype": "f16"}, {"rows": None}, {"rows": 128 * 8 + 1}, {"rows": 64 * 8}, {"rows": 1, "columns": 4096}, {"inner": 256}, {"inner": 16384}, {"columns": 256}, {"columns": 32768},
    ):  # fmt: skip
        assert not takes_grouped(dataclasses.replace(p, **change), None, {}, "sm_90"), change
    assert not takes_grouped(p, None, {p: Way.ATEN}, "sm_90") and takes_grouped(
        p, None, {p: Way.OURS}, "sm_90"
    )
    assert not takes_grouped(p, False, {p: Way.OURS}, "sm_90")
    assert takes_grouped(p, True, {p: Way.ATEN}, "sm_80")
    assert not takes_grouped(dataclasses.replace(p, dtype="f32"), True, {}, "sm_90")
