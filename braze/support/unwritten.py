"""What a graph that fails has written: noted on its error, for whoever may run the call again.

A compiled graph gives the new contents of inputs as results, or stores them itself, at a place that its code knows. Until then its inputs
hold what the caller has given: Python may run the call from its beginning, and writes, handlers and errors are those of eager.
"""

from __future__ import annotations

from typing import Any

from braze.support.raisers import is_of_program

#: on an error: whether no input was written before it was raised
_NOTE = "__braze_unwritten__"


def note_written(error: BaseException) -> None:
    """Inputs have been written by what raised this."""
    if not is_of_program(error):
        _notes(error)[_NOTE] = False


def take_back_note(error: BaseException) -> None:
    """What was written has been undone."""
    _notes(error).pop(_NOTE, None)


def note_unwritten(error: BaseException) -> bool:
    """What raised this writes inputs at its end, or at a place that is noted; whether none has been written. The program's own errors get no notes."""
    return not is_of_program(error) and bool(_notes(error).setdefault(_NOTE, True))


def is_unwritten(error: BaseException) -> bool:
    """Whether that is known of the inputs; the error has no note any more."""
    return _notes(error).pop(_NOTE, False) is True


def _notes(error: BaseException) -> dict[str, Any]:
    """Past what the error's class makes of attributes."""
    return object.__getattribute__(error, "__dict__")  # type: ignore[no-any-return]
