"""A test that leaves something in its process fails: each thing that is looked at, left and not left."""

from __future__ import annotations

import decimal
import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from braze import native
from tests import left_behind

needs_hook = pytest.mark.skipif(not native.hook_available(), reason="frames are taken over by the C core")


def entered(mode: Any) -> Callable[[], Any]:
    mode.__enter__()
    return lambda: mode.__exit__(None, None, None)


def changed(ask: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Callable[[], Callable[[], Any]]:
    """What puts a value and gives what puts the earlier one again."""

    def change() -> Callable[[], Any]:
        before = ask()
        put(value)
        return lambda: put(before)

    return change


def places(count: int) -> None:
    decimal.getcontext().prec = count


def follow(*event: Any) -> None:
    pass


CHANGES: dict[str, Callable[[], Callable[[], Any]]] = {
    "trace function": changed(sys.gettrace, sys.settrace, follow),
    "profile function": changed(sys.getprofile, sys.setprofile, follow),
    "trace function of threads": changed(threading.gettrace, threading.settrace, follow),  # type: ignore[arg-type]
    "profile function of threads": changed(threading.getprofile, threading.setprofile, follow),  # type: ignore[arg-type]
    "whether the collector runs": changed(
        gc.isenabled, lambda on: gc.enable() if on else gc.disable(), False
    ),
    "flags of the collector": changed(gc.get_debug, gc.set_debug, gc.DEBUG_UNCOLLECTABLE),
    "thresholds of the collector": changed(
        gc.get_threshold, lambda them: gc.set_threshold(*them), (701, 11, 11)
    ),
    "recursion limit": changed(sys.getrecursionlimit, sys.setrecursionlimit, 4321),
    "switch interval": changed(sys.getswitchinterval, sys.setswitchinterval, 0.25),
    "working directory": changed(Path.cwd, os.chdir, "/"),
    "decimal places": changed(lambda: decimal.getcontext().prec, places, 7),
    "autocast": changed(
        lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on), True
    ),
    "nesting of autocast": lambda: (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting)[1],
    "grad mode": changed(torch.is_grad_enabled, torch.set_grad_enabled, False),
    "default type": changed(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic algorithms": changed(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "number of threads": changed(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
    "function modes": lambda: entered(BaseTorchFunctionMode()),
    "dispatch modes": lambda: entered(TorchDispatchMode()),
}


def test_each_thing_is_tried() -> None:
    assert {*left_behind.OF_PYTHON, *left_behind.OF_TORCH} == {*CHANGES, "frame evaluator"}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_left_is_named_and_what_is_put_back_is_not(name: str) -> None:
    with left_behind.nothing():
        CHANGES[name]()()
    undo: Callable[[], Any] = lambda: None
    try:
        with pytest.raises(AssertionError, match=f"in the process: {name}: "), left_behind.nothing():
            undo = CHANGES[name]()
    finally:
        undo()


@needs_hook
def test_a_thread_is_waited_for_until_it_has_left_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is there, an evaluator of frames is, for all threads."""
    inside, leave = threading.Event(), threading.Event()

    def stays() -> None:
        inside.set()
        leave.wait()

    thread = threading.Thread(target=native.run_hooked, args=(stays,))

    def leaves_it_there() -> None:
        with left_behind.nothing():
            thread.start()
            inside.wait()

    with left_behind.nothing():
        with monkeypatch.context() as patch:
            patch.setattr(left_behind, "PATIENCE", 0.05)
            with pytest.raises(AssertionError, match="in the process: frame evaluator: "):
                leaves_it_there()
        threading.Timer(0.05, leave.set).start()
    thread.join()


def test_dynamos_evaluator_is_put_away() -> None:
    """``torch.cond`` compiles itself in eager, too; its error leaves the evaluator there."""
    x, usual = torch.ones(3), left_behind.evaluator()
    with left_behind.nothing():
        with pytest.raises(Exception, match="cond"):
            torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x.sum(), (x,))
        assert left_behind.is_dynamos(left_behind.evaluator())
    assert left_behind.evaluator() == usual
    assert not left_behind.is_dynamos(usual)
