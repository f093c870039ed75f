"""What happened in one compile: seconds by stage, counters, dumps.

The current trace is the one ambient variable of the compiler, and it is for observation only:
no stage may decide anything by it. ``stage("lower")`` times a block into every active trace;
``count("kernels_built")`` counts; ``dump("loops", "py", text)`` writes a numbered file under
``BRAZE_DUMP``, or under the folder of a block ``dumping_to(folder)``.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

#: process-wide counters, never reset but by reset_counters(); tests assert on them
COUNTERS: Counter[str] = Counter()
#: process-wide seconds by stage, self time only (a nested stage's time is not its parent's)
SECONDS: Counter[str] = Counter()

_muted: contextvars.ContextVar[bool] = contextvars.ContextVar("braze_muted", default=False)
_folder: contextvars.ContextVar[str] = contextvars.ContextVar("braze_dump_folder", default="")
_lock = threading.Lock()
_open: contextvars.ContextVar[tuple[_Stage, ...]] = contextvars.ContextVar("braze_stages", default=())
_listeners: list[Callable[[str, float], None]] = []
_numbers = itertools.count(1)


class _Stage:
    __slots__ = ("inner", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.inner = 0.0


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Time a block as stage ``name``; nested stages' time is taken out of the outer one's."""
    outer = _open.get()
    this = _Stage(name)
    token = _open.set((*outer, this))
    for listener in tuple(_listeners):
        listener(name, -1.0)
    start = time.perf_counter()
    try:
        yield
    finally:
        spent = time.perf_counter() - start
        _open.reset(token)
        if outer:
            outer[-1].inner += spent
        with _lock:
            SECONDS[name] += spent - this.inner  # type: ignore[assignment]  # Counter is typed for ints
        for listener in tuple(_listeners):
            listener(name, spent)


def count(name: str, by: int = 1) -> None:
    """Add to a process-wide counter."""
    if _muted.get():
        return
    with _lock:
        COUNTERS[name] += by


@contextlib.contextmanager
def listen(listener: Callable[[str, float], None]) -> Iterator[None]:
    """Call ``listener(stage, seconds)`` at each stage's start (seconds -1) and end, for progress lines."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def snapshot() -> tuple[Counter[str], Counter[str]]:
    """Copies of (counters, seconds), to subtract later ones from."""
    with _lock:
        return Counter(COUNTERS), Counter(SECONDS)


def reset_counters() -> None:
    """Set all counters and seconds to zero (``braze.reset``)."""
    with _lock:
        COUNTERS.clear()
        SECONDS.clear()


def dumping() -> bool:
    """Whether files are asked for, by BRAZE_DUMP or a block; ask before building a costly text."""
    return bool(_dump_folder())


@contextlib.contextmanager
def dumping_to(folder: Path | None) -> Iterator[None]:
    """What this thread dumps inside goes to ``folder``; to None: as outside."""
    token = _folder.set(_folder.get() if folder is None else str(folder))
    try:
        yield
    finally:
        _folder.reset(token)


def _dump_folder() -> str:
    return _folder.get() or os.environ.get("BRAZE_DUMP", "")


def dump(name: str, suffix: str, text: str) -> Path | None:
    """Write ``text`` as the next numbered file ``0007_name.suffix`` where files are asked for."""
    folder = _dump_folder()
    if not folder:
        return None
    path = Path(folder) / f"{next(_numbers):04d}_{name}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


_collectors: list[list[tuple[str, object]]] = []


def collecting() -> bool:
    """Whether anybody collects events; ask before making a costly one."""
    return bool(_collectors)


def emit(kind: str, payload: object) -> None:
    """Hand an event to every collector: "capture", "break", "recompile", "frame", "compiled", "fallback", "aten", "skipped", "work", "built"."""
    if _muted.get():
        return
    for events in tuple(_collectors):
        events.append((kind, payload))


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Nothing is counted or emitted inside: for work that is only tried."""
    token = _muted.set(True)
    try:
        yield
    finally:
        _muted.reset(token)


@contextlib.contextmanager
def collect() -> Iterator[list[tuple[str, object]]]:
    """A list that fills with the (kind, payload) events emitted inside the block (``braze.explain``)."""
    events: list[tuple[str, object]] = []
    _collectors.append(events)
    try:
        yield events
    finally:
        # by identity: two collectors with equal contents must not take each other's place
        _collectors[:] = [c for c in _collectors if c is not events]
