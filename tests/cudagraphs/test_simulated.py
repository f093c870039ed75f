"""The simulated device graph keeps to what CUDA does."""

from __future__ import annotations

import ctypes
import gc
import threading

import pytest
import torch

from braze.cudagraphs.device import NotRecordable, garbage_kept, record
from braze.cudagraphs.registry import device_of, records, register
from braze.cudagraphs.simulated import SimulatedGraphs


@pytest.fixture
def device():
    return SimulatedGraphs("cpu")


def recorded(device, run, pool=None):
    with torch.no_grad():
        return record(device, pool or device.new_pool(), run)


def test_a_replay_reads_what_the_inputs_hold_then(device):
    x = torch.ones(3)
    graph, y = recorded(device, lambda: (x * 2 + 1).relu())
    for value in (1.0, -5.0, 7.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(y, (x * 2 + 1).relu())


def test_nothing_takes_effect_while_recording(device):
    x, numbers = torch.ones(3), torch.get_rng_state()

    def run():
        x.add_(1)
        return x * torch.rand(3)

    graph, y = recorded(device, run)
    assert torch.equal(x, torch.ones(3)) and torch.equal(torch.get_rng_state(), numbers)
    assert torch.isnan(y).all(), "results have no values before the first replay"
    expected = torch.rand(3) * 2
    torch.set_rng_state(numbers)
    graph.replay()
    assert torch.equal(x, torch.full((3,), 2.0)) and torch.equal(y, expected)


def test_results_keep_their_addresses_and_their_layout(device):
    x = torch.arange(12.0).reshape(3, 4)
    graph, (a, b) = recorded(device, lambda: (x.t() + 1, (x * 2)[1:, ::2]))
    assert a.stride() == (1, 4) and b.stride() == (4, 2) and b.storage_offset() == 4
    place = a.data_ptr(), b.data_ptr()
    graph.replay()
    assert torch.equal(a, x.t() + 1) and torch.equal(b, (x * 2)[1:, ::2])
    assert (a.data_ptr(), b.data_ptr()) == place


def test_what_is_let_go_of_while_recording_is_taken_again(device):
    x, pool = torch.ones(1000), device.new_pool()

    def run():
        y = x
        for _ in range(10):
            y = y + 1
        return y

    graph, y = recorded(device, run, pool)
    assert pool.held() == 2 * 4032
    again, z = recorded(device, run, pool)
    assert pool.held() == 3 * 4032, "the second lies over what the first only needed meanwhile"
    graph.replay()
    again.replay()
    assert y[0] == z[0] == 11


@pytest.mark.parametrize("wait", [lambda x: x.sum().item(), torch.nonzero, lambda x: x[x > 0]])
def test_what_makes_the_host_wait_ends_the_recording(device, wait):
    x = torch.ones(3)
    with pytest.raises(NotRecordable, match="wait"):
        recorded(device, lambda: wait(x.add_(1)))
    assert torch.equal(x, torch.ones(3)) and not device.busy()
    assert (x + 1).sum().item() == 6


def test_a_tensor_of_the_hosts_numbers_ends_the_recording(device):
    with pytest.raises(NotRecordable, match="host"):
        recorded(device, lambda: torch.ones(3) * torch.tensor([1.0, 2.0, 3.0]))


def test_kernels_that_do_not_pass_the_dispatcher_are_recorded(device):
    x, y = torch.ones(4), torch.zeros(4)

    def kernel(tensors, address, sizes):
        tensors[1].numpy()[:] = tensors[0].numpy() + address + sizes[0]
        return 0

    launch = device.launched(kernel)
    graph, _ = recorded(device, lambda: launch((x, y), 5, (7,)))
    assert not y.any()
    x.fill_(2)
    graph.replay()
    assert torch.equal(y, torch.full((4,), 14.0))
    launch((x, y), 0, (0,))
    assert torch.equal(y, x), "outside a recording it is a call"


def test_a_kernel_that_reports_a_bad_index_does_so_when_it_is_replayed(device):
    bad = torch.zeros(1)
    launch = device.launched(lambda tensors: int(tensors[0]))
    graph, _ = recorded(device, lambda: launch((bad,)))
    graph.replay()
    bad.fill_(1)
    with pytest.raises(IndexError, match="index out of range"):
        graph.replay()


def test_memory_for_results_comes_from_the_pool_while_recording(device):
    x, pool = torch.ones(2, 3), device.new_pool()
    graph, y = recorded(
        device, lambda: device.empty_strided((3, 2), (1, 3), dtype=torch.float32).copy_(x.t()), pool
    )
    assert pool.held() == 64 and y.stride() == (1, 3)
    graph.replay()
    assert torch.equal(y, x.t())
    assert device.empty_strided((2,), (1,), dtype=torch.int64).untyped_storage().nbytes() == 16


def test_complex_numbers_and_several_results_of_one_operator(device):
    x, i = torch.randn(4, 4, dtype=torch.complex64), torch.randn(6, 4)
    graph, (a, (values, order)) = recorded(device, lambda: (x.conj() @ x, torch.sort(i, 0)))
    graph.replay()
    assert torch.allclose(a, x.conj() @ x)
    assert torch.equal(values, i.sort(0)[0]) and torch.equal(order, i.sort(0)[1])


def test_tensors_of_no_elements_of_none_dimension_and_of_stride_0(device):
    none, one, same = torch.ones(0, 3), torch.tensor(2.0), torch.ones(1).expand(5)
    graph, (a, b, c) = recorded(device, lambda: (none * 2, one * 2, same * 2))
    graph.replay()
    assert a.shape == (0, 3) and b == 4 and torch.equal(c, torch.full((5,), 2.0))


def test_one_thread_records_and_others_run_as_always(device):
    x, done = torch.ones(3), []

    def run():
        y = x + 1
        other = threading.Thread(target=lambda: done.append((device.busy(), (x + 5).sum().item())))
        other.start()
        other.join()
        return y * 2

    graph, y = recorded(device, run)
    assert done == [(False, 18.0)]
    graph.replay()
    assert torch.equal(y, torch.full((3,), 4.0))


def test_an_error_of_the_program_ends_the_recording(device):
    x = torch.ones(3)
    with pytest.raises(ZeroDivisionError):
        recorded(device, lambda: x.add_(1 // 0))
    assert not device.busy()


def test_a_kind_of_device_has_one_recorder_each():
    assert records("cuda") and not records("cpu")
    register("cpu", SimulatedGraphs)
    try:
        assert records("cpu") and device_of("cpu") is device_of("cpu")
    finally:
        register("cpu", None)
    assert not records("cpu")


def test_garbage_is_kept_and_what_the_program_froze_stays_frozen():
    was = gc.isenabled()
    for frozen in (gc.unfreeze, gc.freeze):  # the tests' process has frozen what it had loaded
        gc.collect()  # frozen garbage would live as long as the process
        frozen()
        count = gc.get_freeze_count()
        with garbage_kept():
            assert not gc.isenabled() and gc.get_freeze_count() > 0
        # some of what is frozen may have died meanwhile
        assert gc.isenabled() == was and 0.99 * count <= gc.get_freeze_count() <= count


def test_recordings_do_not_count_what_the_program_froze_each_time(simulated, monkeypatch):
    gc.collect()
    gc.freeze()  # the tests' process has
    counted, count = [], gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(count()) or counted[-1])
    pool = simulated.new_pool()
    recorded = [record(simulated, pool, lambda k=k: torch.ones(2) + k) for k in range(5)]
    assert len(recorded) == 5 and len(counted) <= 1


def test_places_looked_up_by_number_are_recorded_and_by_a_mask_are_not(simulated):
    """``table[places]`` has a size that places' size tells, ``table[mask]`` one that only data tell."""
    table, places = torch.arange(10.0), torch.tensor([1, 3])
    pool, out = simulated.new_pool(), torch.empty(2)
    graph, _ = record(simulated, pool, lambda: out.copy_(table[places]))
    places.copy_(torch.tensor([7, 2]))
    graph.replay()
    assert out.tolist() == [7, 2]
    with pytest.raises(NotRecordable):
        record(simulated, pool, lambda: table[table > 3])


def test_results_of_one_operator_lie_apart(simulated):
    """Both of ``topk``'s are of a block's size."""
    x = torch.tensor([3.0, 1.0, 2.0])
    graph, (values, places) = record(simulated, simulated.new_pool(), lambda: x.topk(2))
    graph.replay()
    assert values.tolist() == [3, 2]
    assert places.tolist() == [0, 2]


def test_results_of_one_operator_do_not_share_memory(device):
    x = torch.randn(8, 8)
    pool = device.new_pool()
    kept = torch.empty(1024), torch.empty(1024)
    record(device, pool, lambda: [t + 1 for t in kept])  # leaves free blocks larger than what is wanted
    graph, (norm, mean, _) = record(device, pool, lambda: torch.native_layer_norm(x, [8], None, None, 1e-5))
    graph.replay()
    expected = torch.native_layer_norm(x, [8], None, None, 1e-5)
    torch.testing.assert_close(norm, expected[0], rtol=0, atol=0)
    torch.testing.assert_close(mean, expected[1], rtol=0, atol=0)


def test_memory_of_the_pool_keeps_its_contents_while_another_recording_takes_it(device):
    """A GPU does nothing while it records: what an earlier recording left is there for the replay."""
    pool, x = device.new_pool(), torch.randn(8)
    first, y = recorded(device, lambda: x + 1, pool)
    first.replay()
    held, address = [y], y.untyped_storage().data_ptr()
    del y

    def run():
        z = held.pop() * 2
        return z, x * 5  # the second takes the place of what the first has read

    second, (z, w) = recorded(device, run, pool)
    assert w.untyped_storage().data_ptr() == address
    second.replay()
    torch.testing.assert_close(z, (x + 1) * 2)
    torch.testing.assert_close(w, x * 5)


def test_an_arena_keeps_its_contents_while_another_recording_writes_it(device):
    pool, x = device.new_pool(), torch.ones(8)

    def kernel(x, arena):
        torch.frombuffer((ctypes.c_char * 32).from_address(arena), dtype=torch.float32).mul_(x)

    doubled = device.launched(kernel)

    def begin():
        arena = device.empty_strided((8,), (1,), dtype=torch.float32)
        arena.copy_(x)
        return arena

    first, arena = recorded(device, begin, pool)
    first.replay()
    second, _ = recorded(device, lambda: doubled(x * 2, arena.data_ptr()), pool)
    torch.testing.assert_close(arena, x)
    second.replay()
    torch.testing.assert_close(arena, x * 2)
