"""Choices between our depthwise convolutions and ATen's: measured once, kept, followed. Times are made up, and no GPU is needed."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from braze import pipeline
from braze.autotune import depthwise_times, device_times, gemm_trials
from braze.autotune.device_times import alike
from braze.codegen.triton.depthwise_tiles import Strips, strips_of
from braze.loops.ir import TemplateCall
from braze.products import Depthwise, Way, takes_depthwise
from braze.schedule.facts.records import GroupKind
from braze.schedule.rewrites.unfused import depthwise_after
from tests.autotune.untimed import as_if_measuring
from tests.codegen.triton_bench import captured, context, planned
from tests.loops.interpret import interpret


def layer(x, w, v, b):
    first = F.hardswish(F.conv2d(x, w, b, 1, 1, 1, 6))
    return first + F.conv2d(first, v, None, 1, 2, 1, 6)


GIVEN = torch.ones(2, 6, 9, 9), torch.ones(6, 1, 3, 3), torch.ones(6, 1, 5, 5), torch.ones(6)


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """Measurements in which the template is quicker for windows of three, in its second cut."""
    as_if_measuring(depthwise_times, monkeypatch, tmp_path)
    measured = []

    def seconds(trial):
        measured.append(trial.of)
        names = list(trial.texts)
        found = dict.fromkeys(names, 5e-6) | {Way.ATEN.value: 9e-6 if trial.of.kernel == (3, 3) else 1e-6}
        found[names[1]] = 3e-6
        del found[names[0]]  # a kernel that could not be built
        return found

    monkeypatch.setattr(depthwise_times.Trial, "seconds", seconds)
    return measured


def compiled(**options):
    """(kinds of the groups, strips by group) of the layer, whose windows are a model's weights."""
    ctx = context(**options)
    partition = captured(layer, ctx, *GIVEN)
    roles = [partition.input_roles[0], *[pipeline.InputRole.PARAMETER] * 3]
    _, plan = pipeline.scheduled(dataclasses.replace(partition, input_roles=tuple(roles)), ctx)
    return [g.kind for g in plan.groups], depthwise_times.with_strips([plan], ctx).tiles


def test_the_quicker_way_of_each_is_taken(clock):
    kinds, strips = compiled(max_autotune=True)
    assert kinds.count(GroupKind.TEMPLATE) == 1 and kinds.count(GroupKind.EXTERN) == 1
    assert sorted(d.kernel for d in clock) == [(3, 3), (5, 5)]
    assert len(strips) == 1 and strips[0][1] != "aten"


def test_nothing_is_measured_twice_and_the_default_follows_what_is_kept(clock, monkeypatch):
    first = compiled(max_autotune=True)
    monkeypatch.setattr(device_times, "_KEPT", {})  # another process
    assert compiled(max_autotune=True) == compiled() == first
    assert len(clock) == 2


def test_the_default_measures_nothing(clock):
    kinds, strips = compiled()
    assert GroupKind.TEMPLATE not in kinds and not strips and not clock


def test_everywhere_and_nowhere_ask_nobody(clock):
    assert compiled(depthwise_template=True, max_autotune=True)[0].count(GroupKind.TEMPLATE) == 2
    assert GroupKind.TEMPLATE not in compiled(depthwise_template=False, max_autotune=True)[0]
    assert not clock


def test_windows_that_are_no_weight_as_it_is_turned_or_cast_are_atens(clock):
    """They would be copied in each call."""

    def of_weights(change):
        def fn(x, w):
            return F.relu(F.conv2d(x, change(w), None, 1, 1, 1, 6))

        ctx = context(max_autotune=True)
        partition = captured(fn, ctx, *GIVEN[:2])
        plans = []
        for role in (pipeline.InputRole.PARAMETER, partition.input_roles[1]):
            roles = (partition.input_roles[0], role)
            plans.append(pipeline.scheduled(dataclasses.replace(partition, input_roles=roles), ctx)[1])
        return [GroupKind.TEMPLATE in {g.kind for g in plan.groups} for plan in plans]

    assert of_weights(lambda w: w) == of_weights(lambda w: w.clone()) == [True, False]
    assert of_weights(lambda w: w.double().float() * 2) == [True, False]


