"""Every mode gives the tokens of steps without recordings, on the simulated device, with spoiled pools and padding."""

from __future__ import annotations

import functools
import os
import random
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze.serving.engine.compiled import compile_decoder
from braze.serving.engine.engine import Engine
from braze.serving.engine.requests import Work
from braze.serving.engine.sampling import SamplingParams
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.modes import CUDAGraphMode
from braze.support import trace as trace_module
from braze.support.errors import UserError
from tests.serving.engine.tiny import engine, limits, tiny

FULL, NONE = CUDAGraphMode.FULL, CUDAGraphMode.NONE
MODES = ("FULL", "FULL_DECODE_ONLY")
#: random traces of requests for each mode
TRACES = int(os.environ.get("BRAZE_TRACES", "2"))
#: the seed of the first one
FIRST = int(os.environ.get("BRAZE_FIRST_TRACE", "0"))


class Trace:
    """Requests that come at random steps; some leave early. ``run`` gives the tokens of each."""

    def __init__(self, seed: int, count: int = 7, stop: tuple[int, ...] = ()) -> None:
        self.stop = stop
        self.numbers = random.Random(seed)
        draw = self.numbers.randint
        self.requests = [
            (draw(0, 12), [draw(3, 96) for _ in range(draw(1, 25))], draw(1, 12), draw(0, 9) == 0)
            for _ in range(count)
        ]

    def run(self, served: Engine, between=lambda: None) -> list[list[int]]:
        requests, step = [], 0
        while len(requests) < len(self.requests) or not served.scheduler.idle():
            for begin, prompt, count, _ in self.requests:
                if begin == step:
                    requests.append(
                        served.add(prompt, SamplingParams(count, stop=self.stop), f"{step}.{len(requests)}")
                    )
            between()
            served.step()
            step += 1
        assert served.scheduler.pool.free == served.runner.blocks
        return [request.output for request in requests]


def spoil(served: Engine) -> None:
    """Fill what no step may rely on: the recordings' pools, those of pieces too, hidden states, free blocks, and what padding was."""
    runner = served.runner
    if runner.recordings is not None:
        for pool in (runner.recordings.pool, *runner.recordings.pieces.pools()):
            pool.spoil()  # type: ignore[attr-defined]
    runner.hidden.fill_(float("nan"))
    runner.buffers.packed.fill_(0x7F)
    pool = served.scheduler.pool
    free = [block for block in range(runner.blocks) if not pool.holders(block) and block not in pool._keys]
    for cache in runner.caches.values():
        cache.key[free] = float("nan")
        cache.value[free] = float("nan")


@pytest.fixture(scope="module")
def models():
    return {name: tiny(name) for name in ("llama", "qwen3", "deepseek")}


@pytest.fixture(scope="module")
def plain(models):
    """The tokens that plain steps of a model give in each trace."""

    @functools.cache
    def tokens(name):
        served = engine(models[name], blocks=20)
        return [Trace(seed).run(served) for seed in range(FIRST, FIRST + TRACES)]

    return tokens


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["llama", "qwen3", "deepseek"])
def test_every_mode_gives_the_tokens_of_plain_steps(name, mode, drafts, models, plain, simulated):
    recorded = engine(models[name], blocks=20, graphs=simulated, cudagraph_mode=mode, drafts=drafts)
    for seed, tokens in enumerate(plain(name), FIRST):
        assert Trace(seed).run(recorded, lambda: spoil(recorded)) == tokens
    assert recorded.runner.counts["steps_full"] > 10
    assert recorded.scheduler.preemptions > 0 or drafts, "with guesses requests are over sooner"
    assert not recorded.runner.recordings.failed


@pytest.mark.parametrize("mode", ["NONE", "FULL", "FULL_DECODE_ONLY"])
@pytest.mark.parametrize("name", ["llama", "deepseek"])
def test_steps_that_begin_before_the_last_ones_tokens_are_known_give_the_same(name, mode, models, simulated):
    """Requests that end by a token are found out a step late, and leave nothing behind: no token, no block."""
    plain = engine(models[name], blocks=20)
    ahead = engine(models[name], 20, simulated, cudagraph_mode=mode, overlap=True)
    begun: list[int] = []
    launch = ahead.runner.launch

    def launched(works, before=None):
        if before is not None:
            begun.append(len(works))
        return launch(works, before)

    ahead.runner.launch = launched
    wasted = 0
    for seed in range(4):
        trace = Trace(seed, stop=tuple(range(seed, 97, 9)))
        assert trace.run(ahead, lambda: spoil(ahead)) == trace.run(plain)
        wasted += ahead._flight is not None
    assert sum(begun) > 50
    assert wasted, "no trace ended with a step on its way"


