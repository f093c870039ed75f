"""Side effects of compiled functions are those of eager, in its order, also where an exception ends the call."""

from __future__ import annotations

import pytest

import braze
from tests.end_to_end import corpus_side_effects, corpus_torch_effects
from tests.end_to_end.conformance import observe, scenarios_of


@pytest.mark.parametrize("name", [*scenarios_of(corpus_side_effects), *scenarios_of(corpus_torch_effects)])
def test_side_effects(name: str) -> None:
    braze.reset()
    expected = observe(name, lambda fn: fn)
    seen = observe(name, lambda fn: braze.compile(fn, backend="eager"))
    for ours, theirs in zip(seen, expected, strict=True):
        assert ours == theirs


@pytest.mark.parametrize(
    "name",
    [
        "inputs_and_their_views_written",
        "an_exception_of_an_operation_half_way",
        "buffers_and_parameters_rebound",
    ],
)
def test_side_effects_with_kernels(name: str) -> None:
    braze.reset()
    expected = observe(name, lambda fn: fn, exact=False)
    seen = observe(name, lambda fn: braze.compile(fn), exact=False)
    for ours, theirs in zip(seen, expected, strict=True):
        assert ours == theirs
