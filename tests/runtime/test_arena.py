"""Arenas: kept between calls, never shared by two."""

from __future__ import annotations

import threading

import pytest
import torch

from braze.runtime.memory import arena as arenas
from braze.runtime.memory.arena import ArenaPool, StreamPools


def test_arena_is_used_again() -> None:
    """The next call gets the same memory."""
    pool = ArenaPool()
    first = pool.take(1000)
    pool.give(first)
    assert pool.take(500) is first


def test_second_taker_gets_its_own() -> None:
    """Two calls at once never share memory."""
    pool = ArenaPool()
    assert pool.take(100) is not pool.take(100)


def test_larger_request_grows() -> None:
    """A graph that needs more gets more, and the smaller arena goes."""
    pool = ArenaPool()
    small = pool.take(64)
    pool.give(small)
    large = pool.take(100_000)
    assert large.bytes >= 100_000
    pool.give(large)
    assert pool.take(64) is large


def test_larger_of_two_is_kept() -> None:
    """When two come back the pool keeps one, the larger."""
    pool = ArenaPool()
    small, large = pool.take(64), pool.take(6400)
    pool.give(small)
    pool.give(large)
    assert pool.take(1) is large
    assert pool.take(1) is not small


def test_nothing_is_kept_where_that_is_off() -> None:
    """Option arena=False: each call allocates."""
    pool = ArenaPool(keep=False)
    arena = pool.take(64)
    pool.give(arena)
    assert pool.take(64) is not arena


def test_typed_views_start_at_the_base() -> None:
    """Element 0 of every typed view lies at the base, which is 64-byte aligned."""
    arena = ArenaPool().take(1000)
    assert arena.base % 64 == 0
    for dtype in (torch.float32, torch.float64, torch.bool, torch.bfloat16):
        view = arena.typed(dtype)
        assert view.data_ptr() == arena.base
        assert view.numel() * view.element_size() >= 1000
        assert arena.typed(dtype) is view


def test_each_stream_of_a_gpu_has_an_arena_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given back goes to the stream that it was taken for, whichever is current then."""
    asked: list[int] = []
    now = 7

    def current_stream(index: int) -> int:
        asked.append(index)
        return now

    monkeypatch.setattr(arenas, "current_stream", current_stream)
    pools = StreamPools("cuda:3")
    monkeypatch.setattr(arenas, "ArenaPool", lambda device: ArenaPool())
    first = pools.take(64)
    now = 8
    other = pools.take(64)
    assert other is not first
    pools.give(first)
    assert pools.take(64) is not first
    now = 7
    assert pools.take(64) is first
    assert asked == [3] * 4


def test_many_threads() -> None:
    """Each thread finds its own pattern in its arena while it holds it."""
    pool = ArenaPool()
    wrong: list[int] = []

    def work(mark: int) -> None:
        for _ in range(200):
            arena = pool.take(4096)
            view = arena.typed(torch.int32)
            view.fill_(mark)
            if not bool((view == mark).all()):
                wrong.append(mark)
            pool.give(arena)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_arena_made_in_inference_mode_serves_outside() -> None:
    """The first call may come under inference_mode, the next under no_grad: out= must work in both."""
    x = torch.randn(2, 4, 4)
    with torch.inference_mode():
        arena = ArenaPool().take(256)
        view = torch.as_strided(arena.typed(torch.float32), (2, 4, 4), (16, 4, 1), 0)
        torch.bmm(x, x, out=view)
    with torch.no_grad():
        torch.bmm(x, x, out=view)
    assert torch.equal(view, torch.bmm(x, x))
