"""What recordings of one stream need only until they end lies in memory that all of them share, and nothing that lives on does."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn

import braze
from braze.codegen.host.lives import Lives
from braze.cudagraphs import recording as module
from braze.cudagraphs.device import record
from braze.cudagraphs.plan import Plan
from braze.cudagraphs.recorded import Limits, Recorded
from braze.cudagraphs.trees import forest_of
from tests.cudagraphs.helpers import assert_equal, filled, numbers, placed, recording, recordings

pytestmark = pytest.mark.usefixtures("simulated")

#: bytes of a block of the simulated device that holds 1000 numbers, and of such an output
BLOCK, OUTPUT = 4032, 4000


@pytest.fixture
def device(simulated):
    """The device without recordings of other tests."""
    braze.reset()
    gc.collect()
    return simulated


def chain(x):
    """Three products of numbers: what is between them is needed until the end alone."""
    return torch.cumsum(torch.cumsum(torch.cumsum(x, 0), 0), 0)


def memory(device):
    """Where the recordings of the current stream put what they need meanwhile."""
    return device.new_pool(shared=True).shared


def test_a_second_slot_takes_its_outputs_alone(device):
    before, f = forest_of(device).held(), recording(chain)
    inputs = [filled(float(k), 1000) for k in range(4)]
    with recordings() as made:
        kept = [f(x) for x in inputs[:2]]
        one = forest_of(device).held() - before
        kept += [f(x) for x in inputs[2:]]
        assert made() == 3
    shared = memory(device).held()
    assert one - shared <= 2 * OUTPUT and shared <= 3 * BLOCK, (one, shared)
    assert forest_of(device).held() - before <= one + 2 * BLOCK
    assert_equal(kept, [chain(x) for x in inputs])


def test_a_second_slot_is_not_rehearsed_again_but_what_lies_elsewhere_or_another_thread_records_is(
    device, monkeypatch
):
    rehearsals, w = [], torch.nn.Parameter(numbers(4, 4), requires_grad=False)
    rehearse = module._rehearse
    monkeypatch.setattr(module, "_rehearse", lambda *args: rehearsals.append(1) or rehearse(*args))
    f, inputs = recording(lambda x: chain(x @ w)), [numbers(4, 4) for _ in range(9)]
    with recordings() as made:
        kept = [f(x) for x in inputs[:4]]
        assert (made(), len(rehearsals)) == (3, 1)
        w.data = numbers(4, 4)
        kept = [f(inputs[4])]
        assert (made(), len(rehearsals)) == (4, 2)
        with torch.no_grad():
            thread = threading.Thread(target=lambda: kept.append(f(inputs[5])))
            thread.start()
            thread.join()
        assert (made(), len(rehearsals)) == (5, 3)
    assert_equal(kept, [chain(x @ w) for x in inputs[4:6]])


def test_sizes_and_graphs_lie_over_one_another(device):
    other = lambda x: torch.cumsum(torch.cumsum(x, 0) * 2, 0)
    f, g = (
        braze.compile(h, dynamic=True, options={"cudagraphs": True, "cudagraph_launches": 1})
        for h in (chain, other)
    )
    for rows in (1000, 900, 800):
        for h in (f, g):
            h(filled(1.0, rows))
            h(filled(1.0, rows))
    assert memory(device).held() <= 3 * BLOCK
    for rows in (1000, 900, 800):
        x = numbers(rows)
        assert_equal((f(x), g(x)), (chain(x), other(x)))


def test_outputs_that_are_kept_outlive_replays_of_every_other_recording(device):
    fns = [chain, lambda x: torch.cumsum(x, 0).sin(), lambda x: (torch.sort(x)[0], torch.cumsum(x, 0))]
    compiled = [recording(f) for f in fns]
    kept, wanted = [], []
    for _ in range(12):
        x = numbers(50)
        for f, g in zip(compiled, fns, strict=True):
            kept.append(f(x))
            wanted.append(g(x))
        if len(kept) > 9:
            del kept[:4], wanted[:4]
        assert_equal(kept, wanted)


def test_an_output_that_sees_memory_of_an_intermediate_value_lies_where_no_other_recording_writes(device):
    def views(x):
        y = torch.cumsum(x, 0)
        return y[1:3], y.view(2, -1)[0], torch.cumsum(y, 0)

    f, g = recording(views), recording(chain)
    for _ in range(5):
        x = numbers(8)
        ours = f(x)
        g(x)
        assert_equal(ours, views(x))


def test_what_a_call_keeps_of_its_own_is_recorded_without_shared_memory(device):
    kept: list[torch.Tensor] = []

    def call(inputs):
        y = torch.cumsum(inputs[0], 0)
        kept[:] = [y]
        return (y * 2,)

    known = Recorded(call, Plan("f", device.name, (0,)), device, Limits())
    other = recording(chain)
    with recordings() as made:
        for _ in range(5):
            x = numbers(50)
            (y,) = known([x])
            other(x)
            assert_equal((y, kept[0]), (torch.cumsum(x, 0) * 2, torch.cumsum(x, 0)))
            del y  # held, it would have the call recorded into a second slot
        assert made() == 2


def test_what_lives_on_is_seen_where_the_host_module_knows_nothing_of_it(device, monkeypatch):
    monkeypatch.setattr(Lives, "leaving", lambda self: frozenset())
    f, g = recording(chain), recording(lambda x: torch.cumsum(x, 0) + 1)
    x = numbers(50)
    kept = [h(x) for _ in range(3) for h in (f, g)]
    assert_equal(kept, [chain(x), torch.cumsum(x, 0) + 1] * 3)


def test_memory_that_is_shared_is_overwritten_by_each_replay(device):
    x, pool = torch.ones(8), device.new_pool(shared=True)
    graph, y = record(device, pool, lambda: device.empty_result((8,), (1,), dtype=torch.float32).copy_(x * 2))
    assert not graph.stays and graph.apart == {y.data_ptr()} and pool.held() == 0
    for value in (1.0, 3.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(y, x * 2)
    ((storage, _),) = pool.shared.blocks
    assert set(storage.tolist()) == {255}


def test_results_of_operators_lie_in_the_pool_itself(device):
    x, pool = torch.ones(8), device.new_pool(shared=True)

    def run():
        between = x * 2
        with device.results:
            return torch.cumsum(between, 0)

    graph, y = record(device, pool, run)
    assert not graph.stays and not graph.apart and pool.held() == 64
    graph.replay()
    assert torch.equal(y, torch.cumsum(x * 2, 0))


def test_streams_share_nothing(device):
    x = torch.ones(8)
    pools = []
    for stream in (0, 1, 0):
        with device.on(stream):
            pools.append(device.new_pool(shared=True))
            record(device, pools[-1], lambda: (x * 2).sum().mul_(1))
    assert pools[0].shared is pools[2].shared is not pools[1].shared
    places = [{at for at, _, _ in pool.shared.memory()} for pool in pools[:2]]
    assert places[0] and places[1] and places[0].isdisjoint(places[1])


def test_calls_on_two_streams_are_recorded_for_each(device):
    f = recording(chain)
    with recordings() as made:
        for _ in range(4):
            for stream in (0, 1):
                with device.on(stream):
                    x = numbers(20)
                    assert_equal(f(x), chain(x))
        assert made() == 2


def test_shared_memory_goes_with_the_last_recording(device):
    before = forest_of(device).held()
    f, g = recording(chain), recording(lambda x: torch.cumsum(torch.cumsum(x, 0), 0))
    for h in (f, g):
        h(numbers(1000))
        h(numbers(1000))
    assert memory(device).held()
    del f, g, h
    braze.reset()
    gc.collect()
    assert forest_of(device).held() <= before
    assert not memory(device).held()


def test_gradients_that_are_held_let_the_next_forward_replay(device):
    torch.manual_seed(0)
    model = placed(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
    f, inputs = recording(model), [numbers(4, 8) for _ in range(6)]
    with torch.enable_grad(), recordings() as made:
        for (
            x
        ) in inputs:  # as most training loops have it: gradients of the step before live until the backward
            loss = f(x).square().mean()
            model.zero_grad()
            loss.backward()
        assert made() == 2, "one forward and one backward"


def test_saved_tensors_live_until_their_backward(device):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(numbers(6, 6))
    net = lambda x: torch.sigmoid(torch.tanh(x @ weight) @ weight.t())
    f, other = recording(net), recording(chain)
    with torch.enable_grad():
        for count in (1, 2, 3, 2, 1):
            inputs = [numbers(3, 6) for _ in range(count)]
            ours = [f(x).sum() for x in inputs]
            other(numbers(50))
            theirs = [net(x).sum() for x in inputs]
            for mine, their in zip(ours, theirs, strict=True):
                found = [torch.autograd.grad(loss, weight)[0] for loss in (mine, their)]
                other(numbers(50))
                assert_equal(*found)
