"""Files of failures: each runs alone, ``python fuzz-failures/tensors-17.py``, and ends with 1 while the bug is there."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.fuzz.machine import ALONE, MACHINES, Finding

ROOT = Path(__file__).resolve().parents[2]


def text(name: str, program: Any, found: Finding | None, found_by: str) -> str:
    """The file of one failure."""
    told = f"{found.kind}: {found.text}" if found else "fails only after the programs before it"
    torch = metadata.version("torch")
    environment = {**ALONE, **MACHINES[name].environment}
    said = "".join(f"# {line}\n" for line in told.strip().split("\n"))
    return f"""{said}#
# found by {found_by}
# with torch {torch}, Python {platform.python_version()}

import sys

sys.path.insert(0, {str(ROOT)!r})

from tests.fuzz import failures

if __name__ == "__main__":
    failures.in_environment({environment!r})

{program.source().rstrip()}


if __name__ == "__main__":
    failures.tell(check)
"""


def in_environment(wanted: Mapping[str, str]) -> None:
    """Start this program again where its environment is another: memory is poisoned from the first block on."""
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.argv])


def tell(check: Callable[[], Finding | None]) -> None:
    """Say what is wrong with the program of this file, and leave with 1; or 0 if nothing is."""
    found = check()
    print(f"{found.kind}: {found.text}" if found else "nothing is wrong")
    sys.exit(found is not None)
