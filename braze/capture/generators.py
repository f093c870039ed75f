"""Generators of interpreted functions: a real Python generator drives a frame that stops at each yield."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from braze import native
from braze.capture.breaks import graph_break
from braze.capture.crossing import OURS
from braze.capture.frame import Frame
from braze.capture.interpret import catch

if TYPE_CHECKING:
    from braze.capture.tracer import Tracer

CO_GENERATOR = 0x20


class Driver:
    """State that the generator shares with the yield instruction."""

    __slots__ = ("done", "sent")

    def __init__(self) -> None:
        self.done = False
        self.sent: Any = None


def start(t: Tracer, f: Frame) -> Any:
    """The generator object of a call of a generator function."""
    if not f.code.co_flags & CO_GENERATOR:
        graph_break("BZ1009", "a coroutine or asynchronous generator")
    f.tail = False
    f.generator = Driver()
    made = drive(t, f)
    return t.claim(made)


def drive(t: Tracer, f: Frame) -> Iterator[Any]:
    """Run the frame to each yield; what is sent or thrown in goes on there."""
    driver = f.generator
    error: BaseException | None = None
    while True:
        with t.entered_from_c():
            f.entered_at = t.steps
            if error is not None:
                thrown, error = error, None
                result = native.unhooked(resume_with, t, f, thrown)
            else:
                result = native.unhooked(t.run, f)
        if driver.done:
            return result
        try:
            driver.sent = yield result
            f.stack.append(driver.sent)
        except GeneratorExit:
            raise
        except Exception as thrown_in:
            error = thrown_in


def resume_with(t: Tracer, f: Frame, error: BaseException) -> Any:
    """Raise inside the frame at its yield."""
    f.stack.append(None)
    t.frames.append(f)
    try:
        catch(t, f, error)
    finally:
        t.frames.pop()
    return t.run(f)


OURS.add(drive.__code__)
