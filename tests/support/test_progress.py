"""A bar on the terminal: only where somebody looks, and never in what is counted."""

from __future__ import annotations

import io

import pytest

from braze.support.progress import shown


class Terminal(io.StringIO):
    """Standard error as a terminal has it."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_a_bar_and_the_loop_all_items(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert list(shown([3, 1, 2], "recording", True)) == [3, 1, 2]
    assert "recording" in terminal.getvalue()


@pytest.mark.parametrize(
    ("items", "progress", "error"),
    [([1], False, Terminal()), ([], True, Terminal()), ([1], True, io.StringIO())],
    ids=["not asked for", "nothing to do", "no terminal"],
)
def test_nothing_is_written_where_nobody_looks(items, progress, error, monkeypatch):
    monkeypatch.setattr("sys.stderr", error)
    assert list(shown(items, "recording", progress)) == items
    assert error.getvalue() == ""
