"""Seeds whose programs are known to differ from eager, each with its reason: they are told, and do not fail a run.

One that passes is told as well, and fails the run: it is to be taken from here.
"""

from __future__ import annotations

#: (machine, seed) -> why
KNOWN: dict[tuple[str, int], str] = {}
