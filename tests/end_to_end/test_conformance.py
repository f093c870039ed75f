"""Compiled and eager are the same program: some four hundred small ones, compared in all that a caller can see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import braze
from braze.support.errors import CaptureError
from tests.end_to_end import (  # noqa: F401
    corpus_arrays,
    corpus_attributes,
    corpus_breaks,
    corpus_chance,
    corpus_class_bodies,
    corpus_classes,
    corpus_definitions,
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
)
from tests.end_to_end.conformance import SCENARIOS, WHOLE, WITH_KERNELS, observe

#: What is known to differ, and why. A case that starts to pass fails here until its line is removed.
KNOWN: dict[str, str] = {}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    braze.reset()
    yield
    braze.reset()


def cases(names: list[str]) -> list[object]:
    known = {n: [pytest.mark.xfail(strict=True, reason=why)] for n, why in KNOWN.items()}
    return [pytest.param(name, id=name, marks=known.get(name, ())) for name in names]


@pytest.mark.parametrize("name", cases(list(SCENARIOS)))
def test_like_python(name: str) -> None:
    expected = observe(name, lambda fn: fn)
    seen = observe(name, lambda fn: braze.compile(fn, backend="eager"))
    for ours, theirs in zip(seen, expected):
        assert ours == theirs
    assert len(seen) == len(expected)


@pytest.mark.parametrize("name", cases([name for name in SCENARIOS if name in WITH_KERNELS]))
def test_like_python_with_kernels(name: str) -> None:
    expected = observe(name, lambda fn: fn, exact=False)
    seen = observe(name, lambda fn: braze.compile(fn), exact=False)
    for ours, theirs in zip(seen, expected):
        assert ours == theirs
    assert len(seen) == len(expected)


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
