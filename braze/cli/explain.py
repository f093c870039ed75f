"""``braze explain script.py`` runs a script and tells what was compiled; ``braze explain BZ1012`` explains a code."""

from __future__ import annotations

import argparse
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent

from braze.options import near
from braze.support import trace
from braze.support.codes import CODES
from braze.support.errors import UserError
from braze.support.examples import EXAMPLES


def run(arguments: argparse.Namespace) -> int:
    """Tell a code from a script by its form."""
    if re.fullmatch(r"[Bb][Zz]\d{4}", arguments.what):
        print(explain_code(arguments.what.upper()))
        return 0
    return explain_script(Path(arguments.what), arguments.arguments)


def explain_code(code: str) -> str:
    """The page of a code."""
    found = CODES.get(code)
    if found is None:
        raise UserError("BZ0007", f"there is no code {code}", hints=[near(code, CODES)])
    lines = [f"{code}: {found.title}", "", f"  cause: {found.cause}", f"  do:    {found.remedy}"]
    example = EXAMPLES.get(code)
    if example is not None:
        lines += ["", "for example", "", indent(example.text.rstrip(), "    ")]
        if example.instead:
            lines += ["", "instead", "", indent(example.instead.rstrip(), "    ")]
        if example.counterpart:
            lines += ["", f"with torch.compile: {example.counterpart}"]
    return "\n".join(lines)


def explain_script(path: Path, arguments: Sequence[str]) -> int:
    """Run the script as ``python path arguments`` would, then print what was compiled meanwhile."""
    if not path.is_file():
        raise UserError("BZ0007", f"{path} is neither a script nor a code such as BZ1012")
    # here, for the code pages do without torch
    from rich.console import Console

    from braze.inspect.explain import gather

    counters, seconds = trace.snapshot()
    status = 0
    argv, folder = sys.argv, str(path.parent.resolve())
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, folder)
    try:
        with trace.collect() as events:
            try:
                runpy.run_path(str(path), run_name="__main__")
            except SystemExit as leave:
                status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    finally:
        sys.argv = argv
        sys.path.remove(folder)
    later_counters, later_seconds = trace.snapshot()
    gather(path.name, events, later_counters - counters, later_seconds - seconds).show(Console())
    return status
