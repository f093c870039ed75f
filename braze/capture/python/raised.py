"""Exceptions raised while tracing: their tracebacks show the frames of the program, not the interpreter's.

Each interpreted frame that an exception passes adds an entry. An exception that outlives the trace is rebuilt with
the same entries; one from outside gets them as an effect, and is as it was until then.
"""

from __future__ import annotations

import opcode
import types
from typing import Any

from braze.capture.facts.frame import Frame
from braze.capture.facts.tracebacks import entry
from braze.capture.state.ledger import Ledger, Raised
from braze.capture.state.trace import Trace
from braze.support.errors import Origin

#: instructions that go on raising without an entry of their own
SILENT = ("RERAISE", "CLEANUP_THROW")
#: the code of Python generators that drive interpreted frames (``generators``)
DRIVERS: set[types.CodeType] = set()


def about_to_raise(t: Trace, error: BaseException) -> Raised:
    """Before the program raises an exception object: its traceback is what the program sees now."""
    found = known(t.done, error)
    if found is None:
        found = t.done.raised[id(error)] = Raised(error, t.outside.tree.node_of(error) is not None)
    found.traceback = error.__traceback__
    return found


def thrown_in(t: Trace, error: BaseException, handled: BaseException | None) -> None:
    """An exception is thrown into a generator: its context is what the generator handles, not what its caller does."""
    if known(t.done, error) is None:
        t.done.raised[id(error)] = Raised(error, t.outside.tree.node_of(error) is not None)
    set_context(error, handled)


def known(done: Ledger, error: BaseException) -> Raised | None:
    """What is known of an exception, if the trace has raised it."""
    found = done.raised.get(id(error))
    return found if found is not None and found.error is error else None


def passing(t: Trace, f: Frame, error: BaseException) -> None:
    """An exception goes through a frame: one more entry in its traceback."""
    found = known(t.done, error)
    if found is None:
        found = t.done.raised[id(error)] = Raised(error, False)
        unbegun = unbegun_of(error.__traceback__)
        if (
            last := last_of(error, t.outside.settings.error)
        ) is not t.outside.settings.error and unbegun is None:  # C code has raised it
            set_context(last, t.frames.handled)
            found.alone = last is error and t.frames.handled is None
        if type(error).__module__ == "builtins" and "FakeTensor" in str(error.args[:1]):
            error.args = tuple(a.replace("FakeTensor", "Tensor") if type(a) is str else a for a in error.args)
        if unbegun is not None:
            add_entry(t.done, found, unbegun.decoded.origin(opcode_of(unbegun, "RETURN_GENERATOR")))
    if not silent(f):
        add_entry(t.done, found, f.decoded.origin(f.at))
    error.__traceback__ = found.traceback


def forget_tracer(done: Ledger, error: BaseException) -> None:
    """Take the frames of the tracer, which an exception has come through, from its traceback."""
    found = known(done, error)
    if found is not None:
        error.__traceback__ = found.traceback


def add_entry(done: Ledger, found: Raised, origin: Origin) -> None:
    """One more entry, in front of those that an exception has."""
    made = entry(origin, found.traceback)
    done.tracebacks[id(made)] = (made, origin, found.traceback)
    found.traceback = made


def unbegun_of(traceback: types.TracebackType | None) -> Frame | None:
    """The frame of a generator into which an exception was thrown before it began: nothing of it was interpreted."""
    last = None
    while traceback is not None:
        last, traceback = traceback, traceback.tb_next
    return last.tb_frame.f_locals["f"] if last is not None and last.tb_frame.f_code in DRIVERS else None


def opcode_of(f: Frame, name: str) -> int:
    """The index of a frame's first instruction of a kind."""
    return f.code.co_code[::2].index(opcode.opmap[name])


def set_context(error: BaseException, handled: BaseException | None) -> None:
    """What CPython does when an exception is raised while another is handled; no chain of them ends in itself."""
    if handled is None or handled is error:
        return
    at, seen = handled, {id(handled)}
    while (before := at.__context__) is not None and id(before) not in seen:
        if before is error:
            at.__context__ = None
            break
        seen.add(id(before))
        at = before
    error.__context__ = handled


def last_of(error: BaseException, outside: BaseException | None) -> BaseException:
    """The exception at the end of the chain of contexts that C code has given an exception; one that a caller handles is none of them."""
    seen = {id(error)}
    while (before := error.__context__) is not None and id(before) not in seen:
        if before is outside:
            error.__context__ = None
            break
        seen.add(id(before))
        error = before
    return error


def silent(f: Frame) -> bool:
    """Whether the instruction raises on: the frame has its entry already."""
    _, arg, _, op = f.decoded.instruction(f.at)
    name = opcode.opname[op]
    return name in SILENT or (name == "RAISE_VARARGS" and arg == 0)


def rows_of(done: Ledger, traceback: types.TracebackType | None) -> tuple[tuple[Origin, ...], Any]:
    """(places of the entries that the trace made, innermost first; what they stand in front of)."""
    rows: list[Origin] = []
    while traceback is not None:
        made = done.tracebacks.get(id(traceback))
        if made is None or made[0] is not traceback:
            break
        rows.append(made[1])
        traceback = made[2]
    return tuple(reversed(rows)), traceback
