"""What raises, ends or is short while a served model is captured: its steps are right, then and afterwards."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.cudagraphs.simulated import SimulatedPool
from braze.support import interrupts
from tests import left_behind
from tests.fuzz.fault_hooks import as_it_is
from tests.fuzz.served_hooks import LEVEL0, PIECES, nothing, served

Step = Callable[[], list[torch.Tensor]]
BOTH = pytest.mark.parametrize("words", [LEVEL0, PIECES], ids=["recorded whole", "recorded by pieces"])


def steps_of(words: dict[str, Any]) -> tuple[Step, list[torch.Tensor]]:
    """A step of a served model that nothing was asked of yet, and what it is to give."""
    return served("forward", words, nothing, braze.compile), served("forward", words, nothing, as_it_is)()


@BOTH
def test_memory_that_ends_in_a_capture_leaves_its_size_unrecorded(
    words: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    take, reached = SimulatedPool.take, 0
    for at in range(20):
        step, expected = steps_of(words)
        left = [at]

        def short(pool: SimulatedPool, size: int, left: list[int] = left) -> torch.UntypedStorage:
            left[0] -= 1
            if left[0] == -1:
                raise torch.OutOfMemoryError("out of memory")
            return take(pool, size)

        with monkeypatch.context() as patch:
            patch.setattr(SimulatedPool, "take", short)
            torch.testing.assert_close(step(), expected)
        reached += left[0] < 0
        torch.testing.assert_close(step(), expected)
        if left[0] >= 0:
            break
    assert 3 <= reached < 20


class Late(Exception):
    """A time limit of the program's."""


def signalled(step: Step, at: int) -> tuple[bool, BaseException | None]:
    """A step in which a signal comes at the n-th call or return of a function of braze's: whether it did, and what the step raised."""
    left = [at]

    def event(frame: Any, kind: str, arg: Any) -> None:
        if "/braze/" in frame.f_code.co_filename:
            left[0] -= 1
            if left[0] == -1:
                signal.raise_signal(signal.SIGUSR1)

    sys.setprofile(event)
    try:
        step()
    except (KeyboardInterrupt, Late) as error:
        return left[0] < 0, error.with_traceback(None)
    finally:
        sys.setprofile(None)
    return left[0] < 0, None


@BOTH
@pytest.mark.parametrize("error", [KeyboardInterrupt, Late])
def test_what_a_signals_handler_raises_in_a_capture_reaches_the_caller_and_leaves_nothing(
    words: dict[str, Any], error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a handler that waits for long is run wherever that is: how long a compile takes must not matter here
    monkeypatch.setattr(interrupts, "_again", lambda number: None)

    def raising(number: int, frame: Any) -> None:
        raise error

    before = left_behind.found()
    handler = signal.signal(signal.SIGUSR1, raising)
    places = range(20, 420, 20) if words is LEVEL0 else (20, 100, 300, 1000, 4000, 12000)
    reached = 0
    try:
        for at in places:
            step, expected = steps_of(words)
            came, found = signalled(step, at)
            assert (type(found) is error) == came
            assert left_behind.found() == before
            for _ in range(2):
                torch.testing.assert_close(step(), expected)
            reached += came
            if not came:
                break
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert reached >= 5
