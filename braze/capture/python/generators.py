"""Generators of interpreted functions: a real Python generator drives a frame that stops at each yield."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from typing import Any

from braze import native
from braze.capture.facts.breaks import graph_break
from braze.capture.facts.frame import Frame
from braze.capture.facts.policy import OURS
from braze.capture.outside import texts
from braze.capture.python import raised
from braze.capture.python.c_border import entered_from_c
from braze.capture.python.unwinding import catch
from braze.capture.state.trace import Interpreter, Trace


class Driver:
    """State that the generator shares with the yield instruction."""

    __slots__ = ("around", "done", "generator", "handled", "receiver")

    def __init__(self) -> None:
        self.done = False
        #: the exception that the generator itself handles, and the one that is handled where it is run
        self.handled: BaseException | None = None
        self.around: BaseException | None = None
        #: what ``yield from`` draws from, while the frame is stopped there
        self.receiver: Any = None
        #: the generator, for as long as the program has it
        self.generator: weakref.ref[Any] | None = None

    @property
    def dropped(self) -> bool:
        """Whether nobody has the generator any more: CPython clears weak references before it closes one."""
        return self.generator is not None and self.generator() is None


def start(t: Trace, f: Frame) -> Any:
    """The generator object of a call of a generator function."""
    if not f.code.co_flags & inspect.CO_GENERATOR:
        graph_break("BZ1009", "a coroutine or asynchronous generator")
    f.tail = False
    f.generator = Driver()
    made: Any = drive(t, f)  # which has a name, unlike an Iterator
    made.__name__, made.__qualname__ = f.function.__name__, f.function.__qualname__
    f.generator.generator = t.done.claim_loosely(made, f.code)
    return made


def drive(t: Trace, f: Frame) -> Iterator[Any]:
    """Run the frame to each yield; what is sent or thrown in goes on there.

    It calls nothing in Python but through ``unhooked``: C code starts it while frames are sent to the tracer.
    """
    driver = f.generator
    error: BaseException | None = None
    while True:
        result = native.unhooked(go_on, t, f, error)
        if driver.done:
            return result
        error = None
        try:
            sent = yield result
            f.stack.append(sent)
        except GeneratorExit as thrown:
            if not t.frames.live:
                raise
            if driver.dropped:  # a break could not leave the finalizer in which this runs
                t.frames.left_over.append(f)
                return None
            error = thrown
        except Exception as thrown:
            error = thrown


def go_on(t: Trace, f: Frame, error: BaseException | None) -> Any:
    """Interpret to the next yield."""
    driver = f.generator
    with entered_from_c(t.graph):
        f.entered_at = t.frames.begun_at()
        driver.around = t.frames.handled
        if driver.handled is not None:
            t.frames.handled = driver.handled
        receiver, driver.receiver = driver.receiver, None
        try:
            if error is not None and receiver is not None:
                hand_on(t, receiver, error)
            del receiver
            result = t.run(f) if error is None else resume_with(t, f, error)
        except (Exception, GeneratorExit):
            f.stack.clear()  # what the frame held is dropped with it
            raise
        finally:
            t.frames.handled, driver.around = driver.around, None
    # C code that draws from a generator (``str.join``) looks into text
    return texts.written(result) if t.graph.modes_on else result


def hand_on(t: Interpreter, receiver: Any, error: BaseException) -> None:
    """An exception comes to a frame that is stopped at ``yield from``: it is for what that draws from."""
    if not isinstance(error, GeneratorExit):
        # without the tracer's own frame, or both hold each other, and what the program has, after the break
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ is not None else None
        graph_break("BZ1009", "an exception is thrown through yield from")
    if hasattr(receiver, "close"):
        t.call(receiver.close, ())


def resume_with(t: Trace, f: Frame, error: BaseException) -> Any:
    """Raise inside the frame at its yield."""
    if isinstance(error, Exception):
        raised.thrown_in(t, error, f.generator.handled)
    f.stack.append(None)
    t.frames.stack.append(f)
    try:
        catch(t, f, error)
    finally:
        t.frames.stack.pop()
    return t.run(f)


def finish_left_over(t: Trace) -> None:
    """Run to their end the generators that the last instruction has let go of, as CPython does at that moment.

    An exception that has left a frame, and that nobody handles, holds the program's frames alone from now on, not the tracer's with all that they hold.
    """
    waiting = t.frames.left_over[:]
    t.frames.left_over.clear()
    while waiting:
        finish_one(t, waiting.pop(0))
        if t.frames.left_over:  # with the first of them others have ended, before the next
            finish_left_over(t)


def finish_one(t: Trace, left: Frame | BaseException) -> None:
    """Run a generator that the program has dropped to its end, or take the tracer's frames from an exception."""
    if isinstance(left, BaseException):
        raised.forget_tracer(t.done, left)
        return
    f = left
    try:
        go_on(t, f, GeneratorExit())
    except (GeneratorExit, StopIteration):
        return
    except Exception as error:
        graph_break("BZ1009", f"a generator that is dropped raises {type(error).__name__}")
    if not f.generator.done:
        graph_break("BZ1009", "a generator that is dropped goes on")


OURS.add(drive.__code__)
raised.DRIVERS.add(drive.__code__)
