"""A template's work as ATen's product and loops around it: what it is measured against, and what runs where it is not the quicker way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from braze.loops import build
from braze.loops.ir import (
    Buffer,
    BufferKind,
    BufferView,
    ExternCall,
    LoopNest,
    LoopProgram,
    Node,
    SizeSource,
    Step,
    TemplateCall,
)
from braze.loops.rewrite import with_results
from braze.schedule.dependences import accesses
from braze.symbolic.expr import ONE, ZERO, Expr, contiguous_strides, linear


def unfused(call: TemplateCall, buffers: Mapping[str, Buffer]) -> LoopProgram:
    """A program of a template's loops before, the product by ATen, the loops after. Its sizes are inputs, after the buffers."""
    found = accesses(call)
    product, right = product_apart(call)
    places = [_place(a.symbol, a.extent) for a in call.axes]
    n = call.axes[-1]

    def loaded(node: Node) -> Node:
        at = linear((*places[:-1], places[-1] + node.attr * n.extent), product.strides, ZERO)
        return build.cast(build.load(product.name, product.dtype, at), node.dtype)

    stores = tuple(with_results(s, loaded) for s in call.epilogue)
    op = "mm" if call.batch is None else "bmm"
    multiply = ExternCall(
        f"{call.name}_mm", f"aten.{op}.default", (call.args[0], right), (), (product.name,), (), f"aten.{op}.out",
        call.device, (op,), call.origin,
    )  # fmt: skip
    after = LoopNest(f"{call.name}_after", call.axes, (), (), stores, call.device, call.ops, call.origin)
    inside = [dataclasses.replace(buffers[name], kind=BufferKind.TEMPORARY) for name in sorted(call.inside)]
    given = [dataclasses.replace(buffers[name], kind=BufferKind.INPUT) for name in sorted(found.reads)]
    made = [dataclasses.replace(buffers[name], kind=BufferKind.OUTPUT) for name in sorted(found.writes)]
    outputs = tuple(b.whole() for b in made)
    every = (*given, *inside, product, *made)
    sizes = sorted(
        {s for b in every for e in (*b.sizes, *b.strides) for s in e.symbols()}, key=lambda s: s.name
    )
    inputs = (*(b.name for b in given), *("" for _ in sizes))
    sources = tuple(SizeSource(s, len(given) + k, -1) for k, s in enumerate(sizes))
    steps: tuple[Step, ...] = (*call.prologue, multiply, after)
    return LoopProgram(f"{call.name}_apart", every, steps, inputs, outputs, sizes=sources)


def _place(symbol: Expr, extent: Expr) -> Expr:
    return ZERO if extent is ONE else symbol


def product_apart(call: TemplateCall) -> tuple[Buffer, BufferView]:
    """The buffer of ATen's product, and the right-hand matrix: halves that lie side by side are one again."""
    left, first, *others = call.args
    columns = first.sizes[-1] * (1 + len(others))
    right = BufferView(first.buffer, (*first.sizes[:-1], columns), first.strides, first.offset, first.dtype)
    sizes = (*(a.extent for a in call.axes[:-1]), columns)
    name = f"{call.name}_product"
    return Buffer(
        name, left.dtype, sizes, contiguous_strides(sizes), call.device, BufferKind.TEMPORARY
    ), right
