"""The forward context: set, read, reset; one a thread; restored after exceptions."""

from __future__ import annotations

import threading

import pytest

from braze.serving import (
    BatchDescriptor,
    CUDAGraphMode,
    forward_context,
    get_forward_context,
    reset_forward_context,
    set_forward_context,
)
from braze.support.errors import InternalError


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