def test_the_rule_takes_what_was_measured_to_be_quicker():
    taken = Depthwise("bf16", 128, 480, (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), True)
    assert takes_depthwise(taken, None, {}, "sm_90") and strips_of(taken)[0] == Strips(4, 8, 64, 4)
    assert not takes_depthwise(taken, None, {taken: Way.ATEN}, "sm_90")
    assert not takes_depthwise(taken, False, {taken: Way.OURS}, "sm_90")
    for change in (
        {"dtype": "f16"}, {"samples": 1}, {"samples": None}, {"channels": 16}, {"last": False}, {"dilation": (3, 3)}, {"stride": (1, 2)},
        {"kernel": (3, 5)}, {"kernel": (5, 5), "dilation": (2, 2)}, {"size": (56, 56), "kernel": (7, 7)}, {"size": (14, 200)},
    ):  # fmt: skip
        other = dataclasses.replace(taken, **change)
        assert not takes_depthwise(other, None, {}, "sm_90") and takes_depthwise(other, True, {}, "sm_90")
    assert not takes_depthwise(taken, None, {}, "sm_80")
    assert takes_depthwise(dataclasses.replace(taken, dilation=(2, 2)), None, {}, "sm_90")


@pytest.mark.parametrize("last", [True, False])
def test_a_template_apart_computes_the_same(last):
    form = torch.channels_last if last else torch.contiguous_format

    def block(x, w, b):
        return F.gelu(F.conv2d(x, w, b, 1, 1, 1, 6) * 2).clone(memory_format=form) + x

    x = torch.randn(2, 6, 5, 7).contiguous(memory_format=form)
    w, b = torch.randn(6, 1, 3, 3), torch.randn(6)
    plan = planned(block, x, w, b, depthwise_template=True, channels_last=last, cudagraphs=True)
    (group,) = [g for g in plan.groups if isinstance(g.call, TemplateCall)]
    program, product = depthwise_after(group.call, {b.name: b for b in plan.program.buffers})
    by_name = dict(zip(plan.program.inputs, (x, w, b), strict=True))
    by_name[product.name] = F.conv2d(x, w, None, 1, 1, 1, 6).contiguous(memory_format=form)
    (ours,) = interpret(program, [by_name[n] for n in program.inputs])
    assert alike(ours, block(x, w, b))


@pytest.mark.parametrize("last", [True, False])
def test_a_trial_runs_both_ways_and_compares_them(last, monkeypatch):
    """On the CPU, its kernels put in by hand."""
    form = torch.channels_last if last else torch.contiguous_format

    def block(x, w, b):
        return F.relu(F.conv2d(x, w, b, 2, 1, 1, 6)).clone(memory_format=form)

    x, w, b = torch.randn(2, 6, 5, 7).contiguous(memory_format=form), torch.randn(6, 1, 3, 3), torch.randn(6)
    ctx = context()
    plan = planned(block, x, w, b, depthwise_template=True, channels_last=last, cudagraphs=True)
    buffers = {n.name: dataclasses.replace(n, device="cpu") for n in plan.program.buffers}
    (group,) = [g for g in plan.groups if isinstance(g.call, TemplateCall)]
    trial = depthwise_times.Trial(group, buffers, ctx)

    def after(program_plan, memory, right, _):
        def run(made):
            given = [made if n == right else memory[n] for n in program_plan.program.inputs]
            (found,) = interpret(program_plan.program, given)
            memory[group.writes[0]].copy_(found)

        return run

    def ours(text, memory):
        def run(pictures):
            view = gemm_trials.viewed({**memory, trial.call.args[0].buffer: pictures}, trial.call.args[0])
            windows = gemm_trials.viewed(memory, trial.call.args[1])[:, None]
            bias = next(v for n, v in memory.items() if v.dim() == 1)
            memory[group.writes[0]].copy_(F.relu(F.conv2d(view, windows, bias, 2, 1, 1, 6)))

        return run

    monkeypatch.setattr(depthwise_times, "run_of", after)
    monkeypatch.setattr(trial, "_kernel", ours)
    monkeypatch.setattr(
        gemm_trials, "seconds_in_turn", lambda ways, _: {n: len(runs) for n, runs in ways.items()}
    )
    found = trial.seconds()
    assert Way.ATEN.value in found and set(trial.texts) < set(found)
