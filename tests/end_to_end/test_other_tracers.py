"""While another tracer is at work a compiled function is its original, and works as before when that has ended."""

from __future__ import annotations

import ast
import builtins
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

import braze
from braze import native
from braze.capture.dispatch.other_tracers import tell_of_builtins, usual_builtins
from braze.support import log
from tests.helpers import logged

PROGRAMS = Path(__file__).with_name("other_tracers.py")
NAMES = [
    node.name
    for node in ast.parse(PROGRAMS.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.decorator_list
]


@cache
def outcomes() -> dict[str, list[object]]:
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


def test_export_is_told_nothing_of_the_builtins_that_it_replaces_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program has not, and can do nothing; where the program does later, that is told."""
    model, x = braze.compile(torch.nn.Linear(4, 4)), torch.ones(2, 4)
    native.watch_builtins(vars(builtins), usual_builtins, tell_of_builtins)  # as if nothing had been told yet
    log.forget_warnings()
    with logged() as said:
        torch.export.export(model, (x,))
    assert said == []
    monkeypatch.setattr(builtins, "max", lambda *given: 0)
    with logged() as said:
        model(x)
    monkeypatch.undo()
    assert [message[:6] for message in said] == ["BZ6016"]
    assert "replaced max among" in said[0]
