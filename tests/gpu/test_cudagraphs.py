"""Recordings on a GPU: what the simulated device is tested with, and what it cannot show."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import braze
from braze.cudagraphs.plan import Plan
from braze.cudagraphs.recorded import Limits, Recorded
from braze.cudagraphs.registry import device_of
from braze.cudagraphs.trees import forest_of
from braze.support import trace
from tests.cudagraphs.helpers import assert_equal, noted, recording, recordings
from tests.cudagraphs.test_copied import *  # noqa: F403  the same tests, on this device
from tests.cudagraphs.test_recorded import *  # noqa: F403

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("simulated"),
]


def numbers(*shape):
    return torch.randn(*shape, device="cuda")


def test_the_modes():
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(8, 8), nn.GELU()))).cuda()
    for mode, wanted in (
        ("default", 0),
        ("reduce-overhead", 1),
        ("max-autotune", 1),
        ("max-autotune-no-cudagraphs", 0),
    ):
        f = braze.compile(model, mode=mode)
        with recordings() as made:
            for _ in range(4):
                x = numbers(2, 8)
                assert_equal(f(x), model(x))
            assert made() == wanted, mode


def test_a_recording_of_the_users_around_a_compiled_call():
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)).cuda()
    f = braze.compile(model, mode="reduce-overhead")
    x = numbers(4, 16)
    for _ in range(3):
        f(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert_equal(y, model(x))


def test_streams_have_recordings_of_their_own():
    fn = lambda x: (x @ x).relu() + 1
    f = recording(fn)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(5):
        for stream in streams:
            x = numbers(64, 64)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                y = f(x)
                z = y * 2
            torch.cuda.current_stream().wait_stream(stream)
            assert_equal(z, fn(x) * 2)


def test_synchronizing_and_profiling_in_between():
    fn = lambda x: torch.softmax(x, -1) @ x
    f = recording(fn)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        for _ in range(5):
            x = numbers(32, 32)
            y = f(x)
            torch.cuda.synchronize()
            assert_equal(y, fn(x))


def test_dropout_differs_from_call_to_call_and_follows_the_seed():
    f = recording(lambda x: F.dropout(x, 0.5, True))
    x = torch.ones(10000, device="cuda")
    found = []
    for seed in (3, 4, 3):
        torch.manual_seed(seed)
        found.append([f(x).clone() for _ in range(4)])
    torch.manual_seed(3)
    found.append([f(x).clone() for _ in range(4)])
    assert_equal(found[2], found[3])
    for one in found:
        assert all(not torch.equal(one[i], one[j]) for i in range(4) for j in range(i))
    assert not torch.equal(found[0][3], found[1][3])


def test_attention_dropout_and_gradients_of_a_small_transformer():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).cuda()
    twin = copy.deepcopy(layer)
    f = recording(layer)
    with torch.enable_grad(), recordings() as made, trace.collect() as events:
        ours, theirs = (torch.optim.SGD(m.parameters(), 0.01) for m in (layer, twin))
        for _ in range(6):
            x = numbers(4, 16, 64)
            a, b = f(x).square().mean(), twin(x).square().mean()
            ours.zero_grad()
            theirs.zero_grad()
            a.backward()
            b.backward()
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            for p, q in zip(layer.parameters(), twin.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)
            ours.step()
            theirs.step()
        assert made() >= 2, [str(note) for kind, note in events if kind == "cudagraph"]


def test_convolutions_and_running_statistics():
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).cuda()
    twin = copy.deepcopy(model)
    f = recording(model)
    with torch.no_grad():
        for _ in range(6):
            x = numbers(2, 3, 16, 16)
            torch.testing.assert_close(f(x), twin(x), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)
    assert int(model[1].num_batches_tracked) == 6


def test_an_input_on_the_processor_leaves_the_graph_unrecorded():
    f = recording(lambda x, y: x * y)
    with noted() as codes:
        for k in range(4):
            x, y = numbers(3), torch.tensor(float(k))
            assert_equal(f(x, y), x * y)
        assert codes() and set(codes()) <= {"BZ6203", "BZ6204"}


def test_out_of_memory_while_recording_leaves_the_function_running(simulated, monkeypatch):
    fn = lambda x: torch.sin(x) @ x
    f = recording(fn)
    x = numbers(64, 64)
    f(x)

    def short(pool, asked):
        raise torch.OutOfMemoryError("CUDA out of memory, as far as this test goes")

    with noted() as codes:
        monkeypatch.setattr(simulated, "begin", short)
        for _ in range(3):
            assert_equal(f(x), fn(x))
        assert codes() == ["BZ6207"]


def test_what_is_let_go_of_gives_its_memory_back():
    reserved = []
    for _ in range(3):  # the first time libraries take memory that they keep, or give some back
        f = braze.compile(lambda x: torch.sin(x) @ x + 1, mode="reduce-overhead")
        x = numbers(2048, 2048)
        for _ in range(4):
            f(x)
        during = torch.cuda.memory_reserved()
        del f, x
        braze.reset()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[1] == reserved[2] < during


def test_sizes_that_vary():
    fn = lambda x, w: torch.relu(x @ w).sum(1)
    f = braze.compile(
        fn, dynamic=True, options={"cudagraphs": True, "cudagraph_launches": 1, "cudagraph_sizes": 4}
    )
    w = numbers(32, 32)
    with recordings() as made:
        for _ in range(4):
            for rows in range(2, 10):
                x = numbers(rows, 32)
                assert_equal(f(x, w), fn(x, w))
        assert 4 <= made() <= 8


def test_a_step_of_decoding_with_a_cache():
    torch.manual_seed(0)
    weight = numbers(64, 64) / 8
    keys = torch.zeros(1, 32, 64, device="cuda")
    twin = keys.clone()

    def step(keys, x, place):
        keys.index_copy_(1, place, x[:, None])
        scores = torch.softmax((x[:, None] @ keys.transpose(1, 2)) / 8, -1)
        return torch.tanh((scores @ keys)[:, 0] @ weight)

    f = recording(step)
    x = y = numbers(1, 64)
    with recordings() as made:
        for i in range(20):
            place = torch.tensor([i], device="cuda")
            x, y = f(keys, x, place), step(twin, y, place)
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(keys, twin, rtol=1e-3, atol=1e-4)
        assert made() <= 6


def test_streams_that_replay_at_once_share_no_workspace():
    torch.manual_seed(0)
    fn = lambda x, w: (x @ w) * 1.0  # rows so few that cuBLAS sums parts of them in its workspace
    f, streams = recording(fn), [torch.cuda.Stream() for _ in range(2)]
    w = numbers(16384, 64) / 128
    inputs = [[numbers(64, 16384) for _ in range(6)] for _ in streams]
    torch.cuda.synchronize()
    found: list[list[torch.Tensor]] = [[], []]
    for turn in range(30):
        for stream, given, kept in zip(streams, inputs, found, strict=True):
            with torch.cuda.stream(stream):
                kept.append(f(given[turn % 6], w).clone())
    torch.cuda.synchronize()
    for given, kept in zip(inputs, found, strict=True):
        for turn, y in enumerate(kept):
            torch.testing.assert_close(y, fn(given[turn % 6], w), rtol=1e-3, atol=1e-3)
    rooms = [device_of("cuda:0")._rooms[stream.cuda_stream] for stream in streams]
    assert (
        len({room.memory().handle for room in rooms}) == len({room.side.cuda_stream for room in rooms}) == 2
    )


def test_workspaces_that_somebody_clears_are_not_those_of_recordings():
    torch.manual_seed(0)
    fn = lambda x, w: torch.relu(x @ w) @ w.t()
    f = recording(fn)
    x, w = numbers(64, 16384), numbers(16384, 64) / 128
    for _ in range(4):
        f(x, w)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    others = [torch.ones(8 << 20, device="cuda") for _ in range(8)]
    for _ in range(4):
        y = f(x, w)
        torch.testing.assert_close(y, fn(x, w), rtol=1e-3, atol=1e-3)
        del y
    assert all(bool((other == 1).all()) for other in others)


def test_a_second_slot_takes_its_outputs_alone():
    braze.reset()
    gc.collect()  # what goes meanwhile would be taken off
    f, before = (
        recording(lambda x: torch.cumsum((x @ x).sin() @ x, 0)[:1] + 1),
        forest_of(device_of("cuda:0")).held(),
    )
    inputs, kept = [numbers(2048, 2048) / 64 for _ in range(4)], []
    sizes = []
    with recordings() as made:
        for x in inputs:
            kept.append(f(x))
            sizes.append(forest_of(device_of("cuda:0")).held() - before)
        assert made() >= 2
    assert sizes[1] >= 16 << 20 and sizes[2] - sizes[1] <= 4 << 20, sizes
    torch.testing.assert_close(
        kept, [torch.cumsum((x @ x).sin() @ x, 0)[:1] + 1 for x in inputs], rtol=1e-2, atol=1e-2
    )


def test_what_a_recorded_operator_keeps_is_no_other_recordings():
    kept: list[torch.Tensor] = []

    def call(inputs):
        y = torch.cumsum(inputs[0], 0)
        kept[:] = [y]
        return (y * 2,)

    device = device_of("cuda:0")
    known, other = (
        Recorded(call, Plan("f", "cuda:0", (0,)), device, Limits()),
        recording(lambda x: torch.cumsum(x, 0).sin()),
    )
    inputs = [numbers(50) for _ in range(5)]
    with recordings() as made:
        for x in inputs:
            (y,) = known([x])
            other(x)
            assert_equal((y, kept[0]), (torch.cumsum(x, 0) * 2, torch.cumsum(x, 0)))
            del y
        assert made() == 2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices_take_turns_whichever_is_current():
    """Each has its recordings; what is held of one is not written by the other."""
    program = lambda x: torch.relu(x @ x).sum(0) + x
    f, kept = recording(program), []
    with torch.no_grad(), recordings() as made:
        for turn in range(12):
            where = torch.device("cuda", turn % 2)
            with torch.cuda.device(turn // 3 % 2):
                x = torch.randn(16, 16, device=where) / 4
                kept.append((f(x), program(x)))
            if turn % 4 == 3:
                del kept[:2]
        assert made() >= 4
    for ours, theirs in kept:
        assert ours.device == theirs.device
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
