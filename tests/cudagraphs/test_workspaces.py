"""When workspaces of matrix products may be let go of: no other thread can be inside of a product."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from braze.cudagraphs import allocator
from braze.cudagraphs.allocator import computing, place_of
from braze.runtime.triton import triton_build
from braze.support.threads import Clock, companions

BACKWARD = ("torch.autograd.graph", "_engine_run_backward")


@contextlib.contextmanager
def thread_in(
    run: Callable[[], object], function: str, end: Callable[[], object]
) -> Iterator[tuple[str, str]]:
    """A thread that has come to a function, and the place where it is."""
    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(60_000):
            place = place_of(sys._current_frames()[thread.ident])
            if place[1] == function:
                break
            time.sleep(0.001)
        yield place
    finally:
        end()
        thread.join()


def test_a_thread_that_waits_computes_nothing():
    over = threading.Event()
    with thread_in(over.wait, "wait", over.set) as place:
        assert not computing([place], in_backward=False)


def test_a_thread_in_c_code_that_python_knows_nothing_of_may_compute():
    lock = threading.Lock()

    def in_c():
        lock.acquire()

    lock.acquire()
    with thread_in(in_c, "in_c", lock.release) as place:
        assert computing([place], in_backward=False)


@pytest.mark.parametrize(
    ("where", "in_backward", "found"),
    [
        ([], False, False),
        ([("queue", "get"), ("threading", "join")], False, False),
        ([("queue", "get"), ("program", "step")], False, True),
        ([BACKWARD], False, True),
        ([BACKWARD], True, False),
        ([BACKWARD, BACKWARD], True, True),
        ([BACKWARD, ("queue", "get")], True, False),
        ([("program", "step")], True, True),
    ],
)
def test_of_those_that_wait_for_a_backward_one_is_ours_to_know(where, in_backward, found):
    assert computing(where, in_backward=in_backward) is found


def test_a_thread_that_waits_for_a_process_that_builds_kernels_computes_nothing(monkeypatch):
    """Wherever it is when it is looked at, as in a read of the process's pipe: it never calls an operator."""
    here, over, lock, frames = threading.Event(), threading.Event(), threading.Lock(), sys._current_frames
    looked_at: list[int | None] = []

    def in_c(arguments):
        looked_at.append(threading.get_ident())
        here.set()
        lock.acquire()
        over.set()
        raise OSError

    only = lambda: {number: frame for number, frame in frames().items() if number in looked_at}
    monkeypatch.setattr(sys, "_current_frames", only)
    monkeypatch.setattr(triton_build, "_start", in_c)
    lock.acquire()
    triton_build.Builders(("cuda", 90, 32), most=1).begin(1000)
    try:
        assert here.wait(600)
        assert len(only()) == 1 and not allocator._others_compute()
        monkeypatch.setattr(allocator, "companions", frozenset)
        assert allocator._others_compute()
    finally:
        lock.release()
        assert over.wait(600)


def test_the_clock_of_such_a_process_computes_nothing():
    clock = Clock(600, lambda: None)
    clock.start()
    try:
        assert clock.ident in companions() and threading.get_ident() not in companions()
    finally:
        clock.cancel()
        clock.join()
