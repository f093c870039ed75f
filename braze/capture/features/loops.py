"""``for i in range(n)`` where ``n`` changes from call to call: a loop that breaks the graph the first time has no variant for each ``n``."""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.facts.bytecode import opcodes
from braze.capture.facts.frame import Frame
from braze.capture.facts.records import Build, Constant, Recipe
from braze.capture.facts.values import Counted
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.graph.unbacked import is_unbacked
from braze.capture.python.calls import call_c
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import Trace

FEATURE = Feature()

_ITERATES, _LOOPS = opcodes("GET_ITER"), opcodes("FOR_ITER")
_NUMBERS = frozenset({int, torch.SymInt})


@FEATURE.call(range)
def counted(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``range(n)``: of a loop that it is made for, no more is asked than the loop asks."""
    kinds = set(map(type, args))
    if tail and torch.SymInt in kinds and kinds <= _NUMBERS and len(args) < 3 and not kwargs:
        if not any(map(is_unbacked, args)) and is_for_a_loop(t.frames.stack[-1]):
            return Counted(*((0, *args)[-2:]))
    return call_c(t, range, args, kwargs)


def is_for_a_loop(f: Frame) -> bool:
    """Whether all that a frame does with what it is about to get is a loop over it."""
    if f.ip >= len(f.decoded.ops):
        return False
    _, _, following, op = f.decoded.instruction(f.ip)
    return op in _ITERATES and f.decoded.instruction(following)[3] in _LOOPS


def recipe(table: RecipeTable, loop: Counted) -> Recipe:
    """Where the loop stands, as CPython's own iterator."""
    if loop.rest is not None:
        return table.reduced(loop.rest)
    over = table.add(Build("range", table.items((loop.start, loop.stop, 1))))
    parts = table.add(Constant(iter)), over
    return Build("iterator", (*parts, table.id_of(1))) if loop.begun else Build("call", parts)


FEATURE.recipes[Counted] = recipe
