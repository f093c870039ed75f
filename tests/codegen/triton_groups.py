"""Hand-made loop nests for the tests of the Triton generator."""

from __future__ import annotations

from braze.loops.ir import Axis, Buffer, BufferKind, DType, LoopNest, Node, Op, ReduceKind, Reduction, Store
from braze.schedule.facts.records import Group
from braze.symbolic.expr import as_expr, axis_symbol, contiguous_strides

F32 = DType.F32


def buffer(name, sizes, dtype=F32, kind=BufferKind.INPUT):
    sizes = tuple(as_expr(s) for s in sizes)
    return Buffer(name, dtype, sizes, contiguous_strides(sizes), "cuda:0", kind)


def read(name, index, dtype=F32):
    return Node(Op.LOAD, dtype, (), (name, as_expr(index)))


def const(x, dtype=F32):
    return Node(Op.CONST, dtype, (), x)


def softmax_group(rows, width, kind):
    """max, sum of exp, and the quotient over rows: one group of three steps."""
    i, j = axis_symbol("i", rows), axis_symbol("j", width)
    rows_axis, row_axis = (Axis(i, as_expr(rows)),), (Axis(j, as_expr(width)),)
    x = read("x", i * width + j)
    power = Node(Op.EXP, F32, (Node(Op.SUB, F32, (x, read("top", i))),))
    steps = (
        LoopNest(
            "a",
            rows_axis,
            row_axis,
            (Reduction(ReduceKind.MAX, F32, x),),
            (Store("top", i, Node(Op.REDUCED, F32, (), 0)),),
            "cuda:0",
            ("amax",),
        ),
        LoopNest("b", rows_axis + row_axis, (), (), (Store("e", i * width + j, power),), "cuda:0", ("exp",)),
        LoopNest(
            "c",
            rows_axis,
            row_axis,
            (Reduction(ReduceKind.SUM, F32, read("e", i * width + j)),),
            (Store("total", i, Node(Op.REDUCED, F32, (), 0)),),
            "cuda:0",
            ("sum",),
        ),
        LoopNest(
            "d",
            rows_axis + row_axis,
            (),
            (),
            (Store("out", i * width + j, Node(Op.DIV, F32, (read("e", i * width + j), read("total", i)))),),
            "cuda:0",
            ("div",),
        ),
    )
    return Group("triton_softmax", kind, steps, rows_axis, row_axis, ("top", "e", "total"), device="cuda:0")
