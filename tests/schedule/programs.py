"""Loop programs made by hand, and their schedules run by the interpreter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from braze.context import CompileContext
from braze.loops.ir import (
    Axis,
    Buffer,
    BufferKind,
    BufferView,
    DType,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    ReduceKind,
    Reduction,
    Step,
    Store,
    TemplateCall,
)
from braze.options import Options
from braze.schedule import schedule
from braze.schedule.facts.records import Schedule
from braze.symbolic.expr import ZERO, Expr, as_expr, axis_symbol
from braze.target import Target
from tests.loops.interpret import interpret

F32 = DType.F32
CPU = Target("cpu", "x86-64-avx2", (), 32, 2)


def context(**options: object) -> CompileContext:
    return CompileContext(Options(verify=2, **options), CPU)  # type: ignore[arg-type]


def axes(letter: str, *extents: int | Expr) -> tuple[Axis, ...]:
    """Axes i0, i1, ... of some extents."""
    return tuple(Axis(axis_symbol(f"{letter}{k}", e), as_expr(e)) for k, e in enumerate(extents))


def strides(sizes: Sequence[int | Expr]) -> tuple[Expr, ...]:
    """Row-major strides."""
    out: list[Expr] = []
    step = as_expr(1)
    for size in reversed(sizes):
        out.append(step)
        step = step * size
    return tuple(reversed(out))


def at(over: Sequence[Axis], steps: Sequence[int | Expr]) -> Expr:
    """The index of a point."""
    total: Expr = ZERO
    for axis, stride in zip(over, steps, strict=True):
        total = total + axis.symbol * stride
    return total


def load(buffer: str, index: Expr, dtype: DType = F32) -> Node:
    return Node(Op.LOAD, dtype, (), (buffer, index))


def call(op: Op, *args: Node, dtype: DType = F32) -> Node:
    return Node(op, dtype, args)


def reduced(k: int = 0, dtype: DType = F32) -> Node:
    return Node(Op.REDUCED, dtype, (), k)


class Builder:
    """Collects buffers and steps; names steps after the buffers they write."""

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Step] = []

    def buffer(self, name: str, sizes: Sequence[int | Expr], kind: BufferKind = BufferKind.TEMPORARY) -> str:
        shape = tuple(map(as_expr, sizes))
        self.buffers[name] = Buffer(name, F32, shape, strides(shape), "cpu", kind)
        return name

    def input(self, name: str, *sizes: int | Expr) -> str:
        return self.buffer(name, sizes, BufferKind.INPUT)

    def point(self, out: str, over: tuple[Axis, ...], value: Node, index: Expr | None = None) -> str:
        """A pointwise step into a new buffer shaped as its axes (or an existing one)."""
        if out not in self.buffers:
            self.buffer(out, [a.extent for a in over])
        where = at(over, strides([a.extent for a in over])) if index is None else index
        self.steps.append(LoopNest(f"s_{out}", over, (), (), (Store(out, where, value),), "cpu", (out,)))
        return out

    def reduce(
        self, out: str, over: tuple[Axis, ...], rows: tuple[Axis, ...], kind: ReduceKind, value: Node
    ) -> str:
        """A reduction into a new buffer shaped as its parallel axes."""
        self.buffer(out, [a.extent for a in over])
        store = Store(out, at(over, strides([a.extent for a in over])), reduced())
        self.steps.append(
            LoopNest(f"s_{out}", over, rows, (Reduction(kind, F32, value),), (store,), "cpu", (out,))
        )
        return out

    def gemm(self, out: str, a: str, b: str, m: int, k: int, n: int) -> str:
        self.buffer(out, (m, n))
        over = axes("m", m, n)
        views = (_view(a, (m, k)), _view(b, (k, n)))
        store = Store(out, at(over, (n, 1)), reduced())
        self.steps.append(TemplateCall(f"s_{out}", "gemm", views, over, (store,), True, "cpu", (out,)))
        return out

    def program(self, *outputs: str) -> LoopProgram:
        """The program; output buffers become kind OUTPUT unless they are inputs."""
        made = []
        for b in self.buffers.values():
            if b.name in outputs and b.kind is BufferKind.TEMPORARY:
                b = dataclasses.replace(b, kind=BufferKind.OUTPUT)
            made.append(b)
        inputs = tuple(b.name for b in made if b.kind is BufferKind.INPUT)
        written = {s.buffer for step in self.steps if isinstance(step, LoopNest) for s in step.stores}
        views = tuple(
            BufferView(n, self.buffers[n].sizes, self.buffers[n].strides, ZERO, F32) for n in outputs
        )
        mutated = tuple(n for n in inputs if n in written)
        return LoopProgram("test", tuple(made), tuple(self.steps), inputs, views, mutated)


#: elements of the buffers of :func:`elementwise`
SIZE = 64


def elementwise(**values: Callable[[Expr], Node]) -> LoopProgram:
    """Buffers made one after the other from ``x`` or each other, by their value at an index; the last is the output."""
    b = Builder()
    b.input("x", SIZE)
    over = axes("i", SIZE)
    for name, value in values.items():
        b.point(name, over, value(over[0].symbol))
    return b.program(*list(values)[-1:])


def reversed_(buffer: str) -> Callable[[Expr], Node]:
    """A buffer read from its end, which keeps what makes it and what reads it two kernels."""
    return lambda i: load(buffer, SIZE - 1 - i)


def _view(name: str, sizes: Sequence[int]) -> BufferView:
    return BufferView(name, tuple(map(as_expr, sizes)), strides(sizes), ZERO, F32)


def scheduled(program: LoopProgram, **options: object) -> Schedule:
    return schedule(program, context(**options))


def as_program(s: Schedule) -> LoopProgram:
    """The schedule as a program again: its groups' steps, in order."""
    steps: list[Step] = []
    for group in s.groups:
        steps += [group.call] if group.call is not None else group.steps
    return dataclasses.replace(s.program, steps=tuple(steps))


def run(program: LoopProgram, seed: int = 0) -> list[torch.Tensor]:
    """Outputs and mutated inputs for random inputs."""
    gen = torch.Generator().manual_seed(seed)
    inputs = [
        torch.randn([int(e.value or 0) for e in program.buffer(n).sizes], generator=gen)
        for n in program.inputs
    ]
    outputs = interpret(program, inputs)
    return [*outputs, *(inputs[program.inputs.index(n)] for n in program.mutated)]
