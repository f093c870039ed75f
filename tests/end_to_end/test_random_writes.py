"""Random programs of views and writes, on arguments that may share memory, with and without gradients: see random_writes.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import braze
from tests.end_to_end.random_writes import PLACES, Step, holds, outputs_of, steps_of


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    braze.reset()


@settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(steps_of, outputs_of, st.sampled_from(sorted(PLACES)), st.booleans())
def test_a_random_program_leaves_behind_what_it_does_in_eager(
    steps: list[Step], outputs: list[int], place: str, grad: bool
) -> None:
    holds(steps, outputs, place, grad)


#: programs that once were wrong
FOUND: list[tuple[list[Step], list[int], str, bool]] = [
    ([("write mul_", 0, 0, 0)], [0], "apart", True),  # the history of a write that nothing else needs
    (
        [("view expand", 0, 0, 0), ("write fill_", 2, 0, 0)],
        [0],
        "apart",
        False,
    ),  # a write that the proof refused
    (
        [("view unfold", 0, 0, 0), ("write set_rows", 0, 2, 0)],
        [0],
        "columns",
        False,
    ),  # a view that the proof misread
    ([("write mul_by", 0, 1, 0)], [0], "overlapping", False),  # eager's error for overlapping operands
    ([("write copy_", 1, 0, 0), ("write mul_by", 0, 1, 0)], [1], "overlapping", False),
    # contents that the proof took for those of later
    ([("add", 0, 0, 0), ("write copy_", 3, 0, 0), ("write add_", 1, 0, 0)], [3], "three", False),
    ([("sin", 0, 0, 0)], [2], "windows", True),  # a result with gaps, read as one without
    ([("view transpose", 0, 0, 0)], [2], "windows", True),  # and from elsewhere
    ([("view step", 0, 0, 0), ("write out", 0, 0, 0)], [0], "apart", True),  # a view that is no operation
    # memory of an argument, with a history of its own
    ([("view detach", 1, 0, 0), ("write sub_of_sum", 2, 0, 0)], [2], "apart", True),
    (
        [("view chunk", 0, 0, 0), ("write add_", 0, 0, 0), ("view transpose", 2, 0, 0)],
        [0],
        "apart",
        True,
    ),  # a view that autograd has given up
]


@pytest.mark.parametrize("case", FOUND, ids=range(len(FOUND)))
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_what_was_found_stays_mended(case: tuple[list[Step], list[int], str, bool], backend: str) -> None:
    holds(*case, backend)
