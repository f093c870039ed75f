"""Loops cut where a condition on the vectors' axis changes: each part computes what the whole does."""

import operator

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import braze
from braze.codegen.c.segments import segments
from braze.loops import build
from braze.loops.ir import Axis, DType, LoopNest, Node, Op, Store
from braze.symbolic.expr import Integer, axis_symbol

_LENGTH = 9
_AXIS = Axis(axis_symbol("i0", _LENGTH), Integer(_LENGTH))
_TWO = {
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.AND: operator.and_,
}


def _numbers() -> st.SearchStrategy[Node]:
    """Multiples of the axis, constants, and choices between them."""
    place = st.builds(
        lambda a, b: build.index(_AXIS.symbol * a + b), st.integers(-2, 2), st.integers(-12, 12)
    )
    constant = st.integers(-12, 12).map(lambda n: build.const(n, DType.I64))
    leaves = st.one_of(place, constant)
    return st.recursive(
        leaves, lambda inner: st.builds(build.where, _conditions(inner), inner, inner), max_leaves=4
    )


def _conditions(numbers: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    op = st.sampled_from([Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE])
    return st.builds(build.binary, op, numbers, numbers)


def _nest(condition: Node) -> LoopNest:
    value = build.where(condition, build.const(1.0, DType.F32), build.const(0.0, DType.F32))
    store = Store("buf0", _AXIS.symbol, value)
    return LoopNest("n", (_AXIS,), (), (), (store,), "cpu")


def _at(n: Node, k: int) -> float:
    """What a node is at a place."""
    if n.op is Op.INDEX:
        return n.attr.subs({_AXIS.symbol: Integer(k)}).value
    if n.op is Op.CONST:
        return n.attr
    args = [_at(a, k) for a in n.args]
    if n.op is Op.NOT:
        return not args[0]
    return args[1 if args[0] else 2] if n.op is Op.WHERE else _TWO[n.op](*args)


@settings(max_examples=100, deadline=None)
@given(st.recursive(_conditions(_numbers()), lambda c: st.builds(build.both, c, c), max_leaves=3))
def test_each_part_of_a_loop_computes_what_the_whole_does(condition):
    whole = _nest(condition)
    parts = segments((whole,), _AXIS)
    assert [k for part in parts for k in range(part.low, part.high)] == list(range(_LENGTH))
    for part in parts:
        for k in range(part.low, part.high):
            assert _at(part.steps[0].stores[0].value, k) == _at(whole.stores[0].value, k), f"at {k}"


def test_a_comparison_of_places_that_are_joined_is_that_of_each():
    def f(x, k):
        places = torch.arange(x.shape[0])
        both = torch.cat([places, places])
        return both <= k, both >= 2, torch.cat([places, places + 5]) == 6, x.repeat(2)[both <= 1]

    for sizes in ((4,), (3, 17)):
        for dynamic in (True, False):
            compiled = braze.compile(f, dynamic=dynamic)
            for n in sizes:
                x = torch.randn(n)
                for k in (0, 1, n - 1):
                    for wanted, found in zip(f(x, k), compiled(x, k), strict=True):
                        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
