"""Data-parallel ranks: one decision for all, from rows that all hear."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.multiprocessing as mp

from braze.serving import BatchDescriptor, CUDAGraphMode
from braze.serving.policy.data_parallel import (
    Batch,
    alone,
    dispatch_across,
    get_dp_padding,
    gloo,
    synchronise,
    wanted_by,
)
from braze.serving.policy.dispatch import Decision, Dispatcher
from braze.support.errors import UserError

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
D = Dispatcher(
    CUDAGraphMode.FULL_AND_PIECEWISE,
    (8, 4, 2, 1),
    max_num_seqs=8,
    max_num_batched_tokens=64,
    uniform_query_lens=(1, 2),
)


class Ranks:
    """A reduce of threads that stand for ranks."""

    def __init__(self, many: int) -> None:
        self.barrier = threading.Barrier(many)
        self.rows: list[list[int]] = [[] for _ in range(many)]

    def of(self, rank: int):
        def reduce(row):
            self.rows[rank] = list(row)
            self.barrier.wait()
            return list(self.rows)

        return reduce


def across(*batches: Batch, dispatcher: Dispatcher = D, captured=None):
    """What each rank decides."""
    ranks = Ranks(len(batches))
    found = [None] * len(batches)

    def run(rank):
        found[rank] = dispatch_across(dispatcher, batches[rank], ranks.of(rank), captured)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def decode(requests: int, q: int = 1) -> Batch:
    return Batch(requests * q, requests, q)


def test_ranks_that_decode_replay_the_size_of_the_largest():
    one, other = across(decode(1), decode(3))
    assert one == other
    assert one.decision.descriptor == BatchDescriptor(4, 4, 1)
    assert one.tokens_across_ranks == (4, 4)


def test_one_rank_that_prefills_takes_all_to_pieces():
    one, other = across(decode(3), Batch(7, 2, 6))
    assert one == other
    assert (one.decision.mode, one.decision.descriptor) == (PIECEWISE, BatchDescriptor(8))


def test_one_rank_that_cannot_replay_takes_all_off_recordings_unpadded():
    one, other = across(decode(3), Batch(40, 2, 30))
    assert (one.decision.mode, other.decision.mode) == (NONE, NONE)
    assert one.tokens_across_ranks == other.tokens_across_ranks == (3, 40)
    assert (one.decision.descriptor.num_tokens, other.decision.descriptor.num_tokens) == (3, 40)


def test_a_rank_without_requests_goes_along():
    one, idle = across(decode(3), Batch(0, 0, 0))
    assert one == idle
    assert (idle.decision.mode, idle.tokens_across_ranks) == (FULL, (4, 4))


def test_ranks_that_are_all_idle_run_nothing():
    one, other = across(Batch(0, 0, 0), Batch(0, 0, 0))
    assert one == other
    assert (one.decision.mode, one.tokens_across_ranks) == (NONE, (0, 0))


def test_ranks_that_decode_different_numbers_of_tokens_go_by_pieces():
    one, other = across(decode(2), decode(2, 2))
    assert one == other
    assert (one.decision.mode, one.decision.descriptor) == (PIECEWISE, BatchDescriptor(4))


def test_what_all_ranks_need_together_may_be_more_than_any_recording():
    """Each by itself has one; the most tokens and the most requests are in no decoding recording together."""
    small = Dispatcher(
        CUDAGraphMode.FULL_DECODE_ONLY,
        (2,),
        max_num_seqs=8,
        max_num_batched_tokens=64,
        uniform_query_lens=(1, 2),
    )
    one, other = across(decode(2), decode(1, 2), dispatcher=small)
    assert (one.decision.mode, other.decision.mode) == (NONE, NONE)


def test_a_single_rank_is_alone():
    found = dispatch_across(D, decode(3), alone)
    assert found.decision.descriptor == BatchDescriptor(4, 4, 1)
    assert wanted_by(D, found.rows) == found.decision


@pytest.mark.parametrize(
    "batches",
    [
        (decode(1), decode(3)),
        (decode(3), Batch(7, 2, 6)),
        (decode(3), Batch(0, 0, 0)),
        (decode(2), decode(2, 2)),
    ],
)
def test_what_ranks_would_do_with_everything_captured_follows_from_what_they_said(batches):
    """Nothing is captured when they say it."""
    everything = across(*batches)[0].decision
    for found in across(*batches, captured=()):
        assert found.decision.mode is NONE
        assert wanted_by(D, found.rows) == everything


def test_rows_of_ranks_that_differ_in_length_are_refused():
    decision = Decision(NONE, BatchDescriptor(1), "")
    with pytest.raises(UserError) as error:
        synchronise(decode(1), decision, lambda row: [row, [1]])
    assert error.value.code == "BZ7110"


def test_padding_brings_a_rank_up_to_the_largest():
    assert get_dp_padding(5, 1, alone) == (0, None)
    missing, tokens = get_dp_padding(5, 2, lambda row: [row, [9]])
    assert missing == 4
    assert torch.equal(tokens, torch.tensor([9, 9], dtype=torch.int32))


def worker(rank: int, meeting: str, backend: str, results) -> None:
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=2)
    steps = [
        (decode(1), decode(3)),
        (decode(3), Batch(7, 2, 6)),
        (Batch(0, 0, 0), decode(8)),
        (decode(3), Batch(40, 2, 30)),
    ]
    said = []
    for step in steps:
        found = dispatch_across(D, step[rank], gloo())
        said.append((found.decision.mode.name, found.tokens_across_ranks))
    results.put((rank, said, get_dp_padding(3 + rank, 2, gloo())[0]))
    results.close()
    results.join_thread()
    torch.distributed.destroy_process_group()


def check_two_processes(tmp_path, backend: str) -> None:
    """They meet at a file: a port that was free may be another's by then."""
    context = mp.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=worker, args=(rank, str(tmp_path / "meeting"), backend, results))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    found = dict((rank, said) for rank, *said in (results.get(timeout=150) for _ in processes))
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert (
        found[0][0]
        == found[1][0]
        == [("FULL", (4, 4)), ("PIECEWISE", (8, 8)), ("FULL", (8, 8)), ("NONE", (3, 40))]
    )
    assert (found[0][1], found[1][1]) == (1, 0)


def test_two_processes_agree_by_gloo(tmp_path):
    check_two_processes(tmp_path, "gloo")
