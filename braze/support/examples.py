"""For the codes that a user meets most: a program that provokes each, and what torch.compile calls it: ``examples.txt``.

Each program runs as it stands; a test runs it and looks for its code. ``braze explain BZ1003`` prints it.
"""

from __future__ import annotations

import re
from pathlib import Path

from braze.support.record import record


@record
class Example:
    """A program that provokes a code; the same without it, if that is short; torch.compile's name for it."""

    text: str
    instead: str = ""
    counterpart: str = ""


def _read(text: str) -> dict[str, Example]:
    """A program stands behind ``@@``, its code and the name, and what may follow it behind ``@ instead``."""
    _, *parts = re.split(r"^@@ (BZ\d{4}) ?(.*)\n", text, flags=re.M)
    found = {}
    for code, counterpart, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        program, _, instead = body.partition("@ instead\n")
        found[code] = Example(program.strip() + "\n", instead.strip(), counterpart)
    return found


EXAMPLES: dict[str, Example] = _read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
