"""What runs on one thread alone has no helpers, and changes nothing for other threads."""

from __future__ import annotations

import threading

import pytest
import torch

from braze.runtime.operators import one_thread
from braze.runtime.operators.one_thread import on_one_thread

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="libtorch without MKL")


@needs_mkl
def test_work_on_one_thread_has_no_helpers() -> None:
    """Neither there nor by a number that stays behind: this thread's and new threads' is what it was."""
    here = threading.get_ident()
    before = [torch.get_num_threads(), number_of_a_new_thread()]
    assert on_one_thread(lambda: (torch.get_num_threads(), threading.get_ident() == here)) == (1, False)
    assert [torch.get_num_threads(), number_of_a_new_thread()] == before


def number_of_a_new_thread() -> int:
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    return found[0]


@needs_mkl
def test_an_error_of_the_work_is_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        on_one_thread(lambda: 1 // 0)


def test_without_limits_of_a_thread_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_thread, "_limits", lambda: ())
    assert on_one_thread(lambda: pytest.fail("this would have helpers")) is None


@needs_mkl
def test_without_a_thread_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system has no more of them."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert on_one_thread(lambda: pytest.fail("there is no thread")) is None
