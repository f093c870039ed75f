"""The pause of the garbage collector, in a process with few objects: to look through the tests' own takes seconds each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("collector_cases.py")


def test_the_pause_of_the_collector() -> None:
    """Each case is a test of its own there."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", str(CASES)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, cwd=CASES.parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{CASES.read_text().count('def test_')} passed" in done.stdout