def test_a_request_that_leaves_while_its_next_step_is_on_its_way_gives_its_blocks_back(models):
    served = engine(models["llama"], overlap=True)
    one, two = (served.add([5, 6, n], SamplingParams(30, ignore_eos=True)) for n in (7, 8))
    for _ in range(4):
        served.step()
    assert served._flight is not None
    served.abort(one)
    assert served.scheduler.pool.used == len(two.blocks)
    while not served.scheduler.idle():
        served.step()
    assert one.generated == 4
    assert two.output == engine(models["llama"]).generate([[5, 6, 8]], SamplingParams(30, ignore_eos=True))[0]


def test_a_step_that_fails_leaves_none_on_its_way(models, monkeypatch):
    served = engine(models["llama"], overlap=True)
    request = served.add([5, 6], SamplingParams(9, ignore_eos=True))
    served.step()
    launch = served.runner.launch
    monkeypatch.setattr(served.runner, "launch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        served.step()
    assert served._flight is None
    served.abort(request)
    monkeypatch.setattr(served.runner, "launch", launch)
    assert served.generate([[5, 6]], SamplingParams(3)) == engine(models["llama"]).generate(
        [[5, 6]], SamplingParams(3)
    )


@pytest.mark.parametrize(
    ("name", "mode", "split", "drafts"),
    [
        ("llama", "PIECEWISE", "graph", 0),
        ("qwen3", "FULL_AND_PIECEWISE", "graph", 2),
        ("llama", "FULL_AND_PIECEWISE", "capture", 0),
        ("deepseek", "PIECEWISE", "schedule", 0),
    ],
)
def test_pieces_give_the_tokens_of_plain_steps(name, mode, split, drafts, models, plain, simulated):
    """Compiled, prompts and mixed steps recorded by pieces, at each of the three borders."""
    recorded = engine(models[name], 20, simulated, cudagraph_mode=mode, split=split, drafts=drafts)
    for seed, tokens in enumerate(plain(name), FIRST):
        assert Trace(seed).run(recorded, lambda: spoil(recorded)) == tokens
    counts = recorded.runner.counts
    assert counts["steps_piecewise"] > 10
    assert (counts["steps_full"] > 10) == (mode != "PIECEWISE")
    assert counts["tokens_padded"] > counts["tokens"]


@pytest.mark.parametrize(
    ("name", "op"), [("qwen3", "rope_attention_with_output"), ("deepseek", "chosen_experts")]
)
def test_a_custom_operator_that_is_not_wanted_is_ordinary_code(name, op, simulated):
    """Which is compiled with the rest, and gives the same tokens."""
    model = tiny(name)
    mode, trace = CUDAGraphMode.FULL_DECODE_ONLY, Trace(3)
    wanted = trace.run(engine(model))
    called: dict[str, bool] = {}
    # the words for all are the same for each operator
    for choice in (f"+{op}", f"-{op}", *(("none", "all") if name == "qwen3" else ())):
        pieces = compile_decoder(model, mode, custom_ops=(choice,))
        served = engine(model, graphs=simulated, cudagraph_mode="FULL_DECODE_ONLY", compiled=pieces)
        assert trace.run(served) == wanted
        with torch.inference_mode(), Called(op) as seen:
            served.runner.dummy_run(3)
        called[choice] = bool(seen.times)
    assert called.items() <= {f"+{op}": True, f"-{op}": False, "none": False, "all": True}.items()


class Called(TorchDispatchMode):
    """Counts the calls of one of our operators."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.op, self.times = op, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.times += func.name().startswith(f"braze::{self.op}")
        return func(*args, **(kwargs or {}))


def test_a_guess_beside_a_prompt_that_goes_on_gives_each_request_its_own_tokens(models):
    """Two tokens are drawn for two requests, and both are of the one that guesses."""
    served = engine(models["llama"], bounds=limits(max_num_batched_tokens=6), drafts=1)
    drawn: list[tuple[int, ...]] = []
    launch = served.runner.launch

    def launched(*words):
        flight = launch(*words)
        drawn.append(flight.drawn)
        return flight

    served.runner.launch = launched
    prompts = [5, 6], list(range(3, 40))
    requests = [served.add(prompts[0], SamplingParams(20))]
    served.step()
    requests.append(served.add(prompts[1], SamplingParams(20)))
    while not served.scheduler.idle():
        served.step()
    assert (2, 0) in drawn
    plain = engine(models["llama"])
    assert [r.output for r in requests] == [plain.generate([p], SamplingParams(20))[0] for p in prompts]


class Ranks:
    """Two ranks in threads of this process, each of which waits for the other's row."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=60)
        self.rows: dict[int, list[int]] = {}

    def reduce(self, rank: int):
        def gather(row):
            self.rows[rank] = list(row)
            self.barrier.wait()
            found = [self.rows[0], self.rows[1]]
            self.barrier.wait()
            return found

        return gather


@pytest.mark.parametrize("mode", ["NONE", "FULL", "FULL_DECODE_ONLY"])
def test_data_parallel_ranks_run_alike_and_give_their_own_tokens(mode, models, simulated):
    """The second rank has less to do, and steps along with nothing."""
    ranks, ran, got = Ranks(), ([], []), [[], []]
    traces = Trace(1), Trace(2, count=3)
    served: dict[int, Engine] = {}

    def serve(rank: int) -> None:
        served[rank] = engine(models["llama"], 20, simulated, cudagraph_mode=mode, reduce=ranks.reduce(rank))
        runner, mine = served[rank].runner, traces[rank].requests
        prepare = runner.prepare_inputs

        def prepared(works):
            decision, batch = prepare(works)
            ran[rank].append((decision.mode, decision.descriptor.num_tokens if decision.mode else 0))
            return decision, batch

        runner.prepare_inputs = prepared
        requests = []
        for step in range(60):
            requests += [served[rank].add(p, SamplingParams(n)) for begin, p, n, _ in mine if begin == step]
            served[rank].step()
        assert served[rank].scheduler.idle()
        got[rank] = [request.output for request in requests]

    threads = [threading.Thread(target=serve, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ran[0] == ran[1]
    assert len(ran[0]) == 60
    assert got == [trace.run(engine(models["llama"], 20)) for trace in traces]
    if mode != "NONE":
        assert any(found[0] is FULL for found in ran[0])


def test_a_runner_that_is_warm_compiles_nothing_more(models):
    served, kinds = engine(models["llama"], split="graph"), []
    for run in (served.runner.warm_up, lambda: Trace(3).run(served)):
        with trace_module.collect() as events:
            run()
        kinds.append([kind for kind, _ in events if kind in ("compiled", "recompile", "capture")])
    assert kinds[0]
    assert not kinds[1]


def test_none_records_nothing_and_pads_nothing(models, simulated):
    served = engine(models["llama"], graphs=simulated, cudagraph_mode="NONE")
    Trace(0).run(served)
    assert served.runner.graphs == {}
    assert served.runner.counts["tokens"] == served.runner.counts["tokens_padded"]
    assert served.runner.counts["steps_full"] == 0


def work(served: Engine, *tokens: int) -> list[Work]:
    """One request of each number of tokens, all of it new."""
    made = [served.add(list(range(3, 3 + n)), SamplingParams(4)) for n in tokens]
    works = served.scheduler.schedule()
    assert [w.request for w in works] == made
    return works


def test_recordings_are_made_largest_first_and_kept_by_requests_and_tokens(models, simulated):
    made: list[int] = []
    served = engine(models["llama"], graphs=simulated, cudagraph_mode="NONE")
    runner = served.runner
    runner.options = type(runner.options)(FULL_ONLY := CUDAGraphMode.FULL_DECODE_ONLY, (1, 2, 6), drafts=1)
    runner.dispatcher = runner._dispatcher()
    capture = runner._capture
    runner._capture = lambda mode, key: made.append(key.num_tokens) or capture(mode, key)
    seconds, sizes = runner.capture_cudagraph()
    assert FULL_ONLY.decode_mode() is FULL
    assert made == [12, 4, 2]
    assert sizes == [1, 2, 6]
    assert set(runner.graphs) == {(6, 2), (2, 2), (1, 2)}
    assert seconds > 0
    assert runner.recordings.held() > 0


def test_a_step_is_padded_to_its_recording_by_requests_without_tokens(models, simulated):
    served = engine(models["llama"], graphs=simulated, cudagraph_mode="FULL_DECODE_ONLY")
    decision, batch = served.runner.prepare_inputs(work(served, 1, 1, 1))
    assert decision.descriptor == BatchDescriptor(4, 4, 1)
    assert batch.metadata.cu_seqlens_q.tolist() == [0, 1, 2, 3, 3]
    assert batch.metadata.seq_lens.tolist() == [1, 1, 1, 0]
    assert batch.metadata.slot_mapping.tolist()[3] == -1
    assert batch.input_ids.tolist() == [3, 3, 3, 0]
    assert batch.metadata.num_actual_tokens == 3


def test_prompts_and_batches_beyond_the_largest_recording_run_without_padding(models, simulated):
    served = engine(models["llama"], graphs=simulated, cudagraph_mode="FULL_DECODE_ONLY", sizes=(1, 2))
    decision, batch = served.runner.prepare_inputs(work(served, 5))
    assert (decision.mode, batch.input_ids.shape[0]) == (NONE, 5)
    served = engine(models["llama"], graphs=simulated, cudagraph_mode="FULL_DECODE_ONLY", sizes=(1, 2))
    decision, batch = served.runner.prepare_inputs(work(served, 1, 1, 1))
    assert (decision.mode, batch.input_ids.shape[0]) == (NONE, 3)


def test_an_empty_step_is_nothing(models):
    assert engine(models["llama"]).runner.execute([]) == []


def test_a_size_that_cannot_be_recorded_takes_the_next_larger_one(models, simulated, unrecordable):
    unrecordable(2)
    served = engine(models["llama"], graphs=simulated, cudagraph_mode="FULL_DECODE_ONLY")
    decision, _ = served.runner.prepare_inputs(work(served, 1, 1))
    assert decision.descriptor.num_reqs == 4
    assert served.runner.stats()["not_recorded"] == {
        (FULL, BatchDescriptor(2, 2, 1)): "no memory for this one"
    }


def test_a_new_cache_lets_go_of_recordings_that_hold_the_old_ones_addresses(models, simulated):
    served = engine(models["llama"], graphs=simulated, cudagraph_mode="FULL_DECODE_ONLY")
    served.runner.allocate_cache(50)
    assert served.runner.graphs == {}
    served.runner.capture_cudagraph()
    trace = Trace(1)
    assert trace.run(Engine(served.runner)) == trace.run(engine(models["llama"]))


def test_the_cache_gets_what_memory_is_left(models):
    runner = engine(models["llama"]).runner
    block = 4 * 2 * 2 * 2 * 8 * 4  # tokens, layers, keys and values, heads, numbers, bytes
    assert runner.allocate_cache(memory=10 * block + 5) == 10
    assert runner.allocate_cache(memory=1 << 40) == 6 * 64 // 4, (
        "more than all requests can have is of no use"
    )
    assert runner.profile_memory(capacity=1 << 20) <= 0.9 * (1 << 20)
    with pytest.raises(UserError) as error:
        runner.allocate_cache(memory=block - 1)
    assert error.value.code == "BZ7409"


def test_pieces_that_are_not_there_are_told(models, simulated):
    with pytest.raises(UserError) as error:
        engine(models["llama"], graphs=simulated, cudagraph_mode="PIECEWISE")
    assert error.value.code == "BZ7408"


def test_a_dummy_run_writes_no_slot(models):
    served = engine(models["llama"])
    served.runner.dummy_run(7, 3)
    assert not any(cache.key.any() or cache.value.any() for cache in served.runner.caches.values())


def test_tokens_outside_the_vocabulary_are_refused(models):
    with pytest.raises(UserError, match="token 97") as error:
        engine(models["llama"]).add([4, 97])
    assert error.value.code == "BZ7406"


def test_a_seed_gives_the_same_tokens_again(models):
    params = SamplingParams(8, temperature=1.0, seed=5)
    served = engine(models["llama"])
    first = served.generate([[4, 5], [9]], params)
    assert served.generate([[4, 5], [9]], params) == first
    assert served.generate([[4, 5], [9]], SamplingParams(8, temperature=1.0, seed=6)) != first


def test_limits_of_the_tests_are_met():
    """The traces above are about chunks, preemption and padding: the limits are small enough for them."""
    bounds = limits()
    assert bounds.max_num_batched_tokens < 2 * 25
    assert 20 * bounds.block_size < 7 * 37


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (dict(bounds=limits(max_num_batched_tokens=0)), "max_num_batched_tokens=0"),
        (dict(bounds=limits(block_size=True)), "block_size=True"),
        (dict(bounds=limits(max_model_len=10_000)), "the model has 256 positions"),
        (dict(drafts=-1), "drafts=-1"),
        (dict(sizes=(1, 0)), "sizes=(1, 0)"),
        (dict(memory_share=0), "memory_share=0"),
    ],
)
def test_an_engine_refuses_limits_that_mean_nothing(words, told):
    with pytest.raises(UserError) as error:
        engine(tiny(), **words)
    assert error.value.code == "BZ7411"
    assert told in str(error.value)
