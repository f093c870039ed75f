"""Exceptions raised while tracing: their tracebacks show the frames of the program, not the interpreter's.

Each interpreted frame that an exception passes adds an entry, which holds what the frame held. An exception that outlives
the trace is rebuilt with the same entries; one from outside gets them as an effect, and is as it was until then.
"""

from __future__ import annotations

import opcode
import types
import weakref
from typing import Any

from braze.capture.facts.frame import Frame, position
from braze.capture.facts.stand_ins import entry_of_trace, origin_of
from braze.capture.state.ledger import Ledger, Left, Raised
from braze.capture.state.trace import Trace
from braze.support.errors import Origin

#: instructions that go on raising without an entry of their own
SILENT = ("RERAISE", "CLEANUP_THROW")
#: the code of Python generators that drive interpreted frames (``generators``)
DRIVERS: set[types.CodeType] = set()


def about_to_raise(t: Trace, error: BaseException) -> Raised:
    """Before the program raises an exception object: its traceback is what the program sees now."""
    found = noted(t, error)
    found.traceback = error.__traceback__
    return found


def noted(t: Trace, error: BaseException) -> Raised:
    """What is known of an exception that is raised, from now on."""
    found = taken_up(t.done, error)
    if found is None:
        found = t.done.raised[id(error)] = Raised(error, t.outside.tree.node_of(error) is not None)
    return found


def thrown_in(t: Trace, error: BaseException, handled: BaseException | None) -> None:
    """An exception is thrown into a generator: its context is what the generator handles, not what its caller does."""
    noted(t, error)
    set_context(error, handled)


def known(done: Ledger, error: BaseException) -> Raised | None:
    """What is known of an exception, if the trace has raised it."""
    found = done.raised.get(id(error))
    if found is not None and found.error is error:
        return found
    top = own_entry(error.__traceback__)
    left = done.left_by(top) if top is not None else None
    return (
        left.raised if left is not None and left.raised is not None and left.raised.before is None else None
    )


def taken_up(done: Ledger, error: BaseException) -> Raised | None:
    """What is known of an exception that is on its way again, with its traceback."""
    found = known(done, error)
    if found is not None and found.error is None:
        done.raised[id(error)] = found
        found.error, found.traceback = error, own_entry(error.__traceback__)
    return found


def own_entry(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """The first entry that the trace has made, behind those of the tracer's own frames."""
    while traceback is not None and origin_of(traceback) is None:
        traceback = traceback.tb_next
    return traceback


def settle(done: Ledger, found: Raised) -> None:
    """An exception has the traceback that the program sees, by which it is known from now on."""
    error = found.error
    assert error is not None
    error.__traceback__ = found.traceback
    if found.before is None and own_entry(found.traceback) is not None:
        found.error = found.traceback = None
        done.raised.pop(id(error), None)


def passing(t: Trace, f: Frame, error: BaseException) -> Raised:
    """An exception goes through a frame: one more entry in its traceback."""
    found = taken_up(t.done, error)
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
            begin = unbegun.decoded.origin(opcode_of(unbegun, "RETURN_GENERATOR"))
            add_entry(t.done, found, begin, unbegun.locals)
        let_go_of_frames(t, error)
    if not silent(f):
        add_entry(t.done, found, f.decoded.origin(f.at), f.locals)
    settle(t.done, found)
    return found


def let_go_of_frames(t: Trace, error: BaseException) -> None:
    """What code that was called for real has raised and handled before an error holds places, not its frames and the tracer's behind them."""
    before = error.__context__
    while before is not None and known(t.done, before) is None and t.outside.tree.node_of(before) is None:
        if own_entry(before.__traceback__) is before.__traceback__ is not None:
            return  # it has been here
        before.__traceback__ = places_of(before.__traceback__)
        before = before.__context__


def places_of(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback with the same places, but those of the tracer."""
    if traceback is None:
        return None
    following = places_of(traceback.tb_next)
    frame = traceback.tb_frame
    if str(frame.f_globals.get("__name__")).startswith("braze."):
        return following
    return entry_of_trace(position(frame.f_code, traceback.tb_lasti // 2), following, None)


def forget_tracer(done: Ledger, error: BaseException) -> None:
    """Take the frames of the tracer, which an exception has come through, from its traceback."""
    found = taken_up(done, error)
    if found is not None:
        settle(done, found)


def add_entry(done: Ledger, found: Raised, origin: Origin, variables: list[Any]) -> None:
    """One more entry, in front of those that an exception has."""
    left = Left(found, variables)
    found.traceback = entry_of_trace(origin, found.traceback, left)
    done.left[id(found.traceback)] = weakref.ref(left)


def held_midway(done: Ledger) -> types.GeneratorType[Any, Any, Any] | None:
    """A generator of the trace that is stopped midway and has not ended; None if there is none.

    It may be held by what no frame of the program's leads to any more: a frame that a living exception has left, an `ExitStack` there.
    """
    for made, _ in done.loose.values():
        found = made()
        if found is not None and found.gi_suspended:
            return found  # type: ignore[no-any-return]
    return None


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
    last_of(handled, error)
    error.__context__ = handled


def last_of(error: BaseException, outside: BaseException | None) -> BaseException:
    """The exception at the end of the chain of contexts that C code has given an exception; one that a caller handles is taken out of it."""
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


def rows_of(traceback: types.TracebackType | None) -> tuple[tuple[Origin, ...], Any]:
    """(places of the entries that the trace made, innermost first; what they stand in front of)."""
    rows: list[Origin] = []
    while traceback is not None and (origin := origin_of(traceback)) is not None:
        rows.append(origin)
        traceback = traceback.tb_next
    return tuple(reversed(rows)), traceback


def end(done: Ledger, left_over: list[Any]) -> None:
    """The trace is over: exceptions from outside are as they were, those of the trace hold none of its frames."""
    for error in left_over:
        if isinstance(error, BaseException):
            forget_tracer(done, error)
    for found in done.raised.values():
        found.restore()
    for reference in done.left.values():
        if (left := reference()) is not None:
            left.end()
