"""The exceptions of braze.

::

    BrazeError                    has a code (BZ1012), what, where, why, what to do
    ├── Unsupported               capture or a stage cannot carry this: break the graph, or fall back
    ├── UserError                 the user asked for something impossible: shown to the user as it is
    │   ├── CaptureError          an Unsupported under fullgraph=True
    │   ├── RecompileError        a compile that a stance or on_overflow="error" forbids; a RuntimeError too
    │   └── BackwardError         a backward that compiled graphs cannot run; a RuntimeError too
    └── InternalError             a broken invariant of ours: asks for the dump

Nothing catches across branches. An exception raised by the user's own code is never wrapped.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence

from braze.support.record import record


@record
class Origin:
    """A place in the user's code: 1-based line, 0-based columns in UTF-8 bytes, -1 where unknown."""

    file: str
    line: int
    column: int = -1
    end_line: int = -1
    end_column: int = -1
    function: str = ""

    def __str__(self) -> str:
        name = f" in {self.function}" if self.function else ""
        return f"{self.file}:{self.line}{name}"

    def excerpt(self) -> str:
        """The source line with carets under the expression; empty where the source is not at hand."""
        line = linecache.getline(self.file, self.line).rstrip("\n")
        if not line.strip():
            return ""
        text = line.lstrip()
        lead = len(line) - len(text)
        shown = f"    {text}"
        if self.column < 0:
            return shown
        start = len(line.encode()[: self.column].decode(errors="replace"))
        stop = len(line)
        if self.end_line in (-1, self.line) and self.end_column >= 0:
            stop = len(line.encode()[: self.end_column].decode(errors="replace"))
        return f"{shown}\n    {' ' * (start - lead)}{'^' * max(1, stop - start)}"


class BrazeError(Exception):
    """What happened, where in the user's code, why, and what to do.

    ``code`` is stable and documented (``support/codes.txt``); ``trail`` is the user's call stack,
    outermost first.
    """

    def __init__(
        self,
        code: str,
        what: str,
        *,
        why: str = "",
        hints: Sequence[str] = (),
        origin: Origin | None = None,
        trail: Sequence[Origin] = (),
    ) -> None:
        self.code = code
        self.what = what
        self.why = why
        self.hints = tuple(hints)
        self.origin = origin
        self.trail = tuple(trail)
        super().__init__(code, what)

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.what}"]
        if self.origin is not None:
            lines.append(f"  at {self.origin}")
            excerpt = self.origin.excerpt()
            if excerpt:
                lines.append(excerpt)
        if self.why:
            lines.append(f"  why: {self.why}")
        lines += [f"  do:  {hint}" for hint in self.hints]
        if len(self.trail) > 1:
            lines.append("  called from:")
            lines += [f"    {place}" for place in reversed(self.trail[:-1])]
        return "\n".join(lines)


class Unsupported(BrazeError):
    """A stage cannot carry this. Capture turns it into a graph break."""


class UserError(BrazeError):
    """The caller asked for something that cannot be."""


class CaptureError(UserError):
    """A graph break where ``fullgraph=True`` forbids one."""


class RecompileError(UserError, RuntimeError):
    """A compile where the stance or ``on_overflow`` forbids one."""


class BackwardError(UserError, RuntimeError):
    """A backward that compiled graphs cannot run."""


class InternalError(BrazeError):
    """A broken invariant inside braze; please report it with the dump (``BRAZE_DUMP=dir``)."""
