"""What a GPU computes once and only copies is a call of ATen's, of the same values; nothing else is."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from braze import pipeline
from braze.loops.ir import DType, ExternCall, LoopNest, LoopProgram, Node, Op
from braze.schedule.rewrites.plain_copies import COPY, copied_by_aten
from braze.symbolic.expr import Expr, as_expr, axis_symbol
from tests.aot.cuda_fakes import CTX, partition_on_gpu
from tests.loops.interpret import interpret
from tests.schedule.programs import Builder, at, axes, call, load


def turned(rounded: DType | None = None, *, step: int = 1, first: int = 0) -> LoopProgram:
    """[4, 6] as [6, 4], or every ``step``-th column of it from ``first`` on."""
    b = Builder()
    b.input("w", 4, 6)
    over = axes("i", 6 // abs(step), 4)
    value = load("w", as_expr(first) + at(over, (step, 6)))
    if rounded is not None:
        b.buffer("out", [a.extent for a in over])
        b.buffers["out"] = dataclasses.replace(b.buffers["out"], dtype=rounded)
        value = Node(Op.CAST, rounded, (value,))
    b.point("out", over, value)
    program = b.program("out")
    view = dataclasses.replace(program.outputs[0], dtype=rounded or DType.F32)  # type: ignore[type-var]
    return dataclasses.replace(program, outputs=(view,))


def calls(program: LoopProgram) -> list[str]:
    return [step.target for step in program.steps if isinstance(step, ExternCall)]


@pytest.mark.parametrize(
    "program", [turned(), turned(step=2), turned(step=3, first=2), turned(DType.BF16), turned(DType.F64)]
)
def test_views_turned_cut_or_rounded_are_one_call_of_the_same_values(program):
    made = copied_by_aten(program)
    assert calls(made) == [COPY] and len(made.steps) == 1
    x = torch.randn(4, 6) * 1e3
    (got,), (want,) = interpret(made, [x]), interpret(program, [x])
    assert got.dtype is want.dtype and torch.equal(got, want)


def of_value(value: Node, *more: tuple[str, Expr]) -> LoopProgram:
    """One line of ``value`` over i0 of 24, and the same at further places."""
    b = Builder()
    b.input("w", 4, 6)
    over = axes("i", 24)
    b.point("out", over, value)
    for name, index in more:
        b.point(name, over, value, index)
    return b.program("out")


I = axis_symbol("i0", 24)


@pytest.mark.parametrize(
    "program",
    [
        turned(step=-1, first=5),  # no view of ATen's goes backwards
        of_value(call(Op.NEG, load("w", I))),
        of_value(load("w", I // 2)),
        of_value(Node(Op.CAST, DType.F32, (load("w", I, DType.I32),))),
        turned(DType.I32),  # what a number out of range becomes is not told alike
        of_value(load("w", I), ("out", I)),
    ],
    ids=["backwards", "computed", "no view", "of integers", "to integers", "in two parts"],
)
def test_what_is_no_plain_copy_stays_a_loop(program):
    assert copied_by_aten(program) == program


def model(x, w, v, scale):
    """A convolution whose weights are turned into channels-last, and a scale that is computed."""
    y = torch.nn.functional.conv2d(x, w, None, 1, 1)
    return y * torch.exp(scale.float()), torch.nn.functional.conv2d(y, v)


def test_weights_in_channels_last_cost_no_kernel_on_a_gpu():
    shapes = [(2, 1024, 16, 16), (1024, 1024, 3, 3), (2048, 1024, 3, 3), (1024, 1, 1)]
    with torch.no_grad():
        part = partition_on_gpu(
            model, [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in shapes], (1, 2, 3)
        )
        plan = pipeline.schedule_program(pipeline.lower_graph(part, CTX), CTX)
    assert plan.fixed is not None
    kinds = [g.call.target if isinstance(g.call, ExternCall) else "kernel" for g in plan.fixed.groups]
    assert sorted(kinds) == [COPY, COPY, "kernel"]
    assert not any(isinstance(step, LoopNest) and "clone" in step.ops for step in plan.fixed.program.steps)
