"""The words of guard programs stand once: C has those that Python has, and each has its rules."""

from __future__ import annotations

import builtins
import dis
import inspect
from pathlib import Path
from typing import Any

import pytest

from braze.capture.guards import guard_text
from braze.native import encode, vocabulary, walk
from braze.native.calibrate import STATE_SYMBOLS
from braze.native.vocabulary import STATES, Check, Place, Step

SOURCES = Path(vocabulary.__file__).parent / "src"
MAKEFILE = Path(vocabulary.__file__).parents[2] / "Makefile"


def test_the_header_is_what_the_table_says() -> None:
    """It is written anew at each build."""
    assert (SOURCES / "vocabulary.h").read_text() == vocabulary.c_header()


def test_a_new_word_has_the_core_built_again() -> None:
    """A kind of guard is a row of the table alone: ``make test`` is to see that the core is older."""
    native = next(line for line in MAKEFILE.read_text().splitlines() if line.startswith("NATIVE :="))
    assert "braze/native/vocabulary.py" in native.split()


def test_each_check_has_a_rule_in_each_language() -> None:
    for check in Check:
        of_an_object = check.place not in (Place.LAST, Place.PROCESS)
        assert bool(check.c) is bool(check.python) is of_an_object
    assert set(walk.RULES) == {check.value for check in Check if check.python}


@pytest.mark.parametrize(
    ("room", "rules"), [(walk, walk.RULES), (guard_text, guard_text.SAYS)], ids=["rules", "texts"]
)
def test_what_a_row_calls_is_there(room: Any, rules: dict[Any, Any]) -> None:
    """Rows are text: what they call is a name of the file that reads them."""
    for rule in rules.values():
        called = {i.argval for i in dis.get_instructions(rule) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        assert called <= {*vars(room), *vars(builtins)}, called


def test_each_step_is_read_in_each_language() -> None:
    python = inspect.getsource(walk.read) + inspect.getsource(walk.of_function)
    c = (SOURCES / "read.c").read_text()
    for step in Step:
        assert f'"{step.value}"' in python or step is Step.CLOSURE
        assert f"STEP_{step.name}" in c or step is Step.CLOSURE  # what is left over


def test_states_are_numbered_as_c_has_them() -> None:
    """Of all but settings C knows by which functions of libtorch they are read."""
    assert list(STATES)[: len(STATE_SYMBOLS)] == list(STATE_SYMBOLS)
    assert set(STATES) - set(STATE_SYMBOLS) == {"setting"}


@pytest.mark.parametrize("check", [c for c in Check if c.place is Place.PROCESS], ids=lambda c: c.value)
def test_checks_of_the_process_have_no_object(check: Check) -> None:
    with pytest.raises(ValueError, match="no node 0"):
        encode.normalise([(-1, Step.LOCAL, 0)], [(0, check, True)], [], 0)
