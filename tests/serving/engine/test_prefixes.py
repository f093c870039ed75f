"""Requests that begin alike share blocks: nobody writes what others read, what is found is what was written, and nothing is lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.serving.engine.drafter import NgramDrafter
from braze.serving.engine.kv_cache import BlockPool, Prefixes, blocks_for
from braze.serving.engine.requests import Request
from braze.serving.engine.sampling import SamplingParams
from braze.serving.engine.scheduler import Limits, Scheduler
from tests.serving.cases import share
from tests.serving.engine.tiny import engine, limits, tiny


class Written:
    """A cache whose slots remember all tokens up to the one that was written there, as keys and values do."""

    def __init__(self, blocks: int, size: int) -> None:
        self.slots: list[tuple[int, ...] | None] = [None] * (blocks * size)
        self.size = size

    def run(self, scheduler: Scheduler, work) -> list[int]:
        request = work.request
        whole = [*request.tokens[: work.begin], *work.tokens]
        place = [request.blocks[i // self.size] * self.size + i % self.size for i in range(len(whole))]
        for i in range(work.begin):
            assert self.slots[place[i]] == tuple(whole[: i + 1]), "the cache holds something else"
        for i in range(work.begin, len(whole)):
            block = request.blocks[i // self.size]
            assert scheduler.pool.holders(block) == 1, "others read this block"
            assert i < len(request.tokens) - 1 or block not in scheduler.pool._keys, (
                "others may find this block"
            )
            self.slots[place[i]] = tuple(whole[: i + 1])
        return [(sum(whole) + i) % 3 for i in range(work.drafts + 1)] if work.samples else []


#: (which of few beginnings, how much of it, what follows, tokens to make, when it comes, when its client leaves)
traces = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 16), st.lists(st.integers(0, 2), max_size=4),
        st.integers(1, 8), st.integers(0, 12), st.integers(0, 40),
    ),
    min_size=1, max_size=10,
)  # fmt: skip


@settings(max_examples=share(2), deadline=None)
@given(
    trace=traces,
    seqs=st.integers(1, 4),
    budget=st.integers(3, 24),
    size=st.integers(1, 5),
    spare=st.integers(0, 12),
    drafts=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_what_a_request_finds_is_its_own_beginning(trace, seqs, budget, size, spare, drafts, seed):
    numbers = random.Random(seed)
    beginnings = [[numbers.randrange(3) for _ in range(16)] for _ in range(3)]
    limits = Limits(max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=30, block_size=size)
    blocks = blocks_for(30, size) + spare
    scheduler = Scheduler(limits, blocks, (), NgramDrafter(drafts) if drafts else None)
    cache, made = Written(blocks, size), []
    for step in range(2000):
        for which, many, rest, count, begin, leaves in trace:
            if begin == step:
                prompt = (*beginnings[which][:many], *rest) or (1,)
                made.append((Request(str(step), prompt, SamplingParams(count)), begin + leaves))
                scheduler.add(made[-1][0])
        for request, end in made:
            if step == end:
                scheduler.abort(request)
        if scheduler.idle() and step > 12:
            break
        for work in scheduler.schedule():
            assert work.tokens, "a step must compute something"
            scheduler.finish(work, cache.run(scheduler, work))
        owned = [block for request in scheduler.running for block in request.blocks]
        pool = scheduler.pool
        assert pool.used == len(set(owned))
        assert all(pool.holders(block) == owned.count(block) for block in range(blocks))
        assert sorted(pool._known.values()) == sorted(pool._keys)
    assert scheduler.idle(), "a request was starved"
    assert scheduler.pool.free == blocks
    assert not any(request.blocks for request, _ in made)


@settings(max_examples=share(1), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 3)), max_size=40))
def test_a_pool_is_what_its_holders_hold(moves):
    """``moves``: take beside what is found, give back, or make known."""
    pool, held = BlockPool(8), []
    keys = [bytes([i]) for i in range(6)]
    for count, which, move in moves:
        if move == 0 and held:
            pool.give_back(held.pop(which % len(held)))
        elif move == 1 and held and held[-1]:
            pool.know(held[-1][which % len(held[-1])], keys[which])
        else:
            found = pool.find(keys[which:])
            before = pool.free, pool.known
            taken = pool.take(count, found)
            if taken is None:
                assert (pool.free, pool.known) == before
            else:
                assert taken[: len(found)] == found
                held.append(taken)
        owned = [block for blocks in held for block in blocks]
        assert pool.used == len(set(owned))
        assert all(pool.holders(b) == owned.count(b) for b in range(8))
        assert pool.find(keys[:1]) in ([], [pool._known.get(keys[0])])
    for blocks in held:
        pool.give_back(blocks)
    assert pool.free == 8


def test_the_end_of_what_has_been_free_for_longest_is_forgotten_first():
    pool = BlockPool(4)
    blocks = pool.take(3)
    assert blocks is not None
    for block, key in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.know(block, key)
    pool.give_back(blocks)
    assert pool.take(1) == [3]  # nobody could find it
    assert pool.take(1) == [blocks[2]]
    assert pool.find((b"a", b"b", b"c")) == blocks[:2]
    assert pool.take(2, blocks[:2]) is None
    assert pool.free == 2


def test_the_last_token_is_always_computed_and_keys_stand_for_all_before():
    scheduler = Scheduler(Limits(block_size=4, max_num_batched_tokens=64), 20)
    begins = []
    for prompt in (range(8), range(8), range(9), [9, *range(1, 8)]):
        request = Request("", tuple(prompt), SamplingParams(1))
        scheduler.add(request)
        (work,) = scheduler.schedule()
        begins.append(work.begin)
        scheduler.finish(work, [0])
    assert begins == [0, 4, 8, 0]
    assert scheduler.shared == 12
    keys = Prefixes(2)
    one, other = (Request("", t, SamplingParams()) for t in ((1, 2, 3, 4, 5), (7, 2, 3, 4, 5)))
    assert len({*keys.keys(one, 2), *keys.keys(other, 2)}) == 4
    assert keys.keys(one, 0) == []


def test_sharing_can_be_turned_off():
    scheduler = Scheduler(Limits(block_size=1, share_prefixes=False), 20)
    for _ in range(2):
        scheduler.add(Request("", (1, 2, 3), SamplingParams(1)))
        (work,) = scheduler.schedule()
        assert work.begin == 0
        scheduler.finish(work, [0])
    assert scheduler.pool.known == 0


@pytest.mark.parametrize("name", ["qwen3", "deepseek"])
@pytest.mark.parametrize("options", [{}, {"drafts": 2}, {"overlap": True}])
def test_tokens_are_those_without_sharing(name, options):
    model = tiny(name)
    numbers = random.Random(5)
    begins = [[numbers.randint(3, 96) for _ in range(18)] for _ in range(2)]
    prompts = [[*begins[i % 2][: numbers.randint(3, 18)], numbers.randint(3, 96)] for i in range(10)]
    given_ = [SamplingParams(numbers.randint(1, 9), ignore_eos=True) for _ in prompts]
    plain = engine(model, bounds=limits(share_prefixes=False), blocks=40)
    shared = engine(model, blocks=22, **options)
    wanted = plain.generate(prompts, given_)
    assert shared.generate(prompts, given_) == wanted
    assert shared.generate(prompts[::-1], given_[::-1]) == wanted[::-1]
    assert shared.scheduler.shared > 0 == plain.scheduler.shared
    assert shared.scheduler.pool.free == 22
