"""Recordings that are made while nothing runs: what steps asked for, within a budget, on all ranks or none."""

from __future__ import annotations

import threading

import pytest

from braze.cudagraphs.device import NotRecordable
from braze.cudagraphs.simulated import SimulatedGraphs
from braze.serving.engine import recordings
from braze.serving.engine.runner import ModelRunner, RunnerOptions
from braze.serving.engine.sampling import SamplingParams
from braze.serving.pieces.pools import GraphPools
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.modes import CUDAGraphMode
from braze.support.errors import UserError
from tests.serving.engine.test_runner import Ranks, Trace, spoil
from tests.serving.engine.tiny import engine, limits, tiny

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
PROMPTS = [[5, 6, 7], [8], [9, 10], [11]]
LAZY = dict(cudagraph_mode="FULL_DECODE_ONLY", capture="lazy")


@pytest.fixture(scope="module")
def model():
    return tiny()


def decoding(n: int):
    return FULL, BatchDescriptor(n, n, 1)


def decode(served, requests: int, tokens: int = 4) -> list[list[int]]:
    return served.generate(PROMPTS[:requests], SamplingParams(tokens))


def test_nothing_is_recorded_before_an_idle_moment(model, simulated):
    plain, lazy = engine(model), engine(model, graphs=simulated, **LAZY)
    wanted = decode(plain, 3)
    assert decode(lazy, 3) == wanted
    assert (lazy.runner.graphs, lazy.runner.counts["steps_full"]) == ({}, 0)
    assert lazy.runner.stats()["asked_for"] == {decoding(4): 3}
    assert "unrecorded" in lazy.runner.explain(3)
    assert lazy.idle()
    assert set(lazy.runner.graphs) == {(4, 1)}
    assert not lazy.idle()
    assert decode(lazy, 3) == wanted
    assert lazy.runner.counts["steps_full"] == 3
    assert lazy.runner.stats()["asked_for"] == {}
    assert "of 4 tokens (1 of padding)" in lazy.runner.explain(3)


def test_what_was_let_go_of_is_recorded_again_when_that_is_asked_for(model, simulated):
    lazy = engine(model, graphs=simulated, **LAZY)
    wanted = decode(lazy, 3)
    assert lazy.idle()
    lazy.runner.release()
    assert decode(lazy, 3) == wanted
    assert not lazy.idle()
    assert lazy.runner.graphs == {}
    lazy.runner.capture_cudagraph()
    assert lazy.idle()
    assert set(lazy.runner.graphs) == {(4, 1)}
    assert decode(lazy, 3) == wanted


def test_what_was_asked_for_most_goes_first_and_larger_recordings_serve_meanwhile(model, simulated):
    lazy = engine(model, graphs=simulated, **LAZY)
    decode(lazy, 1, 3), decode(lazy, 4, 9), decode(lazy, 2, 6)
    assert lazy.runner.idle() == (decoding(4),)
    before = lazy.runner.counts["steps_full"]
    decode(lazy, 1, 3)
    assert lazy.runner.counts["steps_full"] == before + 2
    assert lazy.runner.idle(9) == (decoding(2), decoding(1))


@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY", "PIECEWISE", "FULL_AND_PIECEWISE"])
def test_tokens_are_those_of_plain_steps_whenever_recordings_are_made(mode, model, simulated):
    """Small sizes are recorded before large ones here, whose memory must not move; what recordings hold between steps is spoiled."""
    split = "graph" if "PIECEWISE" in mode else None
    words = dict(cudagraph_mode=mode, capture="lazy", split=split)
    plain, lazy = engine(model, blocks=20), engine(model, 20, simulated, **words)
    for seed in range(4):
        trace = Trace(seed)
        assert trace.run(lazy, lambda: spoil(lazy)) == trace.run(plain)
        assert lazy.runner.idle(2) or seed
    assert sum(lazy.runner.counts[f"steps_{kind}"] for kind in ("full", "piecewise")) > 10
    assert not lazy.runner.recordings.failed


def test_a_size_that_cannot_be_recorded_keeps_no_other_from_it(model, simulated, unrecordable):
    """Who records while it is told that there may be more to do comes to the others."""
    unrecordable(4)
    lazy = engine(model, graphs=simulated, **LAZY)
    decode(lazy, 4, 9), decode(lazy, 2, 6), decode(lazy, 1, 3)
    assert [lazy.idle() for _ in range(4)] == [True, True, True, False]
    assert set(lazy.runner.graphs) == {(2, 1), (1, 1)}
    assert set(lazy.runner.recordings.failed) == {decoding(4)}


