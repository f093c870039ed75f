"""Logging by subject: ``BRAZE_LOGS="guards,+graph_breaks,-kernels"``.

A bare name turns a subject on at INFO, ``+name`` at DEBUG, ``-name`` off; ``all`` means every
subject; ``help`` prints the names. Warnings that matter to a user are given once per cause.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from difflib import get_close_matches

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
    "perf": "seconds by stage",
}

_seen: set[object] = set()
_lock = threading.Lock()


def logger(subject: str) -> logging.Logger:
    """The logger of one subject of :data:`SUBJECTS`."""
    if subject not in SUBJECTS:
        raise KeyError(f"unknown log subject {subject!r}; known: {', '.join(SUBJECTS)}")
    return logging.getLogger(f"braze.{subject}")


def warn_once(cause: object, message: str, subject: str = "capture") -> bool:
    """Log ``message`` as a warning the first time ``cause`` (any hashable) is seen."""
    with _lock:
        if cause in _seen:
            return False
        _seen.add(cause)
    logger(subject).warning(message)
    return True


def forget_warnings() -> None:
    """Let every once-only warning be given again (``braze.reset``)."""
    with _lock:
        _seen.clear()


def configure(spec: str | None = None) -> None:
    """Set the subjects' levels from ``spec`` (default: the environment's BRAZE_LOGS)."""
    spec = os.environ.get("BRAZE_LOGS", "") if spec is None else spec
    root = logging.getLogger("braze")
    if not root.handlers:
        handler = logging.StreamHandler()
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
        for subject in SUBJECTS if name == "all" else (name,):
            if subject not in SUBJECTS:
                near = get_close_matches(subject, SUBJECTS, 1)
                hint = f"did you mean {near[0]!r}?" if near else "BRAZE_LOGS=help lists the names"
                raise UserError("BZ0004", f"unknown log subject {subject!r} in BRAZE_LOGS", hints=[hint])
            logging.getLogger(f"braze.{subject}").setLevel(level)


def subjects_help() -> str:
    """The table that ``BRAZE_LOGS=help`` prints."""
    width = max(map(len, SUBJECTS))
    return "\n".join(["BRAZE_LOGS subjects:"] + [f"  {n:<{width}}  {t}" for n, t in SUBJECTS.items()])
