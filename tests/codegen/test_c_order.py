"""What a kernel makes is stored before it is read, and a kernel in which it is not does not pass."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import braze
from braze.codegen.c.body import Body
from braze.codegen.c.order import made_by, require_stores_first
from braze.loops.ir import DType, Op, ReduceKind, Store
from braze.schedule.facts.records import Group, GroupKind
from braze.support.errors import InternalError
from braze.symbolic.expr import ZERO
from tests.codegen.c_bench import axis, fold, load, nest, op, result

F = DType.F32
F_ = torch.nn.functional


@pytest.mark.parametrize(
    "read",
    [
        lambda v: F_.layer_norm(v, (1,)),
        lambda v: F_.softmax(v, 1),
        lambda v: F_.cosine_similarity(v, v + 1),
        torch.trapezoid,
        lambda v: torch.remainder(v, v.sum()),
    ],
    ids=["layer_norm", "softmax", "cosine_similarity", "trapezoid", "remainder"],
)
def test_rows_of_one_element(read):
    """What a pass over a row of one element stores, a later one reads: nothing in either depends on the row."""

    def program(x):
        v = x.tanh() * 2
        return read(v), v, v.exp()

    x = torch.ones(1, 1)
    found = braze.compile(program, options={"verify": 2})(x)
    torch.testing.assert_close(found, program(x))


def steps(length: int):
    """tanh of a row, its sum, and the exponential of it all; a row of one element has one place."""
    row = axis("r0", length)
    at = row.symbol if length > 1 else ZERO
    v, total = load("v", F, at), load("total", F, 0)
    return row, (
        nest([row], [Store("v", at, op(Op.TANH, load("x", F, at)))]),
        nest([], [Store("total", ZERO, result(0, F))], [row], [fold(ReduceKind.SUM, v)]),
        nest([row], [Store("out", at, op(Op.EXP, op(Op.ADD, v, total)))]),
    )


def test_a_load_that_leaves_the_block_of_its_store_is_noticed(native_bench, monkeypatch):
    """The generator that hoists by symbols alone writes a kernel that does not pass."""
    row, made = steps(1)
    x, *outputs = (torch.ones(1) for _ in range(4))
    tensors = dict(zip(("v", "total", "out"), outputs, strict=True))
    native_bench.check(made, {"x": x}, tensors, axes=[], row_axes=[row])
    monkeypatch.setattr(Body, "_load_depth", lambda self, buffer: self._guard_depth())
    with pytest.raises(InternalError, match="BZ9067"):
        native_bench.kernel(made, {"x": x, **tensors}, axes=[], row_axes=[row])


def test_order_is_told_from_the_text(native_bench):
    """The same kernel with one load put before its store is refused."""
    row, made = steps(40)
    tensors = {n: torch.ones(1 if n == "total" else 40) for n in ("x", "v", "total", "out")}
    text = native_bench.kernel(made, tensors, axes=[], row_axes=[row])
    group = Group("n", GroupKind.PERSISTENT, made, (), (row,))
    assert made_by(group) == {"v", "total", "out"}
    require_stores_first(text, group)
    pointer = f"b{text.args.index('v')}"
    early = text.source.replace(
        "for (int64_t task", f"const float early = {pointer}[0];\n  for (int64_t task", 1
    )
    with pytest.raises(InternalError, match="reads v before"):
        require_stores_first(dataclasses.replace(text, source=early), group)
