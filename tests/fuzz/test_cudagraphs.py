"""The machine of recordings: the same program for a seed, no failure in the first seeds, and a planted bug that it finds."""

from __future__ import annotations

import pytest

from braze import native
from braze.cudagraphs.outputs import Held
from braze.cudagraphs.registry import register
from tests.fuzz import cudagraphs


@pytest.fixture(autouse=True)
def alone():
    yield
    cudagraphs.compiled.cache_clear()
    register("cpu", None)


def test_a_seed_makes_one_program():
    assert cudagraphs.generate(7) == cudagraphs.generate(7) != cudagraphs.generate(8)


def test_smaller_programs_are_programs():
    for smaller in cudagraphs.generate(3).smaller():
        assert len(smaller.steps) <= len(cudagraphs.generate(3).steps)
        assert eval(str(smaller), vars(cudagraphs)) == smaller


def test_the_first_seeds_are_as_eager():
    for seed in (0, 1, 2):
        assert cudagraphs.check(cudagraphs.generate(seed)) is None


@pytest.mark.skipif(not native.native_available, reason="Python looks at outputs by another function")
def test_outputs_that_are_overwritten_are_found(monkeypatch):
    row = Held.row
    monkeypatch.setattr(Held, "row", lambda self: (*row(self)[:3], 1 << 20, 1 << 20, *row(self)[5:]))
    program = cudagraphs.Calls(0, 0, (0,), (("call", 0, 15, 3, 0),) * 8)
    found = cudagraphs.check(program)
    assert found is not None and found.kind == "differs"
