"""What is written part by part, in Triton's interpreter: of parts within parts each value is computed once for each place that it is asked for at."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from braze.codegen import triton as triton_code
from braze.codegen.triton.guards import guarding
from braze.loops import build
from braze.loops.ir import DType, Op
from braze.symbolic.expr import axis_symbol
from tests.codegen.triton_bench import context, interpreted, planned

I, J = axis_symbol("i", 10), axis_symbol("j", 8)


def each_part_doubled(parts, width=1):
    """Parts of a value, each of which is written with what it holds by then."""

    def function(x):
        v = x * 3
        for k in range(parts):
            part = v.narrow(0, k * width, width)
            v = torch.slice_scatter(v, part * 2, 0, k * width, (k + 1) * width)
        return v + 1

    return function


def lines(function, *inputs):
    texts = triton_code.generate(planned(function, *inputs), context())
    return sum(len(text.source.splitlines()) for text in texts)


def test_a_kernel_grows_with_its_parts_and_no_faster():
    """Two parts more added as many lines each time; each of them doubled the kernel, and 33 never ended."""
    small, middle, large = (lines(each_part_doubled(k), torch.randn(33)) for k in (8, 16, 33))
    assert large - small <= 4 * (middle - small), (small, middle, large)


def overlapping(x):
    """Parts that begin alike, and parts that have some of the last one."""
    v = x * 3
    for k in range(1, 9):
        v = torch.slice_scatter(v, v.narrow(0, 0, k) * 1.5, 0, 0, k)
    for k in range(1, 7):
        v = torch.slice_scatter(v, v.narrow(0, k, 4) - 1, 0, k, k + 4)
    return v + 1


def squares(x):
    """Parts of rows in parts of columns."""
    v = x * 3
    for k in range(5):
        rows = v.narrow(0, k, 2)
        v = torch.slice_scatter(
            v, torch.slice_scatter(rows, rows.narrow(1, k, 3) * 2, 1, k, k + 3), 0, k, k + 2
        )
    return v + 1


@pytest.mark.parametrize(
    ("function", "sizes"), [(each_part_doubled(12), (33,)), (overlapping, (11,)), (squares, (9, 11))]
)
def test_parts_within_parts_hold_what_eager_writes(function, sizes, tmp_path):
    x = torch.randn(sizes)
    _, (found,) = interpreted(function, tmp_path, x)
    assert torch.equal(found, function(x))


def guard(*comparisons):
    whole = comparisons[0]
    for comparison in comparisons[1:]:
        whole = build.both(whole, comparison)
    return guarding(whole, "t0", frozenset("x"))


def compared(op, e, number):
    return build.binary(op, build.index(e), build.const(number, DType.I64))


@pytest.mark.parametrize(
    ("op", "e", "number", "span"),
    [
        (Op.LT, I, 3, (0, 2)), (Op.LE, I, 3, (0, 3)), (Op.GT, I, 3, (4, 9)), (Op.GE, I, 3, (3, 9)), (Op.EQ, I, 3, (3, 3)),
        (Op.LT, I * -1 + 9, 3, (7, 9)), (Op.GE, I * -1 + 9, 3, (0, 6)),
    ],
)  # fmt: skip
def test_where_a_comparison_holds(op, e, number, span):
    found = guard(compared(op, e, number))
    assert found.exact and found.spans == ((I, *span),)


def test_other_comparisons_are_no_spans():
    for condition in (compared(Op.NE, I, 3), compared(Op.LT, I + J, 3), compared(Op.LT, I * 2, 3)):
        assert not guard(condition).exact
    part = guard(compared(Op.LT, I, 3), compared(Op.NE, J, 3))
    assert part.spans == ((I, 0, 2),) and not part.exact


def test_what_is_decided_of_a_part():
    part = guard(compared(Op.GE, I, 3), compared(Op.LT, I, 6))
    assert part.decided(compared(Op.LT, I, 6)) is True and part.decided(compared(Op.LT, I, 3)) is False
    assert part.decided(compared(Op.LT, I, 5)) is None and part.decided(compared(Op.LT, J, 5)) is None
    assert part.decided(compared(Op.LT, I * 8 + J, 24)) is False
    assert part.decided(build.both(compared(Op.LT, J, 5), compared(Op.EQ, I, 9))) is False
    assert part.decided(build.both(compared(Op.LT, J, 5), compared(Op.LT, I, 9))) is None


def test_a_condition_that_follows_from_another_is_no_other():
    outer, inner = guard(compared(Op.LT, I, 6)), guard(compared(Op.LT, I, 3))
    assert inner.within(outer) is inner
    crossed = guard(compared(Op.GE, I, 2)).within(outer)
    assert crossed.spans == ((I, 2, 5),) and crossed.exact
    assert not guard(compared(Op.LT, I, 3)).within(guard(compared(Op.NE, I, 3))).exact
