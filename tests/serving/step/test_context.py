"""The forward context: set, read, reset; one a thread; restored after exceptions."""

from __future__ import annotations

import contextlib
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.serving import (
    BatchDescriptor,
    CUDAGraphMode,
    ForwardContext,
    forward_context,
    get_forward_context,
    recorded_reads,
    reset_forward_context,
    set_forward_context,
)
from braze.support.errors import InternalError
from tests.serving.cases import share


@pytest.fixture(autouse=True)
def fresh():
    reset_forward_context()
    yield
    reset_forward_context()


def test_without_a_step_there_are_no_graphs():
    found = get_forward_context()
    assert found.cudagraph_runtime_mode is CUDAGraphMode.NONE
    assert found.batch_descriptor is None
    assert found.attn_metadata is None


def test_what_is_set_is_read_until_it_is_reset():
    set_forward_context("metadata", None, "context", batch_descriptor=BatchDescriptor(8))
    found = get_forward_context()
    assert (found.attn_metadata, found.context, found.batch_descriptor.num_tokens) == (
        "metadata",
        "context",
        8,
    )
    reset_forward_context()
    assert get_forward_context().attn_metadata is None


def test_a_block_restores_what_was_before_also_after_an_exception():
    def a_step_that_fails():
        with forward_context("inner"):
            assert get_forward_context().attn_metadata == "inner"
            raise KeyError

    with forward_context("outer"):
        with pytest.raises(KeyError):
            a_step_that_fails()
        assert get_forward_context().attn_metadata == "outer"
    assert get_forward_context().attn_metadata is None


def test_each_thread_has_its_own():
    seen = []
    set_forward_context("mine")
    thread = threading.Thread(target=lambda: seen.append(get_forward_context().attn_metadata))
    thread.start()
    thread.join()
    assert seen == [None]
    assert get_forward_context().attn_metadata == "mine"


def test_a_step_does_not_run_in_a_pair_of_modes():
    with pytest.raises(InternalError) as error:
        set_forward_context(cudagraph_runtime_mode=CUDAGraphMode.FULL_AND_PIECEWISE)
    assert error.value.code == "BZ9110"


@settings(max_examples=share(1), deadline=None)
@given(st.recursive(st.booleans(), lambda inner: st.lists(inner, max_size=3), max_leaves=12))
def test_whatever_fails_in_whatever_block_the_context_of_before_is_there_again(steps):
    """(e) Blocks nest as the lists do; True raises."""

    def run(step, depth):
        before = get_forward_context()
        try:
            with forward_context(depth), recorded_reads() if depth % 2 else contextlib.nullcontext():
                assert get_forward_context().attn_metadata == depth
                if step is True:
                    raise KeyError
                for inner in step or ():
                    run(inner, depth + 1)
        except KeyError:
            if depth % 3:
                raise
        finally:
            # while recording, a view of the same
            assert get_forward_context().attn_metadata == before.attn_metadata

    with contextlib.suppress(KeyError):
        run(steps, 0)
    assert get_forward_context().attn_metadata is None
    assert type(get_forward_context()) is ForwardContext
