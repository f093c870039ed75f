"""Recorded draws give the tokens that unrecorded ones do, by a copy and a replay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import braze
from braze.cudagraphs.device import NotRecordable
from braze.cudagraphs.simulated import SimulatedGraphs
from braze.serving.engine import draws as draws_module
from braze.serving.engine.compiled import compiled_rows
from braze.serving.engine.draws import Draws
from braze.serving.engine.kept import Rows
from braze.serving.engine.recordings import Recordings
from braze.serving.engine.sampling import SamplingParams, number_of, sample
from tests.serving.cases import share
from tests.serving.engine.tiny import engine, tiny

FEW = 16
VOCAB = 97


def recorded(logits: torch.Tensor, sizes: list[int], few: int = FEW) -> Draws:
    """Draws over these logits and the greatest of them."""
    found = Draws(logits, logits.argmax(-1), Rows(few=few))
    found.capture(Recordings(SimulatedGraphs("cpu")), sizes)
    return found


@st.composite
def parameters(draw: st.DrawFn) -> list[SamplingParams]:
    """Of one to eight requests; greedy ones, and all bounds."""
    one = st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        top_k=st.sampled_from([0, 1, 5, 200]),
        top_p=st.sampled_from([1.0, 0.9, 0.2]),
    )
    return draw(st.lists(one, min_size=1, max_size=8))


@pytest.fixture(scope="module")
def eight() -> Draws:
    """Draws of 1, 2, 4 and 8 rows over one memory."""
    with torch.inference_mode():
        return recorded(torch.zeros(8, VOCAB), [1, 2, 4, 8])


@settings(deadline=None, max_examples=share(1))
@given(st.lists(st.tuples(parameters(), st.integers(0, 2**32)), min_size=1, max_size=4))
def test_a_recorded_draw_is_what_is_drawn_without(eight, steps):
    """Step by step in the same memory, whose rows beyond the step's hold what they like."""
    with torch.inference_mode():
        for params, seed in steps:
            count, source = len(params), torch.Generator().manual_seed(seed)
            eight.logits.copy_(torch.randn(8, VOCAB, generator=source).mul(3).round())
            eight.logits[count:].fill_(float("nan"))
            torch.argmax(eight.logits, -1, out=eight.best)
            numbers = [number_of(seed, place) for place in range(count)]
            plain = sample(eight.logits[:count], params, numbers, Rows(few=FEW))
            found = eight.draw(params, numbers)
            assert found is not None and found.equal(plain)


def test_more_rows_than_are_put_in_order_are_not_recorded():
    with torch.inference_mode():
        found = recorded(torch.zeros(8, VOCAB), [1, 4, 8], few=4)
        params = [SamplingParams(temperature=1.0)]
        assert found.draw(params * 4, range(4)) is not None
        assert found.draw(params * 5, range(5)) is None


