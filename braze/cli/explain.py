"""``braze explain script.py`` runs a script and tells what was compiled; ``braze explain BZ1012`` explains a code."""

from __future__ import annotations

import argparse
import re
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from types import TracebackType

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
    """Run the script as ``python path arguments`` would, then print what was compiled meanwhile, also where an error ended it."""
    if not path.is_file():
        raise UserError(
            "BZ0007",
            f"{path} is neither a script nor a code such as BZ1012",
            why="it is a folder" if path.is_dir() else f"there is no such file in {Path.cwd()}",
            hints=["the path of a Python script, or BZ and four digits, as messages begin"],
        )
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
                status = _status(leave.code)
            except Exception as error:
                status = 1
                traceback.print_exception(error.with_traceback(_since(path, error.__traceback__)))
    finally:
        sys.argv = argv
        sys.path.remove(folder)
    later_counters, later_seconds = trace.snapshot()
    gather(path.name, events, later_counters - counters, later_seconds - seconds).show(Console())
    return status


def _status(left: object) -> int:
    """The exit status of a script that was left with ``left``, which is told as Python tells it."""
    if left is None or isinstance(left, int):
        return left or 0
    print(left, file=sys.stderr)
    return 1


def _since(path: Path, frames: TracebackType | None) -> TracebackType | None:
    """What Python would show of an error: the frames from the script's own on."""
    while frames is not None and frames.tb_frame.f_code.co_filename != str(path):
        frames = frames.tb_next
    return frames
