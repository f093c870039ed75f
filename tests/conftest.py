"""Every test draws the same random numbers, with the verifiers on, and braze's own faults fail the test they happen in."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from braze.support import log
from tests import all_pairs, left_behind, logs, processes
from tests.interpreter import quicken
from tests.seeds import seed, unnoted

#: the same cases each time; --hypothesis-profile=fresh takes others, those of --hypothesis-seed=N where it is given
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)
settings.load_profile("same")

#: a compiled graph that failed where Python does not, or a broken invariant: the program runs on, more slowly, with the
#: right result, so that a test which only compares results would not notice
FAULT = re.compile(r"\bBZ(?:6013|9\d{3})\b")
#: where tests are about tracing, also a graph that could not be traced: it runs as captured, so that slips in a rule stay unseen
UNTRACED, TRACING = re.compile(r"\bBZ(?:6013|9\d{3}|2007)\b"), ("aot", "decomp", "test_random_numbers.py")
#: a message on a process's stderr, up to the next
SHOWN = re.compile(r"^\[braze\.\w+\] .*(?:\n(?!\[braze\.).*)*", re.MULTILINE)

_heard: list[str] = []
#: what ends that bytecode is written
KEPT = pytest.StashKey[Callable[[], None]]()


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("BRAZE_VERIFY", "2")  # also of the processes that tests start
    os.environ.setdefault("BRAZE_MEASURE_PRODUCTS", "0")  # the same kernels each time
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = (
        "127.0.0.1,localhost"  # servers of tests are on this machine
    )
    if not all("gpu" in Path(place).parts for place in config.args):
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, by whichever test comes first
    listening = log.listen(_heard.append)
    listening.__enter__()
    config.add_cleanup(lambda: listening.__exit__(None, None, None))
    with_ears(config)
    config.stash[KEPT] = bytecode_of_tests()
    config.add_cleanup(config.stash[KEPT])
    gc.disable()  # until all is collected that there is to collect


def bytecode_of_tests() -> Callable[[], None]:
    """Have what pytest makes of the tests' files kept, also where PYTHONDONTWRITEBYTECODE is set: to make it again takes half of the
    time in which tests are collected. What comes back ends that, before tests write modules of their own."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False

    def end() -> None:
        sys.dont_write_bytecode = before

    return end


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of what has three axes and more, each pair of values is run; all of it with ``BRAZE_SWEEP=1``."""
    if os.environ.get("BRAZE_SWEEP") != "1" and (out := all_pairs.left_out(items)):
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is loaded by now stays, a million objects: looking through it at each full collection took two thirds of a second."""
    session.config.stash[KEPT]()
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.callbacks.append(_time_full_collections)


#: when the full collection under way began, and the seconds of the longest since objects were frozen last
_began = _longest = 0.0
#: seconds of a full collection for which it is worth another to freeze what tests have loaded since
LONG = 0.03


def _time_full_collections(phase: str, info: dict[str, int]) -> None:
    global _began, _longest
    if info["generation"] == 2:
        now = time.thread_time()
        if phase == "start":
            _began = now
        else:
            _longest = max(_longest, now - _began)


def freeze_what_is_left() -> None:
    """What the tests of other files have loaded stays too: in files about lifetimes each test collects."""
    global _longest
    if _longest > LONG:
        gc.collect()
        gc.freeze()
        _longest = 0.0


def with_ears(config: pytest.Config) -> None:
    """What processes that tests start say is heard where the test has their output."""
    silent = subprocess.Popen.communicate

    def hear(text: str) -> None:
        _heard.extend(SHOWN.findall(text))

    def communicate(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = silent(self, *args, **kwargs)
        for text in output:
            hear(text.decode(errors="replace") if isinstance(text, bytes) else text or "")
        return output

    processes.listeners.append(hear)
    subprocess.Popen.communicate = communicate  # type: ignore[method-assign]
    config.add_cleanup(lambda: setattr(subprocess.Popen, "communicate", silent))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _heard.clear()
    quicken()
    unnoted()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """After the test: the faults that it (or what it is set up with) provoked are the ones it says it provokes."""
    result = yield
    expected = {code for mark in item.iter_markers("provokes") for code in mark.args}
    pattern = UNTRACED if {item.path.name, item.path.parent.name}.intersection(TRACING) else FAULT
    told = [(pattern.findall(message), message) for message in _heard]
    for codes, message in told:
        assert expected.issuperset(codes), f"braze reported a fault of its own: {message}"
    missing = expected.difference(*(codes for codes, _ in told))
    assert not missing, f"marked to provoke {', '.join(sorted(missing))}, which did not happen"
    return result


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Modules make their cases when they are imported."""
    if isinstance(collector, pytest.Module):
        seed()


# the first of their scopes to be set up, by their names, and so the last to end
@pytest.fixture(autouse=True, scope="module")
def as_a_file_found_it() -> Iterator[None]:
    """What the tests of a file share goes with it."""
    freeze_what_is_left()
    with left_behind.nothing():
        yield


@pytest.fixture(autouse=True)
def as_a_test_found_it() -> Iterator[None]:
    """A test and its fixtures leave the process as they found it."""
    with left_behind.nothing():
        yield


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    seed()


@pytest.fixture
def caplog() -> Iterator[logs.Logs]:
    """What is logged during a test: without pytest's own plugin, which each test would pay for."""
    with logs.listening() as heard:
        yield heard


@pytest.fixture(autouse=True)
def verified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that measures what compiled code costs, or is about the verifiers, runs without them, and says so."""
    if request.node.get_closest_marker("unverified"):
        monkeypatch.delenv("BRAZE_VERIFY", raising=False)
