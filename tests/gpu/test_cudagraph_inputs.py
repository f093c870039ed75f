"""Inputs of which kernels are told, and operators that fail while they are recorded, on a GPU: the tests of the simulated device, and what it cannot show."""

from __future__ import annotations

import pytest
import torch

from braze import native
from braze.cudagraphs import recorded
from braze.cudagraphs.device import Costs
from braze.support import log
from tests.cudagraphs.helpers import assert_equal, noted, recording, recordings
from tests.cudagraphs.test_failing import *  # noqa: F403  the same tests, on this device
from tests.cudagraphs.test_told import *  # noqa: F403

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or not native.native_available, reason="needs a GPU and the C core"
    ),
    pytest.mark.usefixtures("simulated"),
]

del no_gradients  # noqa: F821  one for both files


@pytest.fixture(autouse=True)
def without_gradients(simulated, monkeypatch):
    """As in those files; kernels are told of inputs however little lies there."""
    log.forget_warnings()
    tried.clear()  # noqa: F405
    monkeypatch.setattr(type(simulated), "costs", Costs(0.0, 0.0, 0.0))
    with torch.no_grad():
        yield


def numbers(*shape):
    return torch.randn(*shape, device="cuda")


def test_the_c_core_launches_recordings_and_tells_their_kernels():
    assert native.bind_graphs()
    program = lambda x, y: ((x * y).sin() + 1).softmax(-1)
    f = recording(program)
    for _ in range(4):
        x, y = numbers(64, 64), numbers(64, 64)
        assert_equal(f(x, y), program(x, y))
    every = [r for each in recorded._live for g in each.sizes.groups.values() for r in g.recordings]
    mine = [r for r in every if len(r.inputs.told) == 2]
    assert mine and isinstance(mine[-1].graph.replay, native.DeviceGraph)


def test_replays_that_are_in_flight_keep_the_addresses_that_they_were_launched_with():
    """A hundred calls are launched behind work that lasts: each reads the memory of its own call."""
    program = lambda x: (x * 2 + 1).sum(0)
    f = recording(program)
    given = [numbers(512, 64) for _ in range(100)]
    for x in given[:3]:
        f(x)
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)
    found = [f(x).clone() for x in given]
    for x, y in zip(given, found, strict=True):
        torch.testing.assert_close(y, program(x), rtol=1e-4, atol=1e-4)


def test_memory_that_the_caller_lets_go_of_is_read_before_it_is_taken_again():
    program = lambda x: x.cos() * 2
    f = recording(program)
    wanted, found = [], []
    for k in range(40):
        x = numbers(1 << 16)
        wanted.append(program(x))
        found.append(f(x))
        del x
        torch.full((1 << 16,), float(k), device="cuda")  # takes its memory
    assert_equal(found, wanted)


def test_streams_are_told_apart():
    program = lambda x: x.sin() + 1
    f = recording(program)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(6):
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                x = numbers(1000)
                y = f(x)
                wanted = program(x)
            torch.cuda.current_stream().wait_stream(stream)
            assert_equal(y, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_inputs_of_other_types(dtype):
    program = lambda x: (x, x.flip(0), x == x)
    f = recording(program)
    for _ in range(5):
        x = numbers(33, 3).mul(4).to(dtype)
        for ours, theirs in zip(f(x), program(x), strict=True):
            assert torch.equal(ours, theirs)


def test_sizes_that_only_data_tell_cut_an_operator_without_a_tag():
    @torch.library.custom_op("braze_failing::counts", mutates_args=())
    def counts(x: torch.Tensor) -> torch.Tensor:
        return x * x.nonzero().shape[0]

    counts.register_fake(torch.empty_like)
    program = lambda x: counts((x @ x).relu()).sin() @ x
    f = recording(program)
    with recordings() as made, noted() as codes:
        for _ in range(8):
            x = numbers(4, 4)
            torch.testing.assert_close(f(x), program(x), rtol=1e-3, atol=1e-3)
        assert made() == 2 and codes() == ["BZ6212"]


def test_random_numbers_are_drawn_as_ever_after_recordings_that_failed():
    """PyTorch's generator waits for the end of a capture, which an operator has broken."""
    program = lambda x: scaled((x @ x).relu()).sin() @ x  # noqa: F405
    f = recording(program)
    for _ in range(5):
        x = numbers(8, 8)
        torch.testing.assert_close(f(x), program(x), rtol=1e-3, atol=1e-3)
        torch.cuda.manual_seed(3)
        one = torch.rand(100, device="cuda")
        torch.cuda.manual_seed(3)
        assert torch.equal(one, torch.rand(100, device="cuda"))


def test_memory_comes_back_after_recordings_that_failed():
    """PyTorch's allocator forgets a capture that an operator has broken."""
    import gc

    for k in range(3):
        program = lambda x: scaled((x @ x).relu() + k).sin() @ x  # noqa: F405
        f = recording(program)
        for _ in range(5):
            x = numbers(512, 512) / 512
            torch.testing.assert_close(f(x), program(x), rtol=1e-3, atol=1e-3)
        del f
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    x = numbers(64, 64)
    assert_equal(x * 2, x + x)
