"""A call's device as a GPU's schedule has it: what runs elsewhere cuts a graph, so a call that has no result must not seem to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from braze.recording_plans import refusals
from tests.codegen.triton_bench import planned


@torch.library.custom_op("braze_places::fill", mutates_args=("out",))
def fill(x: torch.Tensor, out: torch.Tensor) -> None:
    """Writes its last argument, and has no result."""
    out.copy_(x)


@torch.library.custom_op("braze_places::fill_all", mutates_args=("outs",))
def fill_all(x: torch.Tensor, outs: list[torch.Tensor]) -> None:
    """Writes a list of tensors."""
    for out in outs:
        out.copy_(x)


@torch.library.custom_op("braze_places::fill_and_tell", mutates_args=("out",))
def fill_and_tell(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Writes its last argument, and has a result, too."""
    out.copy_(x)
    return x.sum()


@fill_and_tell.register_fake
def _(x, out):
    return x.new_empty(())


def first(x):
    out = torch.empty_like(x)
    torch.ops.braze_places.fill(x, out)
    return out @ x


def several(x):
    outs = [torch.empty_like(x), torch.empty_like(x)]
    torch.ops.braze_places.fill_all(x, outs)
    return outs[0] @ outs[1]


def told(x):
    out = torch.empty_like(x)
    return torch.ops.braze_places.fill_and_tell(x, out) + out @ x


def an_input(x):
    torch.ops.braze_places.fill(x @ x, x)
    return x @ x


@pytest.mark.parametrize("program", [first, several, told, an_input])
@pytest.mark.parametrize("size", [0, 1, 4])
def test_a_call_runs_where_it_writes(program, size):
    plan = planned(program, torch.empty(size, size))
    assert {g.device for g in plan.groups} == {"cuda:0"}
    assert not list(refusals(plan, (), {}))


def codes_of(plan):
    return [(k, refusal.code, refusal.why) for k, refusal in refusals(plan, (), {})]


def test_an_input_on_the_processor_cuts_the_graph_where_it_is_read():
    plan = planned(lambda x, y: torch.relu(x @ x) @ y, torch.ones(4, 4), torch.ones(4, 4))
    there = plan.program.inputs[1]
    buffers = [replace(b, device="cpu") if b.name == there else b for b in plan.program.buffers]
    moved = replace(plan, program=replace(plan.program, buffers=tuple(buffers)))
    reads = [k for k, g in enumerate(plan.groups) if there in g.reads]
    assert 0 < len(reads) < len(plan.groups)
    assert codes_of(moved) == [(k, "BZ6203", f"input {there} is on cpu") for k in reads]


def test_an_operator_on_the_processor_cuts_the_graph():
    plan = planned(lambda x, y: torch.relu(x @ x) @ y, torch.ones(4, 4), torch.ones(4, 4))
    groups = [replace(g, device="cpu") if k == 1 else g for k, g in enumerate(plan.groups)]
    ((k, code, why),) = codes_of(replace(plan, groups=tuple(groups)))
    assert (k, code) == (1, "BZ6204") and why.endswith("runs on cpu")