def bytes_of(model, simulated, *sizes: int, **words) -> int:
    """What recordings of these sizes hold."""
    options = dict(cudagraph_mode="FULL_DECODE_ONLY", **words)
    return engine(model, graphs=simulated, sizes=sizes, **options).runner.stats()["graph_bytes"]


def test_what_recorded_steps_leave_their_logits_in_counts_as_theirs(model, simulated):
    runner = engine(model, graphs=simulated, cudagraph_mode="FULL_DECODE_ONLY", sizes=(4,)).runner
    logits = 4 * model.config.vocab * 4
    assert runner.drawing.held() > logits
    assert runner.stats()["graph_bytes"] == runner.recordings.pool.held() + runner.drawing.held()
    runner.release()
    assert runner.stats()["graph_bytes"] == 0


def test_a_budget_is_kept_to_before_serving(model, simulated):
    budget = bytes_of(model, simulated, 6)
    options = dict(cudagraph_mode="FULL_DECODE_ONLY", sizes=(6,))
    assert engine(model, graphs=simulated, memory_budget=budget, **options).runner.stats()["graphs"] == 1
    short = engine(model, graphs=simulated, memory_budget=budget - 1, **options)
    stats = short.runner.stats()
    assert (stats["graphs"], stats["graph_bytes"]) == (0, 0)
    assert "memory_budget" in stats["not_recorded"][decoding(6)]
    assert decode(short, 4) == decode(engine(model), 4)


def test_what_is_asked_for_more_takes_the_place_of_what_is_asked_for_less(model, simulated):
    budget = bytes_of(model, simulated, 4)
    lazy = engine(model, graphs=simulated, sizes=(3, 4), memory_budget=f"{budget}B", **LAZY)
    decode(lazy, 4, 3)
    assert lazy.runner.idle() == (decoding(4),)
    decode(lazy, 3, 9)
    assert lazy.runner.idle() == (decoding(3),)
    assert set(lazy.runner.graphs) == {(3, 1)}
    assert 0 < lazy.runner.stats()["graph_bytes"] <= budget
    assert decode(lazy, 3) == decode(engine(model), 3)


def test_pieces_count_in_the_budget(model, simulated):
    words = dict(cudagraph_mode="PIECEWISE", split="graph", sizes=(4,))
    whole = engine(model, graphs=simulated, **words).runner.stats()
    assert whole["graph_bytes"] > 0
    short = engine(model, graphs=simulated, memory_budget=whole["graph_bytes"] - 1, **words)
    assert short.runner.stats()["graph_bytes"] == 0
    assert [*short.runner.stats()["not_recorded"]] == [(PIECEWISE, BatchDescriptor(4))]


