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
    Op,
    SizeSource,
    Step,
    Store,
    StoreMode,
    TemplateCall,
)
from braze.loops.rewrite import rewriter, walk, with_nodes, with_results
from braze.schedule.facts.dependences import accesses
from braze.schedule.rewrites.plain_copies import view_at
from braze.symbolic.expr import ONE, ZERO, Expr, contiguous_strides, linear


def unfused(call: TemplateCall, buffers: Mapping[str, Buffer]) -> LoopProgram:
    """A program of a template's loops before, the product by ATen, with a bias if one is added, and the loops after, if anything is
    left for them. Its sizes are inputs, after the buffers."""
    found = accesses(call)
    product, right = product_apart(call)
    places = [_place(a.symbol, a.extent) for a in call.axes]
    n = call.axes[-1]

    def loaded(node: Node) -> Node:
        half = node.attr if node.op is Op.REDUCED else 0
        at = linear((*places[:-1], places[-1] + half * n.extent), product.strides, ZERO)
        return build.cast(build.load(product.name, product.dtype, at), node.dtype)

    biased = _biased(call, buffers)
    stores = call.epilogue
    op = "_grouped_mm" if call.kind == "grouped" else "mm" if call.batch is None else "bmm"
    given: tuple[BufferView, ...] = (call.args[0], right, *(call.args[-1:] if call.kind == "grouped" else ()))
    if biased is not None:
        total, bias = biased
        stores = tuple(with_nodes(s, rewriter(lambda x: loaded(x) if x is total else x)) for s in stores)
        op, given = "addmm", (bias, *given)
    stores = tuple(with_results(s, loaded) for s in stores)
    whole = _whole_result(stores, product, buffers, loaded(build.reduced(0, product.dtype)))
    multiply = ExternCall(
        f"{call.name}_mm", f"aten.{op}.default", given, (), (whole or product.name,), (), f"aten.{op}.out" if op != "_grouped_mm" else "",
        call.device, (op,), call.origin,
    )  # fmt: skip
    after = LoopNest(f"{call.name}_after", call.axes, (), (), stores, call.device, call.ops, call.origin)
    inside = [dataclasses.replace(buffers[name], kind=BufferKind.TEMPORARY) for name in sorted(call.inside)]
    reads = [dataclasses.replace(buffers[name], kind=BufferKind.INPUT) for name in sorted(found.reads)]
    made = [dataclasses.replace(buffers[name], kind=BufferKind.OUTPUT) for name in sorted(found.writes)]
    outputs = tuple(b.whole() for b in made)
    every = (*reads, *inside, *([] if whole else [product]), *made)
    sizes = sorted(
        {s for b in every for e in (*b.sizes, *b.strides) for s in e.symbols()}, key=lambda s: s.name
    )
    inputs = (*(b.name for b in reads), *("" for _ in sizes))
    sources = tuple(SizeSource(s, len(reads) + k, -1) for k, s in enumerate(sizes))
    steps: tuple[Step, ...] = (*call.prologue, multiply, *([] if whole else [after]))
    return LoopProgram(f"{call.name}_apart", every, steps, inputs, outputs, sizes=sources)


def _biased(call: TemplateCall, buffers: Mapping[str, Buffer]) -> tuple[Node, BufferView] | None:
    """The one sum of the product and a row of numbers, each for a column, that all else is made of, and the row: ATen adds it as it multiplies."""
    uses = {x for s in call.epilogue for x in walk(s.value) if any(a.op is Op.REDUCED for a in x.args)}
    if call.batch is not None or call.kind != "gemm" or len(call.args) > 2 or len(uses) != 1:
        return None
    if any(s.value.op is Op.REDUCED or s.args for s in call.epilogue):
        return None
    (total,) = uses
    row = total.args[1].args[0] if total.args[-1].op is Op.CAST else total.args[-1]
    if total.op is not Op.ADD or total.args[0].op is not Op.REDUCED or row.op is not Op.LOAD or row.args:
        return None
    buffer, index = row.attr
    bias = view_at(buffers[buffer], index, call.axes[-1:])
    return None if bias is None or bias.dtype is not call.args[0].dtype else (total, bias)


def _whole_result(
    stores: tuple[Store, ...], product: Buffer, buffers: Mapping[str, Buffer], element: Node
) -> str:
    """The buffer that only takes the product as it is; empty where there is none."""
    (store, *others) = stores
    made = buffers[store.buffer]
    value = store.value
    while value.op is Op.CAST:  # to what sums are taken in, and back
        value = value.args[0]
    alike = made.dtype is product.dtype and made.sizes == product.sizes and made.strides == product.strides
    plain = value is element and element.attr[1] is store.index and store.mode is StoreMode.PLAIN
    return store.buffer if alike and plain and not others else ""


def _place(symbol: Expr, extent: Expr) -> Expr:
    return ZERO if extent is ONE else symbol


def product_apart(call: TemplateCall) -> tuple[Buffer, BufferView]:
    """The buffer of ATen's product, and the right-hand matrix: halves that lie side by side are one again."""
    left, (first, *others) = call.args[0], call.rights
    columns = first.sizes[-1] * (1 + len(others))
    right = BufferView(first.buffer, (*first.sizes[:-1], columns), first.strides, first.offset, first.dtype)
    sizes = (*(a.extent for a in call.axes[:-1]), columns)
    name = f"{call.name}_product"
    return Buffer(
        name, left.dtype, sizes, contiguous_strides(sizes), call.device, BufferKind.TEMPORARY
    ), right


def depthwise_after(call: TemplateCall, buffers: Mapping[str, Buffer]) -> tuple[LoopProgram, Buffer]:
    """A program of what follows a depthwise convolution, whose result is its first input, and the buffer of that."""
    n, *rest = call.axes
    assert call.window is not None
    h, w, c = rest if call.window.last else (*rest[1:], rest[0])
    axes = (n, c, h, w)
    sizes = tuple(a.extent for a in axes)
    order = (n, h, w, c) if call.window.last else axes
    steps = dict(zip(order, contiguous_strides(tuple(a.extent for a in order)), strict=True))
    strides = tuple(steps[a] for a in axes)
    dtype = call.args[0].dtype
    made = Buffer(f"{call.name}_convolved", dtype, sizes, strides, call.device, BufferKind.INPUT)
    at = linear(tuple(_place(a.symbol, a.extent) for a in axes), strides, ZERO)

    def loaded(node: Node) -> Node:
        return build.cast(build.load(made.name, dtype, at), node.dtype)

    stores = tuple(with_results(s, loaded) for s in call.epilogue)
    after = LoopNest(f"{call.name}_after", call.axes, (), (), stores, call.device, call.ops, call.origin)
    found = accesses(after)
    reads = [
        made if name == made.name else dataclasses.replace(buffers[name], kind=BufferKind.INPUT)
        for name in sorted(found.reads)
    ]
    results = [dataclasses.replace(buffers[name], kind=BufferKind.OUTPUT) for name in sorted(found.writes)]
    names = tuple(b.name for b in reads)
    outputs = tuple(b.whole() for b in results)
    return LoopProgram(f"{call.name}_apart", (*reads, *results), (after,), names, outputs), made
