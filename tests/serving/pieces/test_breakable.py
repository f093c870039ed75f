"""A recording that is broken at operators replays what lies between them, and runs them for real."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.cudagraphs.registry import register
from braze.cudagraphs.simulated import SimulatedGraphs
from braze.serving.pieces.breakable import BreakableWrapper
from braze.serving.pieces.custom_ops import direct_register_custom_op
from braze.serving.pieces.pools import GraphPools
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.context import forward_context, get_forward_context

NONE, PIECEWISE = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE
CALLS = []


def attend(q: torch.Tensor, out: torch.Tensor) -> None:
    """Reads what the step says, which a recording could not."""
    scale = get_forward_context().attn_metadata
    CALLS.append(scale)
    out.copy_(q * (1 if scale is None else scale))


def give(x: torch.Tensor) -> torch.Tensor:
    scale = get_forward_context().attn_metadata
    return x + (0 if scale is None else scale)


ATTEND = direct_register_custom_op("b_attend", attend, ["out"], dispatch_key="CPU")
GIVE = direct_register_custom_op("b_give", give, fake_impl=torch.empty_like, dispatch_key="CPU")
NAMES = ["braze::b_attend", "braze::b_give"]


def model(x):
    out = torch.empty_like(x)
    ATTEND(x.sin() * 2, out)
    y = GIVE(out + 1)
    return (y * 3 + out).cos()


def step(mode, tokens, scale=None):
    return forward_context(scale, cudagraph_runtime_mode=mode, batch_descriptor=BatchDescriptor(tokens))


@pytest.fixture(autouse=True)
def fresh(simulated):
    CALLS.clear()


def test_operators_run_at_each_replay_with_what_the_step_says():
    x = torch.randn(8, 4)
    wrapped = BreakableWrapper(model, PIECEWISE, NAMES)
    for scale in (1.0, 2.0, 3.0):
        x.copy_(torch.randn(8, 4))
        with step(PIECEWISE, 8, scale):
            out = wrapped(x)
        with step(NONE, 8, scale):
            torch.testing.assert_close(out, model(x), rtol=0, atol=0)
    (entry,) = wrapped.entries.values()
    assert entry.recording.graph.graphs == 3
    assert CALLS == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]


def test_the_call_that_records_computes_once_and_right():
    x, cache = torch.randn(4, 4), torch.zeros(4, 4)

    def f(x, cache):
        cache.add_(x)
        y = GIVE(cache)
        return y * 2

    wrapped = BreakableWrapper(f, PIECEWISE, NAMES)
    for k in (1, 2, 3):
        with step(PIECEWISE, 4, 5.0):
            torch.testing.assert_close(wrapped(x, cache), (x * k + 5) * 2)
        torch.testing.assert_close(cache, x * k)


def test_a_tagged_operator_breaks_a_recording_without_being_named():
    op = direct_register_custom_op(
        "b_unsafe",
        give,
        fake_impl=torch.empty_like,
        dispatch_key="CPU",
        tags=(torch.Tag.cudagraph_unsafe,),
    )
    x = torch.randn(4)
    wrapped = BreakableWrapper(lambda x: op(x * 2) + 1, PIECEWISE)
    for scale in (1.0, 2.0):
        with step(PIECEWISE, 4, scale):
            torch.testing.assert_close(wrapped(x), x * 2 + scale + 1, rtol=0, atol=0)


def test_without_operators_to_break_at_it_is_one_segment():
    wrapped = BreakableWrapper(lambda x: x.sin() + 1, PIECEWISE, ["other::op"])
    x = torch.randn(4)
    for _ in range(2):
        with step(PIECEWISE, 4):
            assert torch.equal(wrapped(x), x.sin() + 1)
    (entry,) = wrapped.entries.values()
    assert entry.recording.graph.graphs == 1


def test_what_makes_the_host_wait_ends_the_recording_and_not_the_call():
    runs, cache = [], torch.zeros(4)

    def f(x):
        runs.append(1)
        cache.add_(1)
        y = GIVE(x)
        n = int(y.sum().item())
        return y + n

    x = torch.ones(4)
    wrapped = BreakableWrapper(f, PIECEWISE, NAMES)
    for k in (1, 2):
        with step(PIECEWISE, 4):
            assert torch.equal(wrapped(x), x + 4)
        assert len(runs) == k
        assert torch.equal(cache, torch.full((4,), float(k)))
    assert "host wait" in wrapped.reasons()[BatchDescriptor(4)]


def test_an_operator_that_gives_a_number_is_not_frozen():
    def count(x: torch.Tensor) -> int:
        return int(x.sum())

    op = direct_register_custom_op("b_count", count, dispatch_key="CPU")
    x = torch.ones(4)
    wrapped = BreakableWrapper(lambda x: x + op(x), PIECEWISE, ["braze::b_count"])
    for value in (1.0, 2.0):
        x.fill_(value)
        with step(PIECEWISE, 4):
            assert torch.equal(wrapped(x), x + 4 * value)
    assert "gives a number" in wrapped.reasons()[BatchDescriptor(4)]


def test_reading_what_changes_in_a_recorded_part_is_told_with_its_line():
    def f(x):
        return GIVE(x) * get_forward_context().spec_decode_metadata.num_draft_tokens

    class Meta:
        num_draft_tokens = 3

    x = torch.ones(4)
    wrapped = BreakableWrapper(f, PIECEWISE, NAMES)
    with forward_context(
        spec_decode_metadata=Meta, cudagraph_runtime_mode=PIECEWISE, batch_descriptor=BatchDescriptor(4)
    ):
        wrapped(x)
        assert torch.equal(wrapped(x), x * 3)


def test_an_operators_error_leaves_nothing_open(simulated):
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")

    op = direct_register_custom_op("b_broken", broken, fake_impl=torch.empty_like, dispatch_key="CPU")
    wrapped = BreakableWrapper(lambda x: op(x + 1), PIECEWISE, ["braze::b_broken"])
    with step(PIECEWISE, 4), pytest.raises(ValueError, match="not today"):
        wrapped(torch.ones(4))
    assert not simulated.busy()
    assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
    assert wrapped.captured() == ()


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from(["add", "attend", "give", "write", "relu"]), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from([NONE, PIECEWISE]), st.sampled_from([1, 3, 4])), max_size=6),
    st.sampled_from(["shared", "per_tier"]),
)
def test_any_program_gives_what_it_gives_without_recordings(program, steps, policy):
    register("cpu", SimulatedGraphs)
    state = torch.zeros(4, 3)

    def f(x):
        y = x
        for k, kind in enumerate(program):
            match kind:
                case "add":
                    y = y + x * k
                case "attend":
                    out = torch.empty_like(y)
                    ATTEND(y, out)
                    y = out
                case "give":
                    y = GIVE(y)
                case "write":
                    state[: len(x)].add_(y)
                case "relu":
                    y = torch.relu(y - 0.1)
        return y + state[: len(x)]

    wrapped = BreakableWrapper(f, PIECEWISE, NAMES, pools=GraphPools(policy))
    buffer = torch.zeros(4, 3)
    for mode, n in steps:
        buffer.copy_(torch.randn(4, 3))
        before = state.clone()
        with step(NONE, n, 2.0):
            expected, after = f(buffer[:n]), state.clone()
        state.copy_(before)
        with step(mode, n, 2.0):
            torch.testing.assert_close(wrapped(buffer[:n]), expected, rtol=0, atol=0)
        torch.testing.assert_close(state, after, rtol=0, atol=0)
