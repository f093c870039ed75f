"""Random numbers that compiled code draws on one thread while another records: none is drawn twice, and none is refused."""

from __future__ import annotations

import threading

import pytest
import torch

import braze
from tests.cudagraphs.helpers import assert_equal, filled, numbers, recording, recordings


class Turns:
    """A lock that tells when a thread asks for it which is not the one that made it."""

    def __init__(self, lock):
        self.lock, self.asked, self.mine = lock, threading.Event(), threading.get_ident()

    def acquire(self, *args):
        if threading.get_ident() != self.mine:
            self.asked.set()
        return self.lock.acquire(*args)

    def release(self):
        self.lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *error):
        self.release()


@pytest.fixture
def turns(simulated, monkeypatch):
    found = Turns(simulated.lock)
    monkeypatch.setattr(simulated, "lock", found)
    return found


@pytest.mark.parametrize(
    "options", [{}, {"fallback_random": True}, {"cudagraphs": True, "cudagraph_launches": 1}]
)
def test_a_draw_waits_for_the_recording_that_another_thread_makes(simulated, turns, options):
    """A recording puts the generator back, a rehearsal too; on a GPU PyTorch refuses the draw."""
    drawing = braze.compile(lambda x: x + torch.rand_like(x), options=options)
    zeros, drawn, done = filled(0.0, 100), [], threading.Event()

    def other():
        with torch.no_grad():
            drawn.append(drawing(zeros).clone())
        done.set()
        turns.asked.set()

    @torch.library.custom_op(f"braze_tests::meets_{len(options)}", mutates_args=())
    def meets(x: torch.Tensor) -> torch.Tensor:
        if simulated.busy() and not threads:
            threads.append(threading.Thread(target=other))
            threads[0].start()
            assert turns.asked.wait(600)
        return x + 1

    meets.register_fake(torch.empty_like)
    threads: list[threading.Thread] = []
    f = recording(lambda x: torch.cumsum(meets(x), 0) * 2)
    with torch.no_grad(), recordings() as made:
        drawing(zeros)
        f(numbers(4))
        torch.manual_seed(5)
        x = numbers(4)
        torch.manual_seed(5)
        turns.asked.clear()
        assert_equal(f(x), torch.cumsum(x + 1, 0) * 2)
        threads[0].join()
        after = drawing(zeros)
        assert made() >= 1 and done.is_set()
    assert not torch.equal(drawn[0], after), "the same numbers twice"
    torch.manual_seed(5)
    with torch.no_grad():
        assert_equal([drawn[0], after], [drawing(zeros), drawing(zeros)])
