"""Products with few results and a long sum, in parts of the sum: a batch of products, one a part, and a loop that adds them.

Few tiles of results keep few multiprocessors busy, each for the whole of the sum. Parts are products of their own, in float32; what follows
a product follows their sum, in the loop that takes it. They are added in their order, so that a result is the same each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from braze.loops import build
from braze.loops.ir import (
    Axis,
    Buffer,
    BufferKind,
    BufferView,
    DType,
    LoopNest,
    LoopProgram,
    ReduceKind,
    Reduction,
    Step,
    Store,
    TemplateCall,
)
from braze.products import DeviceProduct, Way, parts_of
from braze.symbolic.expr import ONE, ZERO, Expr, Integer, axis_symbol, linear


def sums_in_parts(program: LoopProgram, known: Mapping[DeviceProduct, Way], cores: int) -> LoopProgram:
    """The program with the products of a GPU in parts for which that was measured to be quicker."""
    if Way.PARTS not in known.values():
        return program
    steps: list[Step] = []
    made: list[Buffer] = []
    for step in program.steps:
        product = product_of_call(step) if isinstance(step, TemplateCall) else None
        count = 1 if product is None or known.get(product) is not Way.PARTS else parts_of(product, cores)
        if count == 1 or not isinstance(step, TemplateCall):
            steps.append(step)
            continue
        template, added, buffer = in_parts(step, count)
        steps += [template, added]
        made.append(buffer)
    return dataclasses.replace(program, buffers=(*program.buffers, *made), steps=tuple(steps))


def product_of_call(call: TemplateCall) -> DeviceProduct | None:
    """The product of two matrices that a call computes on a GPU; None where it is another, or its sizes only a call tells."""
    if call.kind != "gemm":
        return None
    left, right, *others = call.args
    rows, inner, columns = left.sizes[0].value, left.sizes[-1].value, right.sizes[-1].value
    if call.device == "cpu" or call.batch is not None or call.prologue or others:
        return None
    return (
        None
        if None in (rows, inner, columns)
        else DeviceProduct(left.dtype.label, rows, inner or 0, columns or 0)
    )


def in_parts(call: TemplateCall, count: int) -> tuple[TemplateCall, LoopNest, Buffer]:
    """The products of so many parts of a sum, the loop that adds them, and the buffer between the two."""
    left, right = call.args
    part = Axis(axis_symbol("part", Integer(count)), Integer(count))
    size = left.sizes[1] // count
    sizes = (part.extent, *(a.extent for a in call.axes))
    strides: tuple[Expr, ...] = (sizes[1] * sizes[2], sizes[2], ONE)
    buffer = Buffer(f"{call.name}_parts", DType.F32, sizes, strides, call.device, BufferKind.TEMPORARY)
    index = linear([ZERO if a.extent is ONE else a.symbol for a in (part, *call.axes)], strides, ZERO)
    template = dataclasses.replace(
        call,
        name=f"{call.name}_part",
        args=(
            BufferView(
                left.buffer, (part.extent, left.sizes[0], size), (size * left.strides[1], *left.strides), left.offset, left.dtype,
            ),
            BufferView(
                right.buffer, (part.extent, size, right.sizes[1]), (size * right.strides[0], *right.strides), right.offset, right.dtype,
            ),
        ),
        axes=(part, *call.axes),
        epilogue=(Store(buffer.name, index, build.reduced(0, DType.F32)),),
        constant_b=False,
    )  # fmt: skip
    total = Reduction(ReduceKind.SUM, DType.F32, build.load(buffer.name, DType.F32, index))
    added = LoopNest(
        f"{call.name}_sum", call.axes, (part,), (total,), call.epilogue, call.device, call.ops, call.origin
    )
    return template, added, buffer
