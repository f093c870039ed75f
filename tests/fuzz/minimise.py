"""Smaller programs that fail alike, each tried in a process of its own: some die of it."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.fuzz.machine import Finding


def shorter(items: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The items without a half, a quarter, ... and without each single one, from the end."""
    size = len(items) // 2
    while size:
        for start in range(len(items) - size, -1, -size):
            yield (*items[:start], *items[start + size :])
        size //= 2
    if len(items) == 1:
        yield ()


def made_apart(generate: Callable[[int], Any], seed: int) -> Any:
    """The program of a seed, made in a fork: threads of OpenMP that were started here would be missing in each fork that checks, and waited for."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        with os.fdopen(theirs, "wb") as out:
            pickle.dump(generate(seed), out)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as said:
        program = pickle.load(said)
    os.waitpid(child, 0)
    return program


def apart(check: Callable[[Any], Finding | None], program: Any, seconds: float) -> Finding | None:
    """Check a program in a fork: a death or a hang is a finding like another."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        _answer(check, program, theirs)
    os.close(theirs)
    said, late = _read(ours, seconds)
    os.close(ours)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return Finding("hang", f"still running after {seconds:.0f} seconds")
    if os.WIFSIGNALED(status):
        return Finding("crash", f"died of {signal.Signals(os.WTERMSIG(status)).name}")
    if not said:
        return Finding("crash", f"left with status {os.waitstatus_to_exitcode(status)}")
    found = json.loads(said)
    return None if found is None else Finding(*found)


def _answer(check: Callable[[Any], Finding | None], program: Any, pipe: int) -> None:
    """In the child: check, say what was found, leave without cleaning up after the parent."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        found = check(program)
    except BaseException as error:
        found = Finding("machine", f"{type(error).__name__}: {error}")
    with os.fdopen(pipe, "w") as out:
        json.dump(None if found is None else [found.kind, found.text], out)
    os._exit(0)


def _read(pipe: int, seconds: float) -> tuple[bytes, bool]:
    """What the child writes until it closes the pipe, and whether it took too long."""
    said, end = b"", time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([pipe], [], [], max(end - time.monotonic(), 0))
        if not ready:
            return said, True
        piece = os.read(pipe, 1 << 16)
        if not piece:
            return said, False
        said += piece


def minimised(
    check: Callable[[Any], Finding | None], program: Any, seconds: float, each: float
) -> tuple[Any, Finding] | None:
    """The smallest program found that fails in the kind in which this one does; none if it passes on its own."""
    end = time.monotonic() + seconds
    found = apart(check, program, each)
    if found is None:
        return None
    at = 0
    while (better := _better(check, program, found, at, end, each)) is not None:
        program, found, at = better
    return program, found


def _better(
    check: Callable[[Any], Finding | None], program: Any, wanted: Finding, at: int, end: float, each: float
) -> tuple[Any, Finding, int] | None:
    """The first smaller program that fails alike, from the ``at``-th on: what did not help before comes last."""
    candidates = list(program.smaller())
    for i in [*range(at, len(candidates)), *range(min(at, len(candidates)))]:
        if time.monotonic() > end:
            return None
        found = apart(check, candidates[i], each)
        if found is not None and found.kind == wanted.kind:
            return candidates[i], found, i
    return None
