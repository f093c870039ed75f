"""The machine of recordings: the same program for a seed, no failure in the first seeds, and a planted bug that it finds."""

from __future__ import annotations

import pytest
import torch

from braze import native
from braze.cudagraphs.outputs import Held
from braze.cudagraphs.registry import register
from braze.support import trace
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


def test_calls_of_marked_rows_are_filled_up_and_as_eager():
    steps = tuple(("call", 0, 15, rows, 0) for rows in (3, 2, 4, 3, 3, 3))
    program = cudagraphs.Calls(0, cudagraphs.MARKED, (cudagraphs.FUNCTIONS.index(cudagraphs.tables),), steps)
    assert "marked rows" in program.tags()
    before = trace.COUNTERS["cudagraph_padded"]
    assert cudagraphs.check(program) is None
    assert trace.COUNTERS["cudagraph_padded"] - before == 3  # the first is checked instead
    assert {cudagraphs.generate(seed).option for seed in range(100)} == {0, 1, 2, cudagraphs.MARKED}


def test_results_stay_so_small_that_rounding_is_no_difference():
    most = 0.0
    for seed in range(150):
        program = cudagraphs.generate(seed)
        run, generator = (
            cudagraphs.Run(cudagraphs.FUNCTIONS, program.chosen),
            torch.Generator().manual_seed(seed),
        )
        with torch.no_grad():
            for step in program.steps:
                found = run.step(step, torch.randn(step[3], cudagraphs.WIDTH, generator=generator))
                most = max([most, *(float(x.abs().max()) for x in (*found, *run.held, run.state.weight))])
    assert 1 < most < 100


@pytest.mark.skipif(not native.native_available, reason="Python looks at outputs by another function")
def test_outputs_that_are_overwritten_are_found(monkeypatch):
    row = Held.row
    monkeypatch.setattr(Held, "row", lambda self: (*row(self)[:3], 1 << 20, 1 << 20, *row(self)[5:]))
    program = cudagraphs.Calls(0, 0, (0,), (("call", 0, 15, 3, 0),) * 8)
    found = cudagraphs.check(program)
    assert found is not None and found.kind == "differs"
