"""Which recording a step replays: the table of edge cases, and what each ladder holds."""

from __future__ import annotations

import pytest

from braze.serving import CUDAGraphMode
from braze.serving.policy.dispatch import BatchDescriptor, Dispatcher

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
BOTH, DECODE_ONLY = CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL_DECODE_ONLY
SIZES = (8, 4, 2, 1)


def dispatcher(mode: CUDAGraphMode, sizes=SIZES, **more) -> Dispatcher:
    return Dispatcher(mode, sizes, **{"max_num_seqs": 8, "max_num_batched_tokens": 64, **more})


#: mode -> (mode, tokens after padding) of: 3 requests that decode; 6 tokens of 2 requests; 9 that decode; 20 tokens mixed
TABLE = {
    NONE: [(NONE, 3), (NONE, 6), (NONE, 9), (NONE, 20)],
    PIECEWISE: [(PIECEWISE, 4), (PIECEWISE, 8), (NONE, 9), (NONE, 20)],
    FULL: [(FULL, 4), (FULL, 8), (NONE, 9), (NONE, 20)],
    DECODE_ONLY: [(FULL, 4), (NONE, 6), (NONE, 9), (NONE, 20)],
    BOTH: [(FULL, 4), (PIECEWISE, 8), (NONE, 9), (NONE, 20)],
}


@pytest.mark.parametrize("mode", TABLE)
def test_decoding_mixed_and_oversize_batches(mode):
    d = dispatcher(mode)
    found = [
        d.dispatch(3, 3, max_query_len=1),
        d.dispatch(6, 2, max_query_len=5),
        d.dispatch(9, 9, max_query_len=1),
        d.dispatch(20, 3, max_query_len=18),
    ]
    assert [(x.mode, x.descriptor.num_tokens) for x in found] == TABLE[mode]


def test_a_batch_over_the_largest_runs_unpadded_and_says_why():
    found = dispatcher(BOTH).dispatch(20, 2, max_query_len=12)
    assert found.descriptor == BatchDescriptor(20, 2)
    assert "20 tokens are more than 8" in found.reason


def test_a_size_that_is_captured_is_not_padded():
    assert dispatcher(BOTH).dispatch(4, 4, max_query_len=1).descriptor == BatchDescriptor(4, 4, 1)


def test_decoding_with_tokens_that_were_not_captured_goes_by_pieces_or_unrecorded():
    assert dispatcher(BOTH).dispatch(6, 3, max_query_len=2).mode is PIECEWISE
    found = dispatcher(DECODE_ONLY).dispatch(6, 3, max_query_len=2)
    assert found.mode is NONE
    assert "decoding 2 a request is not recorded" in found.reason


def test_each_number_of_tokens_a_request_has_its_own_ladder_of_whole_requests():
    d = dispatcher(BOTH, uniform_query_lens=(1, 3))
    assert d.dispatch(9, 3, max_query_len=3).descriptor == BatchDescriptor(12, 4, 3)
    assert d.dispatch(3, 3, max_query_len=1).descriptor == BatchDescriptor(4, 4, 1)
    assert {k.num_tokens for k in d.keys(FULL)} == {1, 2, 4, 8, 3, 6, 12, 24}
    assert {k.num_tokens for k in d.keys(PIECEWISE)} == {1, 2, 4, 8}


def test_pieces_alone_have_rungs_for_requests_that_decode_several_tokens():
    d = dispatcher(PIECEWISE, uniform_query_lens=(3,))
    assert d.dispatch(24, 8, max_query_len=3).descriptor == BatchDescriptor(24)


def test_a_single_full_replays_the_mixed_recording_for_batches_that_decode():
    found = dispatcher(FULL).dispatch(3, 3, max_query_len=1)
    assert found.descriptor == BatchDescriptor(4, 4, uniform_query_len=0)
    assert dispatcher(FULL, (16,)).dispatch(9, 2, max_query_len=8).descriptor == BatchDescriptor(16, 8)


def test_pieces_are_kept_for_any_number_of_requests():
    assert dispatcher(PIECEWISE).dispatch(7, 2, max_query_len=6).descriptor == BatchDescriptor(8)


def test_an_empty_batch_runs_unrecorded():
    found = dispatcher(BOTH).dispatch(0, 0, max_query_len=0)
    assert (found.mode, found.descriptor.num_tokens, found.reason) == (NONE, 0, "the batch is empty")


def test_enforce_eager_records_nothing():
    d = dispatcher(BOTH, enforce_eager=True)
    found = d.dispatch(4, 4, max_query_len=1)
    assert (found.mode, found.reason) == (NONE, "enforce_eager")
    assert d.keys(FULL) == d.keys(PIECEWISE) == ()


def test_sizes_over_the_buffers_have_no_rung():
    d = dispatcher(BOTH, (4, 16, 128), max_num_seqs=8, max_num_batched_tokens=64)
    assert [k.num_tokens for k in d.keys(FULL)] == [4]
    assert [k.num_tokens for k in d.keys(PIECEWISE)] == [16, 4]


def test_variants_have_recordings_of_their_own():
    d = dispatcher(BOTH, variants=(None, "lora"))
    assert d.dispatch(3, 3, max_query_len=1, variant="lora").descriptor == BatchDescriptor(4, 4, 1, "lora")
    found = d.dispatch(3, 3, max_query_len=1, variant="other")
    assert (found.mode, found.descriptor.num_tokens) == (NONE, 3)
    assert "'other' is not recorded" in found.reason


def test_valid_modes_leave_out_the_better_one():
    d = dispatcher(BOTH)
    assert d.dispatch(3, 3, max_query_len=1, valid_modes={PIECEWISE}).mode is PIECEWISE
    assert d.dispatch(3, 3, max_query_len=1, valid_modes={NONE}).mode is NONE
    assert dispatcher(DECODE_ONLY).dispatch(3, 3, max_query_len=1, valid_modes={PIECEWISE}).mode is NONE


def test_a_size_that_was_not_captured_takes_the_next_larger_then_pieces_then_nothing():
    d = dispatcher(BOTH)
    full8, piece4 = (FULL, BatchDescriptor(8, 8, 1)), (PIECEWISE, BatchDescriptor(4))
    found = d.dispatch(3, 3, max_query_len=1, captured={full8, piece4})
    assert (found.mode, found.descriptor.num_tokens) == (FULL, 8)
    found = d.dispatch(3, 3, max_query_len=1, captured={piece4})
    assert (found.mode, found.descriptor.num_tokens) == (PIECEWISE, 4)
    found = d.dispatch(3, 3, max_query_len=1, captured=set())
    assert (found.mode, found.descriptor.num_tokens) == (NONE, 3)
    assert "has been captured" in found.reason


def test_the_largest_are_captured_first():
    tokens = [key.num_tokens for key in dispatcher(BOTH, uniform_query_lens=(1, 2)).keys(FULL)]
    assert tokens == sorted(tokens, reverse=True)


def test_a_descriptor_is_uniform_where_every_request_has_as_many_tokens():
    assert BatchDescriptor(8, 4, 2).uniform
    assert not BatchDescriptor(8, 4).uniform
