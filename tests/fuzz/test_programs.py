"""A few Python programs of the machine; `python -m tests.fuzz programs` runs more."""

from __future__ import annotations

import pytest

from tests.fuzz.programs import machine
from tests.fuzz.programs.prelude import parameter_names


@pytest.mark.parametrize("seed", [2, 3, 5, 8])
def test_programs_do_compiled_what_they_do_in_python(seed: int) -> None:
    assert machine.check(machine.generate(seed)) is None


def test_keywords_are_named_as_parameters_of_braze() -> None:
    assert {"self", "target", "function", "options"} <= set(parameter_names())


def test_a_difference_is_seen() -> None:
    program = machine.generate(3)
    plain = machine.run(program, lambda f: f, True)
    assert plain == machine.run(program, lambda f: f, True)
    assert plain != machine.run(program, lambda f: lambda *args, **kwargs: None, True)
