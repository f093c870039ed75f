"""What is logged during a test, as pytest's own fixture of that name tells it.

Pytest's attaches itself, in each phase of each test, to all loggers that hand nothing on, of which PyTorch has dozens: a third of
the time of a test that does nothing. Here only a test that asks for it pays.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


class Logs(logging.Handler):
    """A handler that keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._before: dict[str | None, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)  # its message, too
        self.records.append(record)

    @property
    def text(self) -> str:
        return "".join(f"{self.format(record)}\n" for record in self.records)

    def set_level(self, level: int | str, logger: str | None = None) -> None:
        """To the end of the test."""
        found = logging.getLogger(logger)
        self._before.setdefault(logger, found.level)
        found.setLevel(level)

    @contextlib.contextmanager
    def at_level(self, level: int | str, logger: str | None = None) -> Iterator[None]:
        found = logging.getLogger(logger)
        before = found.level
        found.setLevel(level)
        try:
            yield
        finally:
            found.setLevel(before)

    def let_go(self) -> None:
        """The loggers are as the test found them."""
        for logger, level in self._before.items():
            logging.getLogger(logger).setLevel(level)


@contextlib.contextmanager
def listening() -> Iterator[Logs]:
    """What reaches the handlers of the root, or of braze, which hands nothing on."""
    logs = Logs()
    loggers = [logging.getLogger(), logging.getLogger("braze")]
    if loggers[1].propagate:
        loggers.pop()
    for logger in loggers:
        logger.addHandler(logs)
    try:
        yield logs
    finally:
        for logger in loggers:
            logger.removeHandler(logs)
        logs.let_go()
