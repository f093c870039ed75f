"""Every stable code, for ``braze explain BZ1012`` and docs/codes.md: the table is ``codes.txt``."""

from __future__ import annotations

from pathlib import Path

from braze.support.record import record


@record
class Code:
    """What a code means: a title, what causes it, and what to do."""

    title: str
    cause: str
    remedy: str


def _read(text: str) -> dict[str, Code]:
    """Three lines for each code: the code and its title, what causes it, what to do."""
    lines = [line.strip() for line in text.splitlines() if line and not line.startswith("#")]
    rows = zip(lines[::3], lines[1::3], lines[2::3], strict=True)
    return {head[:6]: Code(head[7:], cause, remedy) for head, cause, remedy in rows}


CODES: dict[str, Code] = _read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
