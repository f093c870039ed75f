"""From where recordings on a GPU take memory, beside allocators that refuse what PyTorch's refuse."""

from __future__ import annotations

import gc

import pytest
import torch

from braze.cudagraphs import allocator as room
from braze.cudagraphs.cuda import CudaGraphs
from braze.cudagraphs.device import UNKNOWN, Asked, NotRecordable, record
from tests.cudagraphs.torch_allocator import Allocator, Stream


@pytest.fixture
def memory(monkeypatch):
    made = Allocator()
    made.stand_in(monkeypatch)
    monkeypatch.setattr(room, "_others_compute", lambda: False)
    return made


@pytest.fixture
def device(memory):
    return CudaGraphs("cuda:0")


def settled(memory):
    """Nobody takes memory from a pool, but those that wait for ever."""
    return not memory.memory.underway and memory.memory.current() == (0, 0)


def run(device, memory, pool, inside=lambda: None, asked=UNKNOWN):
    """Record a call; where it takes memory for an intermediate value, for what an operator returns, for a result, and after."""
    found = []

    def call():
        found.append(memory.memory.current())
        with device.results:
            found.append(memory.memory.current())
        made = device.empty_result((2,), (1,), dtype=torch.float32, device="cuda:0")
        found.append(memory.memory.current())
        inside()
        return made

    graph, made = record(device, pool, call, asked)
    return graph, made, found


def test_each_kind_of_memory_comes_from_where_it_should(device, memory):
    pool = device.new_pool(shared=True)
    for _ in range(3):
        graph, made, found = run(device, memory, pool)
        assert found == [pool.shared.handle, pool.handle, pool.shared.handle]
        assert memory.taken[-1] == ((0, 0), 0), "a result is the program's, on the caller's stream"
        assert graph.apart == {made.data_ptr()} and not graph.stays
        assert settled(memory)
    assert memory.cleared


def test_recordings_without_shared_memory_take_all_from_their_pool(device, memory):
    for shared, asked in ((False, UNKNOWN), (True, Asked(shared=False))):
        pool = device.new_pool(shared=shared)
        graph, _, found = run(device, memory, pool, asked=asked)
        assert found == [pool.handle] * 3 and memory.taken[-1] == (pool.handle, 100)
        assert not graph.apart and settled(memory)


def test_what_lives_on_in_shared_memory_is_told(device, memory):
    pool = device.new_pool(shared=True)
    before = pool.shared.handle
    graph, *_ = run(device, memory, pool, lambda: memory.held.update({before: 1}))
    assert graph.stays
    graph, *_ = run(device, memory, pool)
    assert not graph.stays, "it lived before"


def test_a_pool_outlives_its_recordings(device, memory):
    pool = device.new_pool(shared=True)
    for _ in range(3):
        run(device, memory, pool)
        run(device, memory, pool, asked=Asked(shared=False))
        gc.collect()
    handles = pool.handle, pool.shared.handle
    assert all(pools.uses[handle] == 1 for pools in (memory.memory, memory.pinned) for handle in handles)
    del pool
    gc.collect()
    assert all(pools.uses[handle] == 0 for pools in (memory.memory, memory.pinned) for handle in handles)


def test_into_a_pool_in_which_a_recording_failed_nothing_more_is_recorded(device, memory):
    pool = device.new_pool(shared=True)
    first, *_ = run(device, memory, pool)
    with pytest.raises(NotRecordable, match="previous error"):
        run(device, memory, pool, lambda: setattr(memory, "failing", True))
    assert settled(memory)
    graph, _, found = run(device, memory, pool)
    assert found[0] == pool.handle, "what is there already goes on, beside the pool that is broken"
    other = device.new_pool(shared=True)
    assert other.shared is not pool.shared
    for _ in range(2):
        assert run(device, memory, other)[2][0] == other.shared.handle
    assert settled(memory) and first.pool is graph.pool


def test_an_error_of_the_programs_leaves_the_pools_as_they_were(device, memory):
    pool = device.new_pool(shared=True)

    def raises():
        with device.results:
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run(device, memory, pool, raises)
        assert settled(memory) and not pool.shared.broken
    assert run(device, memory, pool)[2][0] == pool.shared.handle


@pytest.fixture
def pieces(memory, monkeypatch):
    """Megabytes of the pieces that are taken for what recordings need at once."""
    found, take = [], room._take

    def taken(size, device):
        found.append(size >> 20)
        handle = memory.memory.current()
        memory.pieces[handle] = memory.pieces.get(handle, 0) + size
        take(0, device)

    monkeypatch.setattr(room, "_take", taken)
    return found


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        (Asked(), [32]),  # cuBLAS's workspace on Hopper, and nothing beside it
        (Asked(values=4 << 20), [32 + 4 + 1 + 2]),
        (Asked(values=40 << 20), [32]),  # pieces of the allocator's are as good
        (Asked(products=False, values=4 << 20), [4 + 1 + 2]),
        (Asked(products=False), []),
    ],
)
def test_a_recordings_piece_is_as_large_as_what_it_is_known_to_need(device, memory, pieces, asked, first):
    pool = device.new_pool(shared=True)
    for _ in range(3):
        run(device, memory, pool, asked=asked)
        assert pieces == first, "what there is serves the next ones"


def test_a_recording_that_needs_more_takes_what_is_missing(device, memory, pieces):
    pool = device.new_pool(shared=True)
    for values, products in ((4, False), (2, False), (8, False), (0, True), (8, True), (0, True)):
        run(device, memory, pool, asked=Asked(products=products, values=values << 20))
    assert pieces == [7, 12 - 7, 32]
    assert pool.shared.held() == 12 << 20, "workspaces are nobody's"


def test_what_pytorch_needs_for_generators_is_the_callers_memory(device, memory):
    with memory.on(Stream(7)):
        device.new_pool(shared=True)
    assert set(memory.registered) == {7}


def test_each_stream_of_the_callers_has_a_stream_and_memory_of_its_own(device, memory):
    pools, sides = [], []
    for number in (0, 7, 0, 8):
        with memory.on(Stream(number)):
            pools.append(device.new_pool(shared=True))
            run(device, memory, pools[-1], lambda: sides.append(memory.stream.cuda_stream))
    assert pools[0].shared is pools[2].shared
    assert len({pool.shared.handle for pool in pools}) == len(set(sides)) == 3 and sides[0] == sides[2]


def test_workspaces_are_let_go_of_only_where_nobody_else_may_have_one(device, memory, monkeypatch):
    pool = device.new_pool(shared=True)
    run(device, memory, pool)
    cleared = memory.cleared
    with memory.on(Stream(7)):
        run(device, memory, device.new_pool(shared=True))
    assert memory.cleared == cleared, "a stream that can be recorded"
    monkeypatch.setattr(room, "_others_compute", lambda: True)
    run(device, memory, pool)
    assert memory.cleared == cleared, "another thread may be in a product"
    handle = pool.shared.handle
    del pool
    gc.collect()
    assert device.new_pool(shared=True).shared.handle == handle, "workspaces lie there"
    monkeypatch.setattr(room, "_others_compute", lambda: False)
    run(device, memory, device.new_pool(shared=True))
    assert memory.cleared > cleared
    gc.collect()
    assert device.new_pool(shared=True).shared.handle != handle, "and now there are none"
