"""Few lookups in a temporary are computed from what it is made of; where that would see something else, they stay."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.loops.ir import DType, LoopNest, Node, Op, ReduceKind
from braze.loops.rewrite import roots, walk
from braze.schedule.fusion.fusion import kept_buffers
from braze.schedule.rewrites.lookups import computed_lookups
from braze.symbolic.expr import as_expr, indirect
from tests.schedule.programs import Builder, axes, call, load, run

ROWS, WIDTH = 6, 50


def looked_up(value=None, *, limit=WIDTH, places=ROWS, width=WIDTH, between=None, checked=True, kept=False):
    """t = value(x); out[i] = t[i, place]: the place is what ``x`` holds at its first places, as a whole number from zero on."""
    b = Builder()
    b.input("x", ROWS, width)
    full = axes("i", ROWS, width)
    i, j = full[0].symbol, full[1].symbol
    at = i * width + j
    b.point("t", full, value(at) if value else call(Op.SUB, load("x", at), load("x", i)))
    if between:
        between(b, full, at)
    rows = axes("i", places)
    k = rows[0].symbol
    whole = Node(Op.CAST, DType.I64, (call(Op.ABS, load("x", k)),))
    place = Node(Op.CHECK_INDEX, DType.I64, (whole,), as_expr(limit)) if checked else whole
    found = Node(Op.LOAD, DType.F32, (place,), ("t", k * width + indirect(0)))
    b.point("out", rows, found)
    b.reduce("total", rows[:0], full, ReduceKind.SUM, load("t", at))
    return b.program("out", "total", *(["t"] if kept else []))


def reads(program):
    """What the step that looks up reads."""
    step = next(s for s in program.steps if isinstance(s, LoopNest) and s.name == "s_out")
    return {n.attr[0] for n in walk(*roots(step)) if n.op is Op.LOAD}


def rewritten(program):
    made = computed_lookups(program, kept_buffers(program))
    for ours, theirs in zip(run(made), run(program), strict=True):
        assert torch.equal(ours, theirs)
    return made


def test_few_lookups_are_computed():
    assert reads(rewritten(looked_up())) == {"x"}


def overwritten(b, full, at):
    b.point("x", full, call(Op.NEG, load("x", at)), at)


@pytest.mark.parametrize(
    "program",
    [
        looked_up(width=7, limit=7),  # as many places as are worth it not
        looked_up(limit=WIDTH - 1),  # the place may lie in another row
        looked_up(checked=False),
        looked_up(between=overwritten),
        looked_up(value=lambda at: Node(Op.CAST, DType.F32, (Node(Op.INDEX, DType.I64, (), at),))),
        looked_up(kept=True),
        looked_up(places=ROWS - 1),
    ],
    ids=[
        "many",
        "other limit",
        "unchecked",
        "overwritten",
        "a number of the place",
        "returned",
        "other rows",
    ],
)
def test_others_stay(program):
    assert "t" in reads(rewritten(program))


def loss(x, y):
    x = x - x.amax(1, keepdim=True)
    return x.exp().sum(1) - x.gather(1, y[:, None])[:, 0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_place_that_does_not_exist_is_still_an_error(dynamic):
    x, y = torch.randn(7, 40), torch.randint(0, 40, (7,))
    compiled = braze.compile(loss, dynamic=dynamic)
    torch.testing.assert_close(compiled(x, y), loss(x, y))
    for place in (40, -1, 2**40):
        y[3] = place
        with pytest.raises((IndexError, RuntimeError)):
            loss(x, y)
        with pytest.raises((IndexError, RuntimeError)):
            compiled(x, y)
