"""Which sizes a runner records: those that its limits leave of what was asked for, the largest batch, or what traffic asks for."""

from __future__ import annotations

import pytest

from braze.serving import CUDAGraphMode, ModelRunner, RunnerOptions, SamplingParams
from braze.serving.policy.sizes import read_traffic, write_traffic
from braze.support import log
from braze.support.errors import UserError
from tests.serving.engine.tiny import engine, limits, tiny


@pytest.fixture(scope="module")
def model():
    return tiny()


def heard(make) -> tuple[list[str], object]:
    """What is told while something is made, and that."""
    told: list[str] = []
    with log.listen(told.append):
        made = make()
    return told, made


def decoding(served) -> list[int]:
    """Requests of each recording of steps that only decode."""
    return sorted(bs for bs, q in served.runner.graphs if q)


@pytest.mark.parametrize("drafts", [0, 2])
def test_the_largest_batch_is_a_size_where_none_was_named(model, simulated, drafts):
    """Batches between the last of the doubling sizes and the limit would run unrecorded."""
    served = engine(model, graphs=simulated, cudagraph_mode="FULL_DECODE_ONLY", sizes="auto", drafts=drafts)
    assert decoding(served) == [1, 2, 4, 6]
    for first in range(3, 8):
        served.add([first, 9], SamplingParams(6, ignore_eos=True))
    while not served.scheduler.idle():
        served.step()
    assert served.runner.counts["steps_full"] >= 2
    assert "replay" in served.runner.explain(5 * (drafts + 1), 5, drafts + 1)


def test_sizes_that_were_named_and_do_not_fit_are_told_of_and_others_are_not(model, simulated):
    words = dict(graphs=simulated, cudagraph_mode="FULL_DECODE_ONLY")
    told, served = heard(lambda: engine(model, sizes=(2, 777), **words))
    assert [line for line in told if "BZ7107" in line and "777" in line]
    assert decoding(served) == [2]
    assert not heard(lambda: engine(model, sizes="auto", **words))[0]
    for sizes, word in ((777,), "no capture size"), ((), "empty"):
        with pytest.raises(UserError, match=word) as error:
            engine(model, sizes=sizes, **words)
        assert error.value.code == "BZ7105"


@pytest.mark.parametrize("drafts", [0, 1])
def test_sizes_come_from_the_steps_of_a_run_before(model, simulated, tmp_path, drafts):
    """A step that only decodes counts its requests, however many tokens each has; others their tokens."""
    first = engine(model, cudagraph_mode="FULL_AND_PIECEWISE", split="graph", graphs=simulated, drafts=drafts)
    runner = first.runner
    prompts = [[5, 6, 7], [8, 9, 10], [11, 12, 13]]
    first.generate(prompts, SamplingParams(24, ignore_eos=True))
    assert runner.histogram[9] == 1  # all prompts at once
    assert runner.histogram[3] > 10
    assert sum(runner.histogram.values()) == sum(
        runner.counts[f"steps_{m}"] for m in ("none", "piecewise", "full")
    )
    assert 3 in runner.suggest_sizes(2).sizes
    file = tmp_path / "traffic"
    write_traffic(runner.histogram, file)
    assert read_traffic(file) == dict(runner.histogram)
    second = engine(
        model, cudagraph_mode="FULL_DECODE_ONLY", graphs=simulated, drafts=drafts, sizes=f"traffic:{file}"
    )
    assert 3 in decoding(second)
    assert max(decoding(second)) == 6
    with pytest.raises(UserError, match="BZ7109"):
        engine(model, cudagraph_mode="FULL", graphs=simulated, sizes=f"traffic:{tmp_path / 'none'}")


def test_where_nothing_is_recorded_no_sizes_are_suggested(model):
    served = engine(model)
    served.generate([[5, 6]], SamplingParams(3))
    found = served.runner.suggest_sizes()
    assert (found.sizes, found.keep_default) == ((), True)
    with pytest.raises(UserError, match="k="):
        served.runner.suggest_sizes(0)


@pytest.mark.parametrize("sizes", ["autos", "traffic:", 4, [1, 2.0]], ids=str)
def test_sizes_of_another_kind_are_refused(model, sizes):
    with pytest.raises(UserError, match="sizes=") as error:
        ModelRunner(model, limits(), RunnerOptions(CUDAGraphMode.FULL, sizes=sizes))
    assert error.value.code == "BZ7411"


def test_a_mode_without_a_recorder_is_told_of_once(model):
    make = lambda **words: ModelRunner(model, limits(), RunnerOptions(CUDAGraphMode.FULL, **words))
    told, runner = heard(lambda: make())
    assert [line for line in told if line.startswith("BZ7410: FULL records nothing: cpu")]
    assert runner.sizes == ()
    assert not heard(lambda: make(enforce_eager=True))[0]
