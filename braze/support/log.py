"""Logging by subject: ``BRAZE_LOGS="guards,+graph_breaks,-kernels"``.

A bare name turns a subject on at INFO, ``+name`` at DEBUG, ``-name`` off; ``all`` means every
subject; ``help`` prints the names. A module's name (``+braze.capture.dispatch.announce``, or a package's) means whatever is
logged from there. Warnings that matter to a user are given once per cause.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path

from braze.support import trace
from braze.support.caches import Latest
from braze.support.errors import UserError

#: subject -> what it prints
SUBJECTS = {
    "capture": "frames captured, with their graphs and times",
    "bytecode": "instructions interpreted, residual code and resume functions",
    "guards": "the guards of each captured frame",
    "graph_breaks": "each graph break: code, user line, reason, what to do",
    "recompiles": "which guard failed, old and new value",
    "graph": "the torch-level graph",
    "aot": "the ATen graph before and after functionalization",
    "lowering": "the loop program",
    "fallbacks": "operators that run through ATen for want of a lowering",
    "schedule": "which loops were fused, and why not",
    "fusion": "each fusion tried, with its score",
    "memory": "the memory plan",
    "output_code": "the host module and its kernels",
    "kernels": "kernels built or fetched from the cache",
    "cache": "cache hits and misses, with the part of the key that changed",
    "cudagraphs": "graphs recorded again, cut, or left unrecorded, and why",
    "serving": "modes and sizes of serving, what was changed of them, and recordings that came to nothing",
    "perf": "seconds by stage",
}

#: where braze's modules are, and their names' first part
_HOME, _PACKAGE = Path(__file__).resolve().parents[1], "braze"
#: modules (or packages) named in BRAZE_LOGS -> level
_modules: dict[str, int] = {}
#: levels of the subjects as they were asked for, where modules are named too
_levels: dict[str, int] = {}
#: causes of the warnings that have been given
_seen: Latest[bool] = Latest(10_000)
_listeners: list[Callable[[str], None]] = []


class _Shown(logging.Handler):
    """Messages on stderr as it is when they are told: notebooks, and what captures output for a while, put another in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if sys.stderr is not None:  # a program without a console has none
                sys.stderr.write(f"{self.format(record)}\n")
                sys.stderr.flush()
        except Exception:
            self.handleError(record)


def logger(subject: str) -> logging.Logger:
    """The logger of one subject of :data:`SUBJECTS`."""
    if subject not in SUBJECTS:
        raise KeyError(f"unknown log subject {subject!r}; known: {', '.join(SUBJECTS)}")
    return logging.getLogger(f"braze.{subject}")


def show_code(name: str, suffix: str, text: str) -> None:
    """Dump and log kernels that belong to no graph's host module."""
    trace.dump(name, suffix, text)
    logger("output_code").info("%s", text)


def warn(message: str, subject: str = "capture") -> None:
    """Log ``message`` as a warning, each time."""
    _hear(message)
    logger(subject).warning("%s", message, stacklevel=2)


def warn_once(cause: object, message: str, subject: str = "capture") -> bool:
    """Log ``message`` as a warning the first time ``cause`` (any hashable) is seen."""
    _hear(message)
    if not _seen.enter(cause, True):
        return False
    logger(subject).warning("%s", message)
    return True


@contextlib.contextmanager
def listen(listener: Callable[[str], None]) -> Iterator[None]:
    """Call ``listener`` with each warning given inside the block, also where the user has been told before or has turned it off."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _hear(message: str) -> None:
    for listener in tuple(_listeners):
        listener(message)


def forget_warnings() -> None:
    """Let every once-only warning be given again, as ``braze.reset`` does among other things."""
    _seen.cache_clear()


def configure(spec: str | None = None) -> None:
    """Set the subjects' levels from ``spec`` (default: the environment's BRAZE_LOGS)."""
    spec = os.environ.get("BRAZE_LOGS", "") if spec is None else spec
    root = logging.getLogger("braze")
    if not root.handlers:
        handler = _Shown()
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        root.addHandler(handler)
        root.setLevel(logging.WARNING)
        root.propagate = False
    for word in filter(None, (w.strip() for w in spec.split(","))):
        if word == "help":
            print(subjects_help(), file=sys.stderr)
            continue
        sign, name = (word[0], word[1:]) if word[0] in "+-" else ("", word)
        level = {"+": logging.DEBUG, "-": logging.CRITICAL, "": logging.INFO}[sign]
        if is_module(name):
            _modules[name] = level
            continue
        for subject in SUBJECTS if name in ("all", _PACKAGE) else (name,):
            if subject not in SUBJECTS:
                near = get_close_matches(subject, SUBJECTS, 1)
                hint = f"did you mean {near[0]!r}?" if near else "BRAZE_LOGS=help lists the names"
                raise UserError("BZ0004", f"unknown log subject {subject!r} in BRAZE_LOGS", hints=[hint])
            logging.getLogger(f"braze.{subject}").setLevel(level)
            _levels.pop(subject, None)
    if _modules:
        listen_to_modules(root)


def is_module(name: str) -> bool:
    """Whether a word names a module or package of braze."""
    first, _, rest = name.partition(".")
    place = _HOME.joinpath(*rest.split("."))
    return first == _PACKAGE and bool(rest) and (place.is_dir() or place.with_suffix(".py").is_file())


def listen_to_modules(root: logging.Logger) -> None:
    """Let every subject through to the handlers, and there only what was asked for."""
    lowest = min(_modules.values())
    for subject in SUBJECTS:
        found = logger(subject)
        _levels.setdefault(subject, found.getEffectiveLevel())
        found.setLevel(min(lowest, _levels[subject]))
    for handler in root.handlers:
        if is_wanted not in handler.filters:
            handler.addFilter(is_wanted)


def is_wanted(record: logging.LogRecord) -> bool:
    """Whether a message's subject is on, or the module that it comes from; the longest name decides."""
    place = Path(record.pathname)
    if place.is_relative_to(_HOME):
        module = ".".join((_PACKAGE, *place.relative_to(_HOME).with_suffix("").parts))
        for end in range(module.count(".") + 1, 1, -1):
            level = _modules.get(".".join(module.split(".")[:end]))
            if level is not None:
                return record.levelno >= level
    return record.levelno >= _levels.get(record.name.partition(".")[2], logging.WARNING)


def subjects_help() -> str:
    """The table that ``BRAZE_LOGS=help`` prints."""
    width = max(map(len, SUBJECTS))
    rows = [f"  {n:<{width}}  {t}" for n, t in SUBJECTS.items()]
    return "\n".join(["BRAZE_LOGS subjects (or modules, as braze.capture.dispatch.announce):", *rows])
