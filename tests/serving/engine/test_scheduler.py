"""Continuous batching over any trace of requests: everyone gets its own tokens, limits hold, and no block is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.serving.engine.drafter import NgramDrafter, accepted
from braze.serving.engine.kv_cache import BlockPool, blocks_for
from braze.serving.engine.requests import Ended, Request, Work
from braze.serving.engine.sampling import SamplingParams
from braze.serving.engine.scheduler import Limits, Scheduler
from braze.support.errors import InternalError, UserError

EOS = 7


def following(tokens: list[int]) -> int:
    """A language model that needs all earlier tokens, and repeats itself enough for a drafter to be right at times."""
    return (sum(tokens[-3:]) + len(tokens) // 5) % 11


def alone(prompt: list[int], params: SamplingParams, limit: int) -> list[int]:
    """What a request gets that is the only one."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < params.max_tokens and len(tokens) < limit:
        tokens.append(following(tokens))
        if tokens[-1] in params.stop or (tokens[-1] == EOS and not params.ignore_eos):
            break
    return tokens[len(prompt) :]


class Cache:
    """What the cache would hold: the token that was written to each slot."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}

    def run(self, work: Work, size: int) -> list[int]:
        """Write the step's tokens, and read all tokens of the request back from its blocks."""
        blocks = work.request.blocks
        for at, token in enumerate(work.tokens, work.begin):
            self.slots[blocks[at // size] * size + at % size] = token
        seen = [
            self.slots[blocks[at // size] * size + at % size] for at in range(work.begin + len(work.tokens))
        ]
        if not work.samples:
            return []
        return [following(seen[: len(seen) - work.drafts + i]) for i in range(work.drafts + 1)]


requests = st.lists(
    st.tuples(
        st.lists(st.integers(0, 10), min_size=1, max_size=20),
        st.integers(1, 12),
        st.booleans(),
        st.integers(0, 6),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=300)
@given(
    trace=requests,
    seqs=st.integers(1, 4),
    budget=st.integers(3, 24),
    size=st.integers(1, 5),
    spare=st.integers(0, 10),
    drafts=st.integers(0, 3),
)
def test_everyone_gets_the_tokens_it_would_get_alone(trace, seqs, budget, size, spare, drafts):
    """``trace``: (prompt, tokens to make, ignore_eos, when it comes, when its client leaves if it lives so long)."""
    limits = Limits(max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=30, block_size=size)
    blocks = blocks_for(30, size) + spare
    scheduler = Scheduler(limits, blocks, (EOS,), NgramDrafter(drafts) if drafts else None)
    cache, made, killed = Cache(), [], set()
    for step in range(2000):
        for number, (prompt, count, ignore, begin, _) in enumerate(trace):
            if begin == step:
                made.append(
                    (Request(str(number), tuple(prompt), SamplingParams(count, ignore_eos=ignore)), number)
                )
                scheduler.add(made[-1][0])
        for request, number in made:
            if step == 5 + trace[number][4] and request.ended is None:
                scheduler.abort(request)
                killed.add(number)
        if scheduler.idle() and step > 6:
            break
        works = scheduler.schedule()
        assert sum(len(work.tokens) for work in works) <= budget
        assert len(scheduler.running) <= seqs
        owned = [block for request in scheduler.running for block in request.blocks]
        assert len(set(owned)) == scheduler.pool.used
        assert all(scheduler.pool.holders(block) == owned.count(block) for block in owned)
        for work in works:
            scheduler.finish(work, cache.run(work, size))
    assert scheduler.idle(), "a request was starved"
    assert scheduler.pool.free == blocks
    for request, number in made:
        prompt, count, ignore, *_ = trace[number]
        wanted = alone(prompt, SamplingParams(count, ignore_eos=ignore), 30)
        if number in killed:
            assert request.output == wanted[: request.generated]
        else:
            assert request.output == wanted
            assert request.ended in (Ended.STOP, Ended.LENGTH)


def test_a_long_prompt_runs_in_chunks_beside_decoding():
    scheduler = Scheduler(Limits(max_num_batched_tokens=8, block_size=4), 100)
    short, long = (Request(str(n), tuple(range(n)), SamplingParams(4)) for n in (3, 20))
    for request in (short, long):
        scheduler.add(request)
    sizes = []
    for _ in range(3):
        works = scheduler.schedule()
        sizes.append([(len(w.tokens), w.samples) for w in works])
        for work in works:
            scheduler.finish(work, [1] if work.samples else [])
    assert sizes == [[(3, True), (5, False)], [(1, True), (7, False)], [(1, True), (7, False)]]


def test_the_youngest_gives_way_and_is_computed_again():
    scheduler = Scheduler(Limits(block_size=2, max_model_len=16), 8)
    old, young = (
        Request(name, (1, 2, 3, 4), SamplingParams(9, ignore_eos=True)) for name in ("old", "young")
    )
    scheduler.add(old)
    scheduler.add(young)
    while not scheduler.idle():
        for work in scheduler.schedule():
            scheduler.finish(work, [5] if work.samples else [])
    assert young.preemptions > 0
    assert old.preemptions == 0
    assert old.generated == young.generated == 9
    assert scheduler.pool.free == 8


@pytest.mark.parametrize(
    ("prompt", "limits", "word"),
    [
        ((), Limits(), "empty"),
        (range(16), Limits(max_model_len=16), "prompt has 16 tokens"),
        (range(16), Limits(block_size=1), "blocks"),
        (range(9), Limits(chunked=False, max_num_batched_tokens=8), "a step takes 8"),
    ],
)
def test_who_could_never_run_is_refused_at_once(prompt, limits, word):
    with pytest.raises(UserError, match=word) as error:
        Scheduler(limits, 20).add(Request("r", tuple(prompt), SamplingParams(8)))
    assert error.value.code == "BZ7406"


def test_more_than_may_wait_are_refused():
    scheduler = Scheduler(Limits(max_waiting=1), 20)
    scheduler.add(Request("a", (1,), SamplingParams()))
    with pytest.raises(UserError) as error:
        scheduler.add(Request("b", (1,), SamplingParams()))
    assert error.value.code == "BZ7407"


@given(st.lists(st.integers(1, 4), max_size=30))
def test_a_pool_never_gives_a_block_twice(counts):
    pool, held = BlockPool(10), []
    for count in counts:
        blocks = pool.take(count)
        if blocks is None:
            assert count > pool.free
            if held:
                pool.give_back(held.pop())
        else:
            held.append(blocks)
        owned = [b for blocks in held for b in blocks]
        assert len(set(owned)) == len(owned) == pool.used
    for blocks in held:
        pool.give_back(blocks)
    assert pool.free == 10


def test_giving_back_twice_is_told():
    pool = BlockPool(4)
    blocks = pool.take(2)
    assert blocks is not None
    pool.give_back(blocks)
    with pytest.raises(InternalError) as error:
        pool.give_back(blocks)
    assert error.value.code == "BZ9111"


def test_a_guess_is_what_followed_the_longest_ending_before():
    drafter = NgramDrafter(3)
    assert drafter.propose([1, 2, 3, 9, 4, 2, 3, 5, 1, 2, 3]) == (9, 4, 2)
    assert drafter.propose([5, 6]) == (6, 6, 6)
    assert drafter.propose([4]) == (4, 4, 4)


def test_guesses_count_while_they_are_right():
    assert accepted([5, 6, 7], [5, 6]) == [5, 6, 7]
    assert accepted([5, 8, 7], [5, 6]) == [5, 8]
    assert accepted([4, 6, 7], [5, 6]) == [4]
    assert accepted([4], []) == [4]
