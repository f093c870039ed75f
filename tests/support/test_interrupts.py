"""Signals that arrive while something is compiled: their handlers wait for a point where an exception does no harm."""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from braze.support import interrupts
from braze.support.interrupts import deferring, point


class Late(Exception):
    pass


@pytest.fixture
def calls() -> Iterator[list[int]]:
    """What a handler of the program noted."""
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def compiling(*steps: Callable[[], Any]) -> None:
    """Take the steps as a compile would."""
    with deferring:
        for step in steps:
            step()


def test_an_interrupt_waits_for_the_next_point() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt):
        compiling(
            interrupt, lambda: reached.append("before"), point, lambda: reached.append("past the point")
        )
    assert reached == ["before"]


def test_an_interrupt_without_a_point_is_raised_at_the_end() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt):
        compiling(lambda: compiling(interrupt), lambda: reached.append("inside"))
    assert reached == ["inside"]


def test_outside_a_compile_handlers_run_at_once(calls: list[int]) -> None:
    mine = signal.getsignal(signal.SIGUSR1)
    with deferring:
        assert signal.getsignal(signal.SIGUSR1) is not mine
    assert signal.getsignal(signal.SIGUSR1) is mine
    signal.raise_signal(signal.SIGUSR1)
    assert calls == [signal.SIGUSR1]


def test_a_second_interrupt_is_raised_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        compiling(interrupt, interrupt, lambda: pytest.fail("the second one waited too"))
    assert not interrupts.waiting


def test_an_error_of_a_handler_waits_for_the_end_of_the_compile() -> None:
    """In the trace it would be taken for one that the traced program raises."""

    def late(number: int, frame: object) -> None:
        raise Late

    before = signal.signal(signal.SIGUSR1, late)
    reached = []
    try:
        with pytest.raises(Late):
            compiling(
                lambda: signal.raise_signal(signal.SIGUSR1), point, lambda: reached.append("past the point")
            )
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert reached == ["past the point"]


def test_what_takes_long_is_interrupted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 0.05)
    with pytest.raises(KeyboardInterrupt):
        compiling(interrupt, lambda: time.sleep(20), lambda: pytest.fail("slept on"))


def test_a_handler_that_the_program_puts_meanwhile_stays(calls: list[int]) -> None:
    with deferring:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_another_thread_leaves_handlers_alone(calls: list[int]) -> None:
    mine = signal.getsignal(signal.SIGUSR1)
    seen = []

    def work() -> None:
        with deferring:
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [mine] and deferring.depth == 0


class AsAnObject:
    def __call__(self, number: int, frame: object) -> None:
        raise Late

    def method(self, number: int, frame: object) -> None:
        raise Late


def with_more(more: str, number: int, frame: object) -> None:
    raise Late


#: signals that come while the operator runs
due: list[int] = []


@torch.library.custom_op("interrupts_test::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    while due:
        signal.raise_signal(due.pop())
    return x * 2


@slow.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("handler", [AsAnObject(), AsAnObject().method, functools.partial(with_more, "a")])
def test_an_error_of_a_handler_is_not_the_graphs_in_which_it_fell(handler: Any) -> None:
    """A time limit holds for a call of what is compiled: the graph is not run again by Python, to its end."""
    compiled = braze.compile(lambda x: slow(x) + 1, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    before = signal.signal(signal.SIGUSR1, handler)
    due.append(signal.SIGUSR1)
    try:
        with pytest.raises(Late):
            compiled(torch.ones(2))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
