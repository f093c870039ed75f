"""A few Python programs of the machine; `python -m tests.fuzz programs` runs more."""

from __future__ import annotations

import pytest

from tests.end_to_end.conformance import Camera
from tests.fuzz.programs import machine
from tests.fuzz.programs.prelude import parameter_names


# in the last one a number that changes is the object that another place holds, and a deep copy asks for the identities of both
@pytest.mark.parametrize("seed", [2, 3, 5, 8, 8300000440])
def test_programs_do_compiled_what_they_do_in_python(seed: int) -> None:
    assert machine.check(machine.generate(seed)) is None


def test_keywords_are_named_as_parameters_of_braze() -> None:
    assert {"self", "target", "function", "options"} <= set(parameter_names())


def test_a_difference_is_seen() -> None:
    program = machine.generate(5)
    plain = machine.run(program, lambda f: f, True)
    assert plain == machine.run(program, lambda f: f, True)
    assert plain != machine.run(program, lambda f: lambda *args, **kwargs: None, True)


def test_floats_out_of_kernels_are_compared_up_to_rounding():
    """What ``tolist`` gives of a tensor has the tensor's rounding; in graphs of ATen's it has none of ours."""
    near, far = 0.08385318517684937, 0.0838
    for exact, value, alike in ((False, near, True), (False, far, False), (True, near, False)):
        assert (Camera(exact).photo([value]) == Camera(exact).photo([0.08385315537452698])) is alike
    assert Camera(False).photo(float("inf")) != Camera(False).photo(1.0)
    assert Camera(False).photo(float("nan")) == Camera(False).photo(float("nan"))
