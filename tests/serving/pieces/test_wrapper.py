"""A wrapped callable is recorded once per descriptor, replayed where the context says so, and never ends a program."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.cudagraphs.registry import device_of, register
from braze.cudagraphs.simulated import SimulatedGraphs
from braze.serving.pieces import wrapper
from braze.serving.pieces.pools import GraphPools
from braze.serving.pieces.wrapper import CUDAGraphWrapper, clear_all_graphs
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.context import AttentionMetaData, forward_context, get_forward_context
from braze.support import trace
from braze.support.errors import UserError
from tests.helpers import logged

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL


class Counted:
    """``f`` and how often Python ran it."""

    def __init__(self, f):
        self.f, self.calls = f, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.f(*args, **kwargs)


def step(mode, tokens, **more):
    return forward_context(cudagraph_runtime_mode=mode, batch_descriptor=BatchDescriptor(tokens, **more))


@pytest.fixture
def buffer(simulated):
    """The largest input; calls get views of it."""
    return torch.randn(16, 4)


def test_one_recording_serves_all_calls_of_a_descriptor(buffer):
    f = Counted(lambda x: (x * 2 + 1).sin())
    wrapped = CUDAGraphWrapper(f, FULL)
    for n in (8, 4, 8, 4, 8):
        buffer.copy_(torch.randn(16, 4))
        with step(FULL, n):
            torch.testing.assert_close(wrapped(buffer[:n]), f.f(buffer[:n]), rtol=0, atol=0)
    assert f.calls == 2
    assert set(wrapped.captured()) == {BatchDescriptor(8), BatchDescriptor(4)}


@pytest.mark.parametrize("moves", [False, True])
def test_a_piece_is_not_recorded_over_what_an_earlier_step_left(moves, simulated):
    """The first step ends by an error between the pieces, so that in the second one replays and the other is to be recorded."""
    pools, failing = GraphPools(), [True]
    first = CUDAGraphWrapper(lambda x: x * 2, PIECEWISE, pools=pools)
    second = CUDAGraphWrapper(
        lambda x: ((x + 1).sin() + 1).cos() + x, PIECEWISE, pools=pools, copied=(0,) if moves else ()
    )
    x = torch.randn(4, 4)
    for _ in range(4):
        x.copy_(torch.randn(4, 4))
        with step(PIECEWISE, 4):
            between = first(x)
            if failing:
                failing.pop()
                continue
            found = second(between)
            torch.testing.assert_close(found, second.runnable(x * 2), rtol=0, atol=0)
    assert first.captured() == second.captured() == (BatchDescriptor(4),)


def test_what_a_recording_leaves_where_the_next_reads_it_is_not_copied(simulated, monkeypatch):
    """Another tensor in its place is."""
    copied: list[int] = []
    plain = wrapper.copy_all
    monkeypatch.setattr(wrapper, "copy_all", lambda to, of: copied.append(len(to)) or plain(to, of))
    pools = GraphPools()
    first = CUDAGraphWrapper(lambda x: x * 2, PIECEWISE, pools=pools, copied=(0,))
    second = CUDAGraphWrapper(lambda x, y: (x + y).sin(), PIECEWISE, pools=pools, copied=(0, 1))
    for _ in range(3):
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        with step(PIECEWISE, 4):
            torch.testing.assert_close(second(first(x), y), (x * 2 + y).sin(), rtol=0, atol=0)
    assert copied == [1, 1] * 2
    with step(PIECEWISE, 4):
        torch.testing.assert_close(second(x, y), (x + y).sin(), rtol=0, atol=0)
    assert copied[4:] == [2]
    with step(PIECEWISE, 4), pytest.raises(UserError, match="BZ7207"):
        second(torch.randn(2, 4), y)


@pytest.mark.parametrize("mode", [NONE, PIECEWISE])
def test_in_another_mode_it_runs_as_it_is_and_records_nothing(buffer, mode):
    f = Counted(lambda x: x + 1)
    wrapped = CUDAGraphWrapper(f, FULL)
    before = trace.COUNTERS["cudagraph_recordings"]
    for _ in range(3):
        with step(mode, 4):
            assert torch.equal(wrapped(buffer[:4]), buffer[:4] + 1)
    assert f.calls == 3
    assert trace.COUNTERS["cudagraph_recordings"] == before
    assert wrapped.captured() == ()


def test_without_a_step_it_runs_as_it_is(buffer):
    wrapped = CUDAGraphWrapper(Counted(lambda x: x + 1), FULL)
    wrapped(buffer)
    with forward_context(cudagraph_runtime_mode=FULL):
        wrapped(buffer)
    assert wrapped.runnable.calls == 2
    assert wrapped.captured() == ()


def test_descriptors_of_other_requests_or_variants_have_recordings_of_their_own(buffer):
    f = Counted(lambda x: x + 1)
    wrapped = CUDAGraphWrapper(f, FULL)
    for more in ({}, {"num_reqs": 2}, {"uniform_query_len": 2}, {"variant": "adapter"}):
        for _ in range(2):
            with step(FULL, 4, **more):
                wrapped(buffer[:4])
    assert f.calls == 4


def test_what_a_call_writes_is_written_once_by_the_call_that_records(buffer):
    cache = torch.zeros(16, 4)

    def f(x, cache):
        cache.add_(x)
        return cache.sum()

    wrapped = CUDAGraphWrapper(f, FULL)
    for k in range(1, 4):
        with step(FULL, 16):
            out = wrapped(buffer, cache)
        torch.testing.assert_close(cache, sum([buffer] * k, torch.zeros(16, 4)))
        torch.testing.assert_close(out, cache.sum())


def test_wrappers_nest_and_each_step_takes_one_way(buffer):
    inner = CUDAGraphWrapper(Counted(lambda x: x * 2), PIECEWISE)
    outer = CUDAGraphWrapper(Counted(lambda x: inner(x) + 1), FULL)
    for mode in (FULL, PIECEWISE, FULL, PIECEWISE, NONE):
        buffer.copy_(torch.randn(16, 4))
        with step(mode, 4):
            assert torch.equal(outer(buffer[:4]), buffer[:4] * 2 + 1)
    assert len(outer.captured()) == len(inner.captured()) == 1
    assert outer.runnable.calls == 1 + 3  # recorded once; twice by pieces, once without
    assert inner.runnable.calls == 1 + 1 + 1  # inside the whole's recording, its own, without


def test_named_arguments_nested_results_and_numbers_come_through(buffer):
    wrapped = CUDAGraphWrapper(lambda x, *, k: {"y": [x * k, k], "z": None}, FULL)
    for _ in range(2):
        with step(FULL, 4):
            out = wrapped(buffer[:4], k=3)
        assert torch.equal(out["y"][0], buffer[:4] * 3)
        assert out["y"][1] == 3
        assert out["z"] is None


def test_an_output_that_is_an_input_is_that_input(buffer):
    wrapped = CUDAGraphWrapper(lambda x: (x, x + 1, x[:2]), FULL)
    for _ in range(3):
        x = buffer[:4]
        with step(FULL, 4):
            same, more, view = wrapped(x)
        assert same is x
        assert torch.equal(more, x + 1)
        assert view.data_ptr() == x.data_ptr()


# -- addresses --------------------------------------------------------------------------------------


def test_an_input_elsewhere_is_refused_where_that_is_checked(buffer):
    wrapped = CUDAGraphWrapper(lambda x, y: x + y, FULL, verify=True)
    y = torch.randn(4, 4)
    with step(FULL, 4):
        wrapped(buffer[:4], y)
        with pytest.raises(UserError, match=r"BZ7207.*argument 1") as caught:
            wrapped(buffer[:4], y.clone())
    assert "copied=" in str(caught.value)


def test_without_the_check_a_replay_reads_where_the_recording_read(buffer):
    wrapped = CUDAGraphWrapper(lambda x: x + 1, FULL, verify=False)
    with step(FULL, 4):
        wrapped(buffer[:4])
        assert torch.equal(wrapped(torch.zeros(4, 4)), buffer[:4] + 1)


def test_another_number_is_refused_always(buffer):
    wrapped = CUDAGraphWrapper(lambda x, n: x[:n] + 1, FULL, verify=False)
    with step(FULL, 4):
        wrapped(buffer, 4)
        with pytest.raises(UserError, match=r"BZ7207.*argument 1.*is 3, and was 4"):
            wrapped(buffer, 3)


def test_inputs_named_as_copied_may_lie_anywhere(buffer):
    f = Counted(lambda x, w: x @ w)
    wrapped = CUDAGraphWrapper(f, FULL, copied=(0,), verify=True)
    w = torch.randn(4, 4)
    for _ in range(3):
        x = torch.randn(4, 4)
        with step(FULL, 4):
            torch.testing.assert_close(wrapped(x, w), x @ w, rtol=0, atol=0)
    assert f.calls == 1
    with step(FULL, 4), pytest.raises(UserError, match="BZ7207"):
        wrapped(torch.randn(1, 4), w)


# -- memory -----------------------------------------------------------------------------------------


def test_sizes_share_a_pool_and_the_smaller_takes_no_more(buffer):
    pools = GraphPools("shared")
    wrapped = CUDAGraphWrapper(lambda x: (x @ torch.ones(4, 64)).sum(-1), FULL, pools=pools)
    with step(FULL, 16):
        wrapped(buffer)
    largest = pools.held()
    for n in (8, 4, 2):
        with step(FULL, n):
            wrapped(buffer[:n])
    assert pools.held() == largest > 0


def test_sizes_with_pools_of_their_own_do_not_write_over_each_other(buffer):
    outs = {}
    for policy in ("shared", "per_tier"):
        wrapped = CUDAGraphWrapper(lambda x: x + 1, FULL, pools=GraphPools(policy))
        for n in (16, 8):
            with step(FULL, n):
                wrapped(buffer[:n])
        with step(FULL, 16):
            outs[policy] = wrapped(buffer)
        kept = outs[policy].clone()
        buffer.add_(1)
        with step(FULL, 8):
            wrapped(buffer[:8])
        assert torch.equal(outs[policy], kept) == (policy == "per_tier")


def test_a_wrong_policy_is_refused():
    with pytest.raises(UserError, match=r"BZ7205.*"):
        GraphPools("per_tear")


def test_pieces_recorded_in_a_row_do_not_take_memory_that_a_later_one_reads(buffer):
    pools = GraphPools()
    pieces = [CUDAGraphWrapper(lambda x, k=k: x * k + 1, PIECEWISE, pools=pools) for k in range(1, 5)]

    def model(x):
        first = y = pieces[0](x)
        for piece in pieces[1:]:
            y = piece(y)
        return first + y

    for n in (8, 4, 8, 4):
        buffer.copy_(torch.randn(16, 4))
        with step(NONE, n):
            expected = model(buffer[:n])
        with step(PIECEWISE, n):
            torch.testing.assert_close(model(buffer[:n]), expected, rtol=0, atol=0)


def test_results_of_a_replay_survive_their_wrapper(buffer):
    wrapped = CUDAGraphWrapper(lambda x: x + 1, FULL)
    with step(FULL, 4):
        wrapped(buffer[:4])
        y = wrapped(buffer[:4])
    expected = buffer[:4] + 1
    del wrapped
    gc.collect()
    noise = [torch.full((4, 4), 9.0) for _ in range(64)]
    assert torch.equal(y, expected), noise[0]


def test_recordings_are_made_again_after_they_were_let_go_of(buffer):
    f = Counted(lambda x: x + 1)
    pools = GraphPools()
    wrapped = CUDAGraphWrapper(f, FULL, pools=pools)
    for expected in (1, 2):
        for _ in range(2):
            with step(FULL, 4):
                assert torch.equal(wrapped(buffer[:4]), buffer[:4] + 1)
        assert f.calls == expected
        clear_all_graphs()
        assert pools.held() == 0
        assert wrapped.captured() == ()


# -- what goes wrong --------------------------------------------------------------------------------


def test_what_cannot_be_recorded_runs_as_it_is_and_says_why(buffer):
    f = Counted(lambda x: x + x.sum().item())
    wrapped = CUDAGraphWrapper(f, FULL, name="reads_a_number")
    with logged() as said:
        for _ in range(3):
            with step(FULL, 4):
                torch.testing.assert_close(wrapped(buffer[:4]), f.f(buffer[:4]))
    (why,) = wrapped.reasons().values()
    assert "cannot be recorded" in why
    assert f.calls == 4
    assert sum("BZ7208: reads_a_number" in text for text in said) == 1


def test_a_wrapper_that_said_something_goes_with_who_made_it(buffer):
    """That a step runs without a recording is told once; to know it, nothing holds the wrapper and what it recorded."""
    wrapped = CUDAGraphWrapper(lambda x: x + 1, FULL, fixed=(0,))
    with step(FULL, 8):
        wrapped(buffer[:8])
        with logged() as said:
            wrapped(torch.zeros(8, 4))
    wrapped.pools.open = False
    with step(FULL, 4), logged() as also:
        wrapped(buffer[:4])
    assert any("BZ6205" in text for text in said)
    assert any("BZ7208" in text for text in also)
    gone = weakref.ref(wrapped)
    del wrapped
    gc.collect()
    assert gone() is None


def test_the_programs_own_error_is_the_programs_and_leaves_nothing_behind(buffer, simulated):
    fail = [True]

    def f(x):
        if fail[0]:
            raise ValueError("not today")
        return x + 1

    wrapped = CUDAGraphWrapper(f, FULL)
    with step(FULL, 4), pytest.raises(ValueError, match="not today"):
        wrapped(buffer[:4])
    assert not simulated.busy()
    assert wrapped.reasons() == {}
    fail[0] = False
    with step(FULL, 4):
        assert torch.equal(wrapped(buffer[:4]), buffer[:4] + 1)
    assert len(wrapped.captured()) == 1


def test_a_callable_that_reads_what_changes_is_refused_at_its_line(buffer):
    def f(x):
        return x * get_forward_context().attn_metadata.num_actual_tokens

    wrapped = CUDAGraphWrapper(f, FULL)
    metadata = AttentionMetaData(*[buffer] * 4, max_seqlen_q=1, max_seqlen_k=8, num_actual_tokens=3)
    with (
        forward_context(metadata, cudagraph_runtime_mode=FULL, batch_descriptor=BatchDescriptor(4)),
        pytest.raises(UserError) as error,
    ):
        wrapped(buffer[:4])
    assert error.value.code == "BZ7301"
    assert error.value.origin.line == f.__code__.co_firstlineno + 1
    assert not wrapped.captured()


def test_a_replay_is_held_to_what_the_recording_has_read(buffer):
    wrapped = CUDAGraphWrapper(lambda x: x * get_forward_context().attn_metadata["scale"], FULL)
    fields = dict(cudagraph_runtime_mode=FULL, batch_descriptor=BatchDescriptor(4))
    with forward_context({"scale": 3}, **fields):
        wrapped(buffer[:4])
        assert wrapped(buffer[:4]).equal(buffer[:4] * 3)
    with forward_context({"scale": 4}, **fields), pytest.raises(UserError) as error:
        wrapped(buffer[:4])
    assert error.value.code == "BZ7302"


def test_once_serving_has_begun_no_more_is_recorded(buffer):
    f = Counted(lambda x: x + 1)
    wrapped = CUDAGraphWrapper(f, FULL)
    with step(FULL, 8):
        wrapped(buffer[:8])
    wrapped.pools.open = False
    for n in (8, 4, 4):
        with step(FULL, n):
            assert torch.equal(wrapped(buffer[:n]), buffer[:n] + 1)
    assert wrapped.captured() == (BatchDescriptor(8),)
    assert "before serving began" in wrapped.reasons()[BatchDescriptor(4)]


def test_first_calls_may_be_left_to_warm_up(buffer):
    f = Counted(lambda x: x + 1)
    wrapped = CUDAGraphWrapper(f, FULL, warmups=2)
    for calls in (1, 2, 3, 3):
        with step(FULL, 4):
            wrapped(buffer[:4])
        assert f.calls == calls


def test_a_rehearsal_comes_before_the_recording(buffer):
    f = Counted(lambda x: x + 1)
    wrapped = CUDAGraphWrapper(f, FULL, rehearse=True)
    with step(FULL, 4):
        assert torch.equal(wrapped(buffer[:4]), buffer[:4] + 1)
    assert f.calls == 2


def test_on_a_device_without_graphs_it_runs_as_it_is():
    wrapped = CUDAGraphWrapper(lambda x: x + 1, FULL)
    with step(FULL, 4):
        assert torch.equal(wrapped(torch.zeros(4)), torch.ones(4))
    assert "cannot record" in wrapped.reasons()[BatchDescriptor(4)]


@pytest.mark.parametrize("mode", [NONE, CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL_DECODE_ONLY])
def test_a_wrapper_has_a_mode_in_which_steps_record(mode):
    with pytest.raises(UserError, match="BZ7206"):
        CUDAGraphWrapper(lambda x: x, mode)


def test_threads_make_one_recording(buffer):
    f = Counted(lambda x: x + 1)
    wrapped = CUDAGraphWrapper(f, FULL)
    failures = []

    def work():
        for _ in range(20):
            with step(FULL, 4):
                if not torch.equal(wrapped(buffer[:4]), buffer[:4] + 1):
                    failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures
    assert f.calls == 1


def test_tensors_of_inference_mode_are_written_and_read(simulated):
    with torch.inference_mode():
        x, cache = torch.randn(4, 4), torch.zeros(4, 4)
        wrapped = CUDAGraphWrapper(lambda x: cache.copy_(x * 2) + 1, FULL)
        for _ in range(3):
            with step(FULL, 4):
                y = wrapped(x)
            assert torch.equal(y, x * 2 + 1)
            assert torch.equal(cache, x * 2)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([NONE, PIECEWISE, FULL]), st.sampled_from([1, 2, 5, 8])), max_size=12),
    st.sampled_from(["shared", "per_tier"]),
)
def test_any_order_of_modes_and_sizes_gives_what_the_callable_gives(steps, policy):
    """Also: in mode NONE nothing is recorded, and the recordings are those of the steps that asked for one."""
    register("cpu", SimulatedGraphs)
    try:
        pools = GraphPools(policy)
        inner = [CUDAGraphWrapper(lambda x, k=k: (x + k).cos(), PIECEWISE, pools=pools) for k in range(3)]

        def model(x):
            for piece in inner:
                x = piece(x) * 2
            return x

        outer = CUDAGraphWrapper(model, FULL, pools=pools, copied=(0,))
        # eager work between pieces lies elsewhere at each call
        for piece in inner:
            piece.copied = (0,)
        for mode, n in steps:
            x = torch.randn(n, 3)
            with step(NONE, n):
                expected = model(x)
            with step(mode, n):
                torch.testing.assert_close(outer(x), expected, rtol=0, atol=0)
        asked = lambda mode: {BatchDescriptor(n) for m, n in steps if m is mode}
        assert set(outer.captured()) == asked(FULL)
        assert set(inner[0].captured()) == asked(PIECEWISE)
        assert not device_of("cpu").busy()
    finally:
        register("cpu", None)
