"""Warnings and what loggers are told: given as in eager, from the program's own lines, whatever has become of levels."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from braze.support import trace

PARENT = logging.getLogger("tests.capture.messages")
TELLER = logging.getLogger("tests.capture.messages.inner")
SAID: list[tuple[Any, ...]] = []
X = torch.ones(2)


class Heard(logging.Handler):
    """Keeps what it hears, and whence."""

    def emit(self, record: logging.LogRecord) -> None:
        SAID.append((record.getMessage(), record.pathname, record.lineno, record.funcName))


@pytest.fixture(autouse=True)
def _heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("braze.capture.graph.replays.is_plain_logger", lambda logger: True)
    monkeypatch.setattr(PARENT, "propagate", False)
    PARENT.addHandler(handler := Heard())
    yield
    PARENT.removeHandler(handler)
    for logger in (PARENT, TELLER):
        logger.setLevel(logging.NOTSET)
        logger.disabled = False
    logging.disable(logging.NOTSET)


def informs(x: Any) -> Any:
    TELLER.info("a number: %d", 3)
    return x * 2


def asks(x: Any) -> Any:
    return x + 1 if TELLER.isEnabledFor(logging.INFO) else x - 1


def logs(x: Any) -> Any:
    TELLER.log(logging.INFO, "said")
    return x * 2


def heard(function: Callable[[Any], Any]) -> Any:
    SAID.clear()
    return function(X).tolist(), list(SAID)


@pytest.mark.parametrize("function", [informs, asks, logs])
def test_a_level_that_changes_is_seen_at_the_next_call(function: Callable[[Any], Any]) -> None:
    compiled = braze.compile(function, backend="eager", fullgraph=True)
    for act in (
        lambda: TELLER.setLevel(logging.WARNING),
        lambda: TELLER.setLevel(logging.INFO),
        lambda: setattr(TELLER, "disabled", True),
        lambda: setattr(TELLER, "disabled", False),
        lambda: TELLER.setLevel(logging.NOTSET),
        lambda: PARENT.setLevel(logging.DEBUG),
        lambda: PARENT.setLevel(logging.ERROR),
        lambda: PARENT.setLevel(logging.INFO),
        lambda: logging.disable(logging.INFO),
        lambda: logging.disable(logging.DEBUG),
    ):
        act()
        assert heard(compiled) == heard(function)


def test_the_level_of_another_logger_compiles_nothing_again() -> None:
    compiled, other = braze.compile(informs, backend="eager"), logging.getLogger("tests.capture.others")
    PARENT.setLevel(logging.WARNING)
    compiled(X)
    before = trace.COUNTERS["captures"]
    for level in (10, 20, 30):
        other.setLevel(level)
        compiled(X)
    assert trace.COUNTERS["captures"] == before


def test_a_tensor_that_no_handler_would_see_breaks_nothing() -> None:
    def tells(x: Any) -> Any:
        TELLER.debug("x is %s", x)
        return x * 2

    PARENT.setLevel(logging.INFO)
    assert braze.compile(tells, backend="eager", fullgraph=True)(X).tolist() == [2, 2]


def test_a_level_that_the_function_sets_holds_from_there_on() -> None:
    def sets(x: Any) -> Any:
        TELLER.setLevel(logging.WARNING)
        TELLER.info("unheard")
        TELLER.setLevel(logging.INFO)
        TELLER.info("heard")
        return x * 2

    compiled = braze.compile(sets, backend="eager")
    for _ in range(2):
        assert heard(compiled)[1] == heard(sets)[1]
        assert [said[0] for said in SAID] == ["heard"]


def test_a_message_that_breaks_the_graph_names_its_line_too() -> None:
    def tells(x: Any) -> Any:
        TELLER.warning("x is %s", x)
        return x * 2

    compiled = braze.compile(tells, backend="eager")
    assert heard(compiled) == heard(tells)


def inner(level: int) -> None:
    warnings.warn("careful", UserWarning, stacklevel=level)
    TELLER.warning("told", stacklevel=level)


def outer(x: Any, level: int) -> Any:
    inner(level)
    return x * 2


def after_a_break(x: Any, level: int) -> Any:
    braze.graph_break()
    inner(level)
    return x * 2


@pytest.mark.parametrize("function", [outer, after_a_break])
@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_a_message_names_the_line_that_gave_it(function: Any, level: int) -> None:
    compiled = braze.compile(function, backend="eager")
    found = []
    for fn in (function, compiled, compiled):
        SAID.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fn(X, level)
        found.append(([(w.filename, w.lineno) for w in caught], list(SAID)))
    assert found[0] == found[1] == found[2]


def test_a_warning_is_shown_once_a_place() -> None:
    compiled = braze.compile(outer, backend="eager")
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            outer(X, 1)
            compiled(X, 1)
    assert len(caught) == 1


def test_a_compile_lets_no_module_forget_what_it_has_shown() -> None:
    compiled = braze.compile(lambda x: torch.special.bessel_y1(x), backend="eager")
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            outer(X, 1)
            compiled(X.double())
    assert len(caught) == 1


# -- what hears a message may be read behind it


class Kept(logging.Handler):
    """Keeps how many messages it heard."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        self.texts.append(record.getMessage())


