"""A test in which braze reports a fault of its own fails, unless it says that it provokes it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from braze.support import log

fails = pytest.mark.xfail(strict=True, raises=AssertionError)

SPEAKS = "from braze.support import log; log.configure(''); log.warn_once('c', 'f runs as it is.\\nBZ9002: on purpose')"


@fails
def test_a_graph_that_failed() -> None:
    log.warn_once("a cause", "BZ6013: on purpose", "fallbacks")


@fails
def test_the_same_fault_once_more() -> None:
    """The user has been told by the test above; and this one is turned off."""
    log.logger("fallbacks").setLevel("CRITICAL")
    try:
        assert not log.warn_once("a cause", "BZ6013: on purpose", "fallbacks")
    finally:
        log.logger("fallbacks").setLevel("NOTSET")


@fails
def test_a_broken_invariant_in_a_process() -> None:
    subprocess.run([sys.executable, "-c", SPEAKS], capture_output=True)


@fails
@pytest.mark.provokes("BZ6013")
def test_another_than_the_one_that_is_provoked() -> None:
    log.warn("BZ9014: on purpose")


@fails
@pytest.mark.provokes("BZ6013")
def test_what_is_to_be_provoked_and_does_not_happen() -> None:
    log.warn("BZ1009: no fault of braze's")


@pytest.fixture(scope="module")
def heard_while_set_up() -> None:
    log.warn("BZ9014: on purpose")


@fails
def test_while_a_module_is_set_up(heard_while_set_up: None) -> None:
    pass


@pytest.mark.provokes("BZ6013", "BZ9002")
def test_what_is_provoked_may_happen() -> None:
    log.warn_once("a cause", "BZ6013: on purpose", "fallbacks")
    log.warn("f runs as it is.\nBZ9002: on purpose", "aot")


def test_what_is_no_fault_is_none_of_its_business() -> None:
    log.warn("BZ1009: a generator")


@pytest.mark.xfail(strict=True, raises=pytest.PytestUnraisableExceptionWarning)
def test_an_exception_of_a_finalizer_of_ours() -> None:
    """Python prints it and goes on."""
    made: dict[str, Any] = {}
    text = "def g():\n    try:\n        yield\n    finally:\n        raise ValueError"
    exec(compile(text, "/some/braze/file.py", "exec"), made)
    started = made["g"]()
    next(started)
    del started
