"""Control-flow operators, and functions that other compilers were told about, give what eager gives."""

from __future__ import annotations

import pytest

import braze
from tests.end_to_end import corpus_control_flow
from tests.end_to_end.conformance import observe, scenarios_of


@pytest.mark.parametrize("name", scenarios_of(corpus_control_flow))
def test_control_flow(name: str) -> None:
    braze.reset()
    expected = observe(name, lambda fn: fn)
    seen = observe(name, lambda fn: braze.compile(fn, backend="eager"))
    for ours, theirs in zip(seen, expected, strict=True):
        assert ours == theirs
