"""Compiled and eager are the same program: some four hundred small ones, compared in all that a caller can see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import braze
from braze.support.errors import CaptureError
from tests.end_to_end import (  # noqa: F401
    corpus_arrays,
    corpus_attributes,
    corpus_breaks,
    corpus_chance,
    corpus_changes,
    corpus_class_bodies,
    corpus_classes,
    corpus_definitions,
    corpus_depths,
    corpus_endings,
    corpus_exceptions,
    corpus_features,
    corpus_functions,
    corpus_generators,
    corpus_globals,
    corpus_grammar,
    corpus_granted,
    corpus_hooks,
    corpus_identity,
    corpus_known,
    corpus_language,
    corpus_library,
    corpus_modes,
    corpus_modules,
    corpus_namespaces,
    corpus_numpy,
    corpus_objects,
    corpus_records,
    corpus_seeds,
    corpus_statements,
    corpus_surroundings,
    corpus_tensor_facts,
    corpus_tensors,
    corpus_walks,
)
from tests.end_to_end.conformance import SCENARIOS, WHOLE, WITH_KERNELS, check_like_python, observe

#: What is known to differ, and why. A case that starts to pass fails here until its line is removed.
KNOWN: dict[str, str] = {}

#: Programs that catch what the data make them raise: their graphs fail where Python goes on.
CAUGHT = {
    "data_errors_after_random_numbers",
    "drawn_before_and_after_an_error_of_the_data",
    "raised_and_caught",
    "raised_in_calls",
    "seeded_at_the_end_of_what_fails",
    "seeded_before_and_after_an_error_of_the_data",
}


pytestmark = pytest.mark.usefixtures("fresh")


def cases(names: list[str]) -> list[object]:
    marks: dict[str, list[pytest.MarkDecorator]] = {name: [] for name in names}
    for name in KNOWN.keys() & marks:
        marks[name].append(pytest.mark.xfail(strict=True, reason=KNOWN[name]))
    for name in CAUGHT & marks.keys():
        marks[name].append(pytest.mark.provokes("BZ6013"))
    return [pytest.param(name, id=name, marks=marks[name]) for name in names]


@pytest.mark.parametrize("name", cases(list(SCENARIOS)))
def test_like_python(name: str) -> None:
    check_like_python(name)


@pytest.mark.parametrize("name", cases([name for name in SCENARIOS if name in WITH_KERNELS]))
def test_like_python_with_kernels(name: str) -> None:
    check_like_python(name, kernels=True)


@pytest.mark.parametrize("name", cases([name for name in SCENARIOS if name in WHOLE]))
def test_without_a_break(name: str) -> None:
    refused: list[CaptureError] = []

    def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
        whole = braze.compile(fn, backend="eager", fullgraph=True)

        def call(*args: Any) -> Any:
            try:
                return whole(*args)
            except CaptureError as error:  # the scenario would only look at it
                refused.append(error)
                raise

        return call

    observe(name, compiled)
    assert not refused, str(refused[0])