def both(run) -> None:
    """Something on two ranks, in threads."""
    errors: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            run(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


@pytest.mark.parametrize("capture", ["eager", "lazy"])
def test_what_one_rank_cannot_record_none_does(capture, model, monkeypatch):
    """Ranks that step together choose by what all have asked for."""
    ranks, found = Ranks(), {}
    plain, failing = recordings.record, []

    def record(device, pool, run):
        made = plain(device, pool, run)
        if device in failing and made[1].shape[0] == 4:
            raise NotRecordable("no memory for this one")
        return made

    monkeypatch.setattr(recordings, "record", record)

    def serve(rank: int) -> None:
        device = SimulatedGraphs("cpu")
        if rank:
            failing.append(device)
        words = dict(
            cudagraph_mode="FULL_DECODE_ONLY", sizes=(2, 4), reduce=ranks.reduce(rank), capture=capture
        )
        served = engine(model, 20, device, **words)
        requests = [served.add(prompt, SamplingParams(6)) for prompt in PROMPTS[: 4 - rank]]
        for _ in range(8):
            served.step()
        assert served.scheduler.idle()
        while served.idle():
            pass
        found[rank] = set(served.runner.graphs), served.runner.recordings.failed, [r.output for r in requests]

    both(serve)
    recorded = {(2, 1)} if capture == "eager" else set()
    assert [found[rank][0] for rank in (0, 1)] == [recorded] * 2
    assert found[0][1] == {decoding(4): "another rank could not record it"}
    assert found[1][1] == {decoding(4): "no memory for this one"}
    wanted = decode(engine(model), 4, 6)
    assert [found[0][2], found[1][2]] == [wanted, wanted[:3]]


class Ends(BaseException):
    """As an interrupt."""


@pytest.mark.parametrize("capture", ["eager", "lazy"])
@pytest.mark.parametrize(
    "error", [TypeError("no such word"), Ends(), UserError("BZ7301", "it reads what changes")]
)
def test_an_error_while_one_rank_records_comes_to_all(error, capture, model, monkeypatch):
    """One of the size's leaves that size to none; one that ends this rank ends the others, which would wait for it."""
    ranks, found, failing = Ranks(), {}, []
    plain = recordings.record

    def record(device, pool, run):
        if device in failing and run().shape[0] == 4:
            raise error
        return plain(device, pool, run)

    monkeypatch.setattr(recordings, "record", record)

    def serve(rank: int) -> None:
        device = SimulatedGraphs("cpu")
        if rank:
            failing.append(device)
        words = dict(cudagraph_mode="FULL_DECODE_ONLY", sizes=(2, 4), reduce=ranks.reduce(rank))
        try:
            served = engine(model, 20, device, capture=capture, **words)
            decode(served, 4 - rank)
            while served.idle():
                pass
            found[rank] = set(served.runner.graphs), served.runner.recordings.failed.get(decoding(4))
        except (UserError, Ends) as ended:
            found[rank] = ended

    both(serve)
    if isinstance(error, TypeError):
        recorded = {(2, 1)} if capture == "eager" else set()
        assert found[0] == (recorded, "another rank could not record it")
        assert found[1] == (recorded, "TypeError: no such word")
    else:
        assert found[1] is error
        assert found[0].code == "BZ7313"
        assert "on rank 1" in str(found[0])


def test_ranks_stop_recording_together_when_the_memory_of_one_is_spent(model, simulated, unrecordable):
    """Neither waits for what the other does not record any more."""
    ranks, found = Ranks(), {}
    budget = bytes_of(model, simulated, 4)
    unrecordable(2)

    def serve(rank: int) -> None:
        words = dict(cudagraph_mode="FULL_DECODE_ONLY", sizes=(1, 2, 4), reduce=ranks.reduce(rank))
        served = engine(model, 20, SimulatedGraphs("cpu"), memory_budget=budget * (2 - rank), **words)
        found[rank] = set(served.runner.graphs), set(served.runner.recordings.failed)

    both(serve)
    assert found == dict.fromkeys((0, 1), ({(4, 1)}, {decoding(2)}))


def test_the_memory_of_recordings_is_told_while_one_is_made(simulated):
    """A server's metrics are read by a thread of their own."""
    pools = GraphPools("per_tier")

    class Pool:
        def held(self) -> int:
            pools.of(BatchDescriptor(2), simulated)
            return 5

    pools._pools["one"] = Pool()
    assert pools.held() == 5
    assert len(pools.pools()) == 2


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (dict(capture="sometimes"), "BZ7411", "capture='sometimes' is not 'eager' or 'lazy'"),
        (dict(capture=None), "BZ7411", "'eager' or 'lazy'"),
        (dict(memory_budget="2 cups"), "BZ7103", "GiB"),
        (dict(memory_budget=0), "BZ7103", "GiB"),
        (dict(memory_budget="9" * 400 + "GiB"), "BZ7103", "GiB"),
    ],
)
def test_words_that_mean_nothing_are_refused(words, code, told, model):
    with pytest.raises(UserError) as error:
        ModelRunner(model, limits(), RunnerOptions(CUDAGraphMode.NONE, **words))
    assert error.value.code == code
    assert told in str(error.value)


def test_a_budget_that_would_not_be_kept_to_is_refused(model, simulated):
    options = RunnerOptions(PIECEWISE, memory_budget="1MiB")
    with pytest.raises(UserError, match="pools=GraphPools") as error:
        ModelRunner(model, limits(), options, graphs=simulated, piecewise=model)
    assert error.value.code == "BZ7411"
    ModelRunner(model, limits(), options, graphs=simulated, piecewise=model, pools=GraphPools())