class Calls(TorchDispatchMode):
    """Counts what passes the dispatcher."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "params",
    [SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=5), SamplingParams(temperature=1.0, top_k=5, top_p=0.5)],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 3])
def test_a_recorded_draw_is_one_copy_one_replay_and_a_view(eight, params, count, monkeypatch):
    """On a GPU a replay is one launch."""
    replays: list[int] = []
    for graph in eight.graphs.values():
        monkeypatch.setattr(graph, "replay", lambda: replays.append(1))
    with torch.inference_mode(), Calls() as seen:
        eight.draw([params] * count, range(count))
    assert (seen.count, len(replays)) == (2, 1)


def served(mode: str, drafts: int = 0, refuse: bool = False) -> tuple[list[list[int]], list[int]]:
    """The tokens of requests that draw differently, as an engine whose draws are recorded gives them, and how many rows each such draw had."""
    e = engine(
        tiny(),
        graphs=SimulatedGraphs("cpu") if mode != "NONE" else None,
        cudagraph_mode=mode, drafts=drafts, overlap=True,
    )  # fmt: skip
    drawing = e.runner.drawing
    drawing.rows = Rows(few=FEW)
    e.runner.capture_cudagraph()
    rows: list[int] = []
    if drawing.draws is not None:
        draw = drawing.draws.draw

        def noted(params, numbers):
            found = draw(params, numbers)
            if found is not None:
                rows.append(len(params))
            return found

        drawing.draws.draw = noted  # type: ignore[method-assign]
    params = [
        SamplingParams(max_tokens=9, temperature=1.0, seed=1),
        SamplingParams(max_tokens=6, temperature=0.8, top_k=7, seed=2),
        SamplingParams(max_tokens=12, temperature=1.3, top_p=0.7, seed=3, top_k=20),
        SamplingParams(max_tokens=7),
    ]
    return e.generate([[5, 6, 7], [9], [11, 12], [13]], params), rows


@pytest.mark.parametrize(("mode", "drafts"), [("FULL_DECODE_ONLY", 0), ("FULL_DECODE_ONLY", 2)])
def test_an_engine_draws_by_recordings_what_it_draws_without(mode, drafts):
    tokens, rows = served(mode, drafts)
    assert rows
    plain, none = served("NONE", drafts)
    assert (tokens, none) == (plain, [])


def test_a_draw_that_cannot_be_recorded_is_drawn_as_it_is(monkeypatch):
    def refused(*given):
        raise NotRecordable("not today")

    plain, _ = served("NONE")
    monkeypatch.setattr(draws_module, "record", refused)
    assert served("FULL_DECODE_ONLY") == (plain, [])


def test_draws_go_with_the_recordings_whose_memory_they_read():
    e = engine(tiny(), graphs=SimulatedGraphs("cpu"), cudagraph_mode="FULL_DECODE_ONLY")
    runner = e.runner
    runner.drawing.rows = Rows(few=FEW)
    for let_go in (lambda: runner.allocate_cache(16), runner.release):
        runner.capture_cudagraph()
        assert runner.drawing.draws is not None
        let_go()
        assert runner.drawing.draws is None


def test_draws_are_recorded_once_as_sizes_are_recorded_while_nothing_runs(monkeypatch):
    """And tokens are those of draws that are not recorded."""
    made: list[int] = []
    plain = draws_module.Draws._record
    monkeypatch.setattr(draws_module.Draws, "_record", lambda self, r, n: made.append(n) or plain(self, r, n))
    e = engine(tiny(), graphs=SimulatedGraphs("cpu"), cudagraph_mode="FULL_DECODE_ONLY", capture="lazy")
    e.runner.drawing.rows = Rows(few=FEW)
    params = SamplingParams(4, temperature=1.0, seed=5)
    wanted = [e.generate([[5, 6]] * n, params) for n in (4, 2, 4)]
    while e.idle():
        pass
    assert made == [4, 2]
    assert [e.generate([[5, 6]] * n, params) for n in (4, 2, 4)] == wanted
    assert e.runner.drawing.draws._sizes == [2, 4]


def test_compiled_functions_are_recorded_too():
    """As on a GPU, whose kernels do not pass the dispatcher."""
    braze.reset()
    compiled_rows.cache_clear()
    source = torch.Generator().manual_seed(3)
    with torch.inference_mode():
        logits = torch.randn(4, VOCAB, generator=source).mul(3)
        found = Draws(logits, logits.argmax(-1), compiled_rows())
        found.capture(Recordings(SimulatedGraphs("cpu")), [1, 4])
        for params in (
            [SamplingParams(temperature=0.7)],
            [
                SamplingParams(temperature=1.0, top_k=9),
                SamplingParams(),
                SamplingParams(temperature=2.0, top_p=0.8),
            ],
        ):
            logits.copy_(torch.randn(4, VOCAB, generator=source).mul(3))
            torch.argmax(logits, -1, out=found.best)
            numbers = [number_of(5, place) for place in range(len(params))]
            tokens = found.draw(params, numbers)
            assert tokens is not None
            assert tokens.equal(sample(logits[: len(params)], params, numbers, Rows(few=FEW)))
