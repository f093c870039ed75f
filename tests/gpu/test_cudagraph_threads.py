"""What other threads do on a GPU while one records."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.cudagraphs.helpers import assert_equal, recording, recordings
from tests.cudagraphs.test_draws_of_threads import *  # noqa: F403  the same tests, on this device

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("simulated"),
]


def numbers(*shape):
    return torch.randn(*shape, device="cuda")


def on_another_thread(work):
    """What ``work`` gives on a thread of its own, or what it raises; the caller goes on when that has ended."""
    found: list[object] = []

    def run():
        try:
            found.append(work())
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(600)
    return found[0]


def meeting(name, device, work):
    """An operator in whose middle, while it is recorded, another thread does some work; and what came of that, each time."""
    found: list[object] = []

    @torch.library.custom_op(f"braze_threads::{name}", mutates_args=())
    def meets(x: torch.Tensor) -> torch.Tensor:
        if device.busy():
            found.append(on_another_thread(work))
        return x + 1

    meets.register_fake(torch.empty_like)
    return meets, found


@torch.no_grad()
def test_another_thread_computes_takes_memory_and_waits_for_the_device(simulated):
    """That is the mode in which captures are begun: in PyTorch's own it would end the recording."""

    def work():
        large = torch.full((64 << 20,), 2.0, device="cuda")  # new memory of the device's
        total = float(large.sum().item())
        torch.cuda.current_stream().synchronize()
        return total == 2.0 * large.numel()

    meets, found = meeting("computes", simulated, work)
    program = lambda x: torch.cumsum(meets(x @ x), 0).sin() @ x
    f = recording(program)
    with recordings() as made:
        for _ in range(6):
            x = numbers(16, 16) / 4
            torch.testing.assert_close(f(x), program(x), rtol=1e-3, atol=1e-3)
        assert made() >= 1
    assert found and all(each is True for each in found), found


@torch.no_grad()
def test_another_thread_draws_from_a_generator_of_its_own(simulated):
    mine = torch.Generator("cuda").manual_seed(7)
    wanted = torch.rand(100, device="cuda", generator=torch.Generator("cuda").manual_seed(7))
    meets, found = meeting(
        "draws", simulated, lambda: torch.rand(100, device="cuda", generator=mine.manual_seed(7))
    )
    f = recording(lambda x: torch.cumsum(meets(x), 0) * 2)
    for _ in range(5):
        x = numbers(4)
        assert_equal(f(x), torch.cumsum(x + 1, 0) * 2)
    assert found and all(torch.equal(each, wanted) for each in found)


@torch.no_grad()
def test_what_eager_code_may_draw_meanwhile_is_up_to_pytorch(simulated):
    """The default generator has one state for all threads. While anybody captures, PyTorch 2.11 counts no draws outside the capture; 2.13 has a state for each capture."""
    draw = lambda: torch.rand(100, device="cuda")
    draw()
    x, graph = numbers(4), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = x + 1
        theirs = on_another_thread(draw)
    graph.replay()
    assert_equal(y, x + 1)
    meets, found = meeting("eager", simulated, draw)
    f = recording(lambda x: torch.cumsum(meets(x), 0) * 2)
    for _ in range(5):
        x = numbers(4)
        assert_equal(f(x), torch.cumsum(x + 1, 0) * 2)
    assert found and {type(each) for each in found} == {type(theirs)}
    if isinstance(theirs, RuntimeError):
        assert all("Offset increment outside graph capture" in str(each) for each in (theirs, *found))
    else:
        assert not any(torch.equal(theirs, each) for each in found)
