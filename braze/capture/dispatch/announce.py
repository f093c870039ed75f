"""What is said of a capture: events, logs, dumps; the error where ``fullgraph`` forbids its graph break."""

from __future__ import annotations

import logging
from typing import Any

from braze.capture.dispatch.shared import Shared
from braze.capture.facts.records import BreakKind, Capture, GraphBreak
from braze.capture.guards.guard_text import guards_text
from braze.support import trace
from braze.support.errors import CaptureError, Unsupported
from braze.support.log import logger


def announce(capture: Capture, name: str, session: Shared, *, hooked: bool, resumed: bool) -> None:
    """Tell whoever listens; a break that another session's call has met before is told in short."""
    trace.emit("capture", capture)
    log = logger("capture")
    log.info(
        "captured %s: %d instructions, %d guards", capture.name, capture.instructions, len(capture.guards)
    )
    if logger("guards").isEnabledFor(logging.INFO):
        logger("guards").info("guards of %s\n%s", capture.name, guards_text(capture))
    if capture.graph is not None:
        logger("graph").info("graph of %s\n%s", capture.name, _LazyGraph(capture.graph))
    if trace.dumping():
        trace.dump(f"guards_{capture.name}", "txt", guards_text(capture))
    at = capture.graph_break
    if at is None:
        return
    if session.options.fullgraph and not hooked:
        raise CaptureError(
            at.code, f"graph break: {at.reason}", hints=at.hints, origin=at.origin, trail=at.trail
        )
    if at.kind is BreakKind.NEXT and resumed:
        return  # a loop that an earlier break left with its iterator outside: no news to the user
    trace.count("graph_breaks")
    trace.emit("break", at)
    place = at.code, str(at.origin)
    again = place in session.told
    session.told.add(place)
    text = f"{at.code} at {at.origin} once more, in {name}" if again else break_text(at)
    logger("graph_breaks").info("%s", text)


class _LazyGraph:
    """Prints a graph module only if a log line is really written."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def __str__(self) -> str:
        return self.graph.print_readable(print_output=False)


def break_text(at: GraphBreak) -> str:
    """A graph break as a paragraph: code, reason, the user's line, what to do."""
    return str(
        Unsupported(at.code, f"graph break: {at.reason}", hints=at.hints, origin=at.origin, trail=at.trail)
    )
