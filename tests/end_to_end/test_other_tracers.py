"""While another tracer is at work a compiled function is its original, and works as before when that has ended."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).with_name("other_tracers.py")
NAMES = [
    node.name
    for node in ast.parse(PROGRAMS.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.decorator_list
]
#: what the script prints beside them, by the function's name
TOLD = "told_of_builtins"


@cache
def outcomes() -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.other_tracers"],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=PROGRAMS.parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert "BZ9" not in done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_what_another_tracer_makes_of_compiled_functions_is_what_it_makes_of_plain_ones(name: str) -> None:
    without, compiled = outcomes()[name]
    assert "Error" not in str(without)
    assert compiled == without


def test_export_is_told_nothing_of_the_builtins_that_it_replaces_itself() -> None:
    """The program has not, and can do nothing; where the program does later, that is told."""
    of_export, of_the_program = outcomes()[TOLD]
    assert of_export == []
    assert [message[:6] for message in of_the_program] == ["BZ6016"]
    assert "replaced max among" in of_the_program[0]
