"""One module of CPython's ``test`` package, run in this process: as it is, or with every test method compiled.

One line of JSON is written when a test starts and one when it has ended, so that a process that dies tells which test it
died in.
"""

from __future__ import annotations

import faulthandler
import gc
import inspect
import json
import random
import signal
import time
import types
import unittest
from collections.abc import Callable, Collection, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from test import support

import braze

#: what a test gets of the processor, in seconds, before the process ends itself: what else runs on the machine decides nothing
LIMIT = 60.0
#: after how many times as long by the clock a test is taken to wait for what never comes
WAITS = 15
WORDS = ("ok", "skipped", "expected failure", "failure", "error")


class Outcomes(unittest.TestResult):
    """Writes down what became of each test; of one with subtests the worst."""

    def __init__(self, out: Path, limit: float) -> None:
        super().__init__()
        self.out = out
        self.limit = limit
        self.word, self.text = "ok", ""

    def write(self, **entry: Any) -> None:
        with self.out.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def note(self, word: str, text: str) -> None:
        if WORDS.index(word) > WORDS.index(self.word):
            self.word, self.text = word, text

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        random.seed(0)
        self.word, self.text = "ok", ""
        self.write(test=test.id())
        self.began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, self.limit)
        faulthandler.dump_traceback_later(WAITS * self.limit, exit=True)

    def stopTest(self, test: Any) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)
        seconds = round(time.process_time() - self.began, 3)
        self.write(test=test.id(), outcome=self.word, text=self.text, seconds=seconds)

    def told(self, word: str, test: Any, error: Any) -> None:
        if isinstance(test, unittest.TestCase):
            self.note(word, self._exc_info_to_string(error, test))  # type: ignore[attr-defined]
        else:  # setUpClass and setUpModule
            self.write(test=test.id(), outcome=word, text=str(error[1]), seconds=0.0)

    def addError(self, test: Any, err: Any) -> None:
        self.told("error", test, err)

    def addFailure(self, test: Any, err: Any) -> None:
        self.told("failure", test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.told("failure" if issubclass(err[0], test.failureException) else "error", test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        self.note("skipped", reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.note("expected failure", "")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.note("failure", "unexpected success")


def tests_of(suite: Any) -> Iterator[unittest.TestCase]:
    """The test cases of a suite, without the doctests: those have no method to compile."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        elif type(test).__module__ != "doctest":
            yield test


def compiled_method(self: Any, method: Callable[[], Any]) -> None:
    """In place of ``TestCase._callTestMethod``: the method, compiled."""
    if isinstance(method, types.MethodType) and not inspect.iscoroutinefunction(method):
        braze.compile(method.__func__, backend="eager")(method.__self__)
    else:
        method()


def method_as_it_is(self: Any, method: Callable[[], Any]) -> None:
    """The same for the uncompiled run: as deep in the stack."""
    method()


def warm() -> None:
    """Load what compiling needs: the tests measure memory, modules and threads."""
    for module in ("braze.capture.trace.tracer", "unittest.mock", "test.support"):
        import_module(module)
    braze.compile(lambda x: x, backend="eager")(0)
    gc.collect()
    gc.freeze()  # what is loaded by now is not looked through by each of the tests' collections


def run_module(
    module: str,
    compiled: bool,
    out: Path,
    only: Collection[str],
    without: Collection[str],
    limit: float = LIMIT,
) -> None:
    """Run a module's tests in the working directory: those named, or all, but for those that are left out."""
    how = compiled_method if compiled else method_as_it_is
    unittest.TestCase._callTestMethod = how  # type: ignore[attr-defined]
    support.verbose = False
    faulthandler.register(signal.SIGPROF, chain=True)  # tells where, and then the signal ends the process
    found = tests_of(unittest.defaultTestLoader.loadTestsFromModule(import_module(module)))
    wanted = [t for t in found if t.id() not in without and (not only or t.id() in only)]
    unittest.TestSuite(wanted).run(Outcomes(out, limit))
