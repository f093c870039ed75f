"""A program that is forked from a process with PyTorch runs as one that Python is started for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes

PROGRAM = """
import os, sys
print(sys.argv, os.getcwd(), os.environ["MARK"], __name__, sys.stdin.read(), "braze" in sys.modules, len(os.listdir("/proc/self/fd")))
print("said", file=sys.stderr)
sys.exit(3)
"""


def test_it_sees_its_words_its_folder_and_its_environment_and_nothing_of_braze(tmp_path: Path) -> None:
    started = subprocess.run(
        [sys.executable, "-c", PROGRAM, "a", "b"], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "MARK": "1"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    forked = processes.run(PROGRAM, "a", "b", folder=tmp_path, MARK="1")
    assert forked.stdout == started.stdout and "__main__" in forked.stdout
    assert (forked.stderr, forked.returncode) == (started.stderr, 3) == ("said\n", 3)


def test_how_it_ends_is_told() -> None:
    failed = processes.run("1 / 0")
    assert failed.returncode == 1 and failed.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert (
        processes.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode == -signal.SIGKILL
    )
    assert processes.run("print('goes on')").stdout == "goes on\n"


def test_what_it_says_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(processes, "listeners", [heard.append])
    processes.run("import sys; print('out'); print('err', file=sys.stderr)")
    assert heard == ["out\n", "err\n"]


def test_what_python_reads_at_its_start_cannot_be_asked_for() -> None:
    with pytest.raises(AssertionError):
        processes.run("", PYTHONHASHSEED="1")