def counts_records() -> Callable[[Any], Any]:
    logger, handler = logging.Logger("counts"), Kept()
    logger.addHandler(handler)

    def function(x: Any) -> Any:
        logger.warning("one")
        x = x * 2
        logger.error("another")
        return x + handler.count

    return function


def counts_in_a_closure() -> Callable[[Any], Any]:
    logger, texts = logging.Logger("closure"), []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    logger.addHandler(Listening())

    def function(x: Any) -> Any:
        before = len(texts)
        logger.warning("one")
        return x + len(texts) - before

    return function


def counts_recorded(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn("one", stacklevel=1)
        count = len(found)
        warnings.warn("another", stacklevel=1)
        texts = [str(message.message) for message in found]
    return x + count, texts


def counts_shown() -> Callable[[Any], Any]:
    shown: list[Any] = []

    def function(x: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda *args, **kwargs: shown.append(args)
            warnings.warn("one", stacklevel=1)
        return x + len(shown)

    return function


class Lines:
    """A stream of the program's."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> None:
        self.lines.append(text)

    def flush(self) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("make", [counts_records, counts_in_a_closure, lambda: counts_recorded, counts_shown])
def test_what_hears_a_message_is_not_read_before_it_is_given(
    make: Callable[[], Callable[[Any], Any]],
) -> None:
    plain, compiled = make(), braze.compile(make(), backend="eager")
    for _ in range(3):
        theirs, ours = plain(X), compiled(X)
        assert str(theirs) == str(ours)


def test_a_stream_of_the_programs_is_not_read_before_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()

    def function(x: Any) -> Any:
        print("one")
        return x + len(lines.lines)

    compiled = braze.compile(function, backend="eager")
    monkeypatch.setattr("sys.stdout", lines)
    results = [compiled(X)[0].item() for _ in range(3)]
    assert results == [3.0, 5.0, 7.0]
    assert lines.lines == ["one", "\n"] * 3


def test_a_listener_that_nobody_reads_breaks_nothing() -> None:
    logger, handler = logging.Logger("unread"), Kept()
    logger.addHandler(handler)

    def function(x: Any) -> Any:
        logger.warning("one")
        return x * 2

    compiled = braze.compile(function, backend="eager", fullgraph=True)
    assert compiled(X).tolist() == [2.0, 2.0]
    assert handler.texts == ["one"]


def test_a_break_at_text_of_a_number_says_so() -> None:
    def function(x: Any, n: int) -> Any:
        try:
            raise ValueError(f"bad {n}")
        except ValueError as error:
            return x * 2, str(error)

    compiled = braze.compile(function, backend="eager", dynamic=True)
    with trace.collect() as events:
        assert compiled(X, 5)[1] == "bad 5"
    reasons = [found.reason for kind, found in events if kind == "break"]  # type: ignore[attr-defined]
    assert reasons[0] == "text of a number that changes goes where it is looked at"
