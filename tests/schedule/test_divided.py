"""What vectors would look up at quotients of their places is laid out once; elsewhere it is looked up as it is written."""

from __future__ import annotations

import pytest
import torch

from braze.loops.ir import LoopNest, Op
from braze.loops.rewrite import roots, walk
from braze.schedule.rewrites.divided import laid_out_once
from tests.schedule.programs import Builder, axes, call, load, run

ROWS, CHANNELS = 64, 48


def by_groups(each=4, rows=ROWS, *, turned=False, looked=lambda j, each: j // each, size=CHANNELS):
    """out[i, j] = x[i, j] - s[j // each]; ``turned``: out lies with its rows beside each other."""
    b = Builder()
    b.input("x", rows, CHANNELS)
    b.input("s", size)
    full = axes("i", rows, CHANNELS)
    i, j = full[0].symbol, full[1].symbol
    if turned:
        b.buffer("out", (CHANNELS, rows))
    at = j * rows + i if turned else i * CHANNELS + j
    b.point("out", full, call(Op.SUB, load("x", i * CHANNELS + j), load("s", looked(j, each))), at)
    return b.program("out")


def reads(program):
    step = next(s for s in program.steps if isinstance(s, LoopNest) and s.name == "s_out")
    return {n.attr[0] for n in walk(*roots(step)) if n.op is Op.LOAD}


@pytest.mark.parametrize("each", [2, 3, 16])
def test_quotients_of_a_row_are_laid_out(each):
    program = by_groups(each)
    made = laid_out_once(program)
    assert "s" not in reads(made)
    assert torch.equal(run(made)[0], run(program)[0])


def test_remainders_are_laid_out():
    program = by_groups(looked=lambda j, each: j % each)
    made = laid_out_once(program)
    assert "s" not in reads(made)
    assert torch.equal(run(made)[0], run(program)[0])


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"rows": 8}, id="few rows read each number too seldom"),
        pytest.param({"turned": True}, id="vectors lie along the rows"),
        pytest.param({"looked": lambda j, each: j}, id="nothing is divided"),
        pytest.param({"each": 64, "looked": lambda j, each: (j + 32) // each}, id="runs are long"),
    ],
)
def test_other_places_are_read_as_they_are(how):
    program = by_groups(**how)
    assert laid_out_once(program) is program


def test_what_the_loops_write_is_read_when_they_read_it():
    """A table would hold what was there before."""
    b = Builder()
    b.input("x", ROWS * CHANNELS)
    full = axes("i", ROWS, CHANNELS)
    i, j = full[0].symbol, full[1].symbol
    at = i * CHANNELS + j
    b.point("x", full, call(Op.SUB, load("x", at), load("x", j // 4)), at)
    program = b.program("x")
    assert laid_out_once(program) is program
