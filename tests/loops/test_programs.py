"""Programs: what simplification keeps, what the verifier refuses, what the text means."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.loops import build
from braze.loops.ir import (
    Axis,
    Buffer,
    BufferKind,
    BufferView,
    DType,
    ExternCall,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    ReduceKind,
    Reduction,
    SizeSource,
    Store,
)
from braze.loops.printer import print_node, print_program
from braze.loops.simplify import merge_axes, simplify_steps
from braze.loops.verify import verify
from braze.support.errors import InternalError
from braze.symbolic.expr import ONE, ZERO, Expr, Integer, Symbol, axis_symbol, linear
from tests.loops.interpret import BrokenProgram, interpret
from tests.loops.replay import replay


def ints(*values: int) -> tuple[Expr, ...]:
    return tuple(Integer(v) for v in values)


def buffer(name: str, sizes: tuple[int, ...], kind: BufferKind, dtype: DType = DType.F32) -> Buffer:
    strides, step = [], 1
    for n in reversed(sizes):
        strides.append(step)
        step *= max(n, 1)
    return Buffer(name, dtype, ints(*sizes), ints(*reversed(strides)), "cpu", kind)


def view(b: Buffer) -> BufferView:
    return BufferView(b.name, b.sizes, b.strides, ZERO, b.dtype)


def doubled(sizes: tuple[int, ...] = (3, 4)) -> LoopProgram:
    """out = x * 2 over one axis per dimension."""
    x, out = buffer("x", sizes, BufferKind.INPUT), buffer("out", sizes, BufferKind.OUTPUT)
    axes = tuple(Axis(axis_symbol(f"a{k}", n), Integer(n)) for k, n in enumerate(sizes))
    at = linear([a.symbol for a in axes], x.strides, ZERO)
    store = Store("out", at, build.mul(build.load("x", DType.F32, at), build.const(2.0, DType.F32)))
    nest = LoopNest("double", axes, (), (), (store,), "cpu", ("mul",))
    return LoopProgram("twice", (x, out), (nest,), ("x",), (view(out),))


def row_sums(n: int = 3, m: int = 4, kind: ReduceKind = ReduceKind.SUM) -> LoopProgram:
    x, out = buffer("x", (n, m), BufferKind.INPUT), buffer("out", (n,), BufferKind.OUTPUT)
    i, r = axis_symbol("i0", n), axis_symbol("r0", m)
    reduction = Reduction(kind, DType.F32, build.load("x", DType.F32, i * m + r))
    store = Store("out", i, build.reduced(0, DType.F32))
    nest = LoopNest(
        "rows", (Axis(i, Integer(n)),), (Axis(r, Integer(m)),), (reduction,), (store,), "cpu", ("sum",)
    )
    return LoopProgram("sums", (x, out), (nest,), ("x",), (view(out),))


# -- simplification


def test_contiguous_axes_merge_into_one() -> None:
    (nest,) = simplify_steps(doubled((3, 4, 5)).steps)
    assert isinstance(nest, LoopNest)
    assert [str(a.extent) for a in nest.axes] == ["60"]
    assert str(nest.stores[0].index) == "i0"


def test_axes_of_size_one_go() -> None:
    (nest,) = simplify_steps(doubled((1, 4, 1)).steps)
    assert isinstance(nest, LoopNest)
    assert [str(a.extent) for a in nest.axes] == ["4"]


def test_broadcast_keeps_its_axes_apart() -> None:
    i, j = axis_symbol("i0", 3), axis_symbol("i1", 4)
    store = Store("out", i * 4 + j, build.load("x", DType.F32, j))
    nest = LoopNest("b", (Axis(i, Integer(3)), Axis(j, Integer(4))), (), (), (store,), "cpu")
    assert merge_axes(nest) is nest


def test_reduce_axes_merge_among_themselves_only() -> None:
    i, r, q = axis_symbol("i0", 3), axis_symbol("r0", 4), axis_symbol("r1", 5)
    reduction = Reduction(ReduceKind.SUM, DType.F32, build.load("x", DType.F32, i * 20 + r * 5 + q))
    nest = LoopNest(
        "s", (Axis(i, Integer(3)),), (Axis(r, Integer(4)), Axis(q, Integer(5))), (reduction,),
        (Store("out", i, build.reduced(0, DType.F32)),), "cpu",
    )  # fmt: skip
    merged = merge_axes(nest)
    assert [str(a.extent) for a in merged.reduce_axes] == ["20"]
    assert len(merged.axes) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_merging_keeps_the_meaning(sizes: list[int], data: st.DataObject) -> None:
    """Any layout of input and output, with an index value thrown in."""
    order = data.draw(st.permutations(range(len(sizes))))
    strides, step = [0] * len(sizes), 1
    for d in order:
        strides[d], step = step, step * sizes[d]
    x, out = buffer("x", tuple(sizes), BufferKind.INPUT), buffer("out", tuple(sizes), BufferKind.OUTPUT)
    x = dataclasses.replace(x, strides=ints(*strides))
    axes = tuple(Axis(axis_symbol(f"a{k}", n), Integer(n)) for k, n in enumerate(sizes))
    symbols = [a.symbol for a in axes]
    value = build.load("x", DType.F32, linear(symbols, x.strides, ZERO))
    if data.draw(st.booleans()):
        value = build.add(
            value, build.index(data.draw(st.sampled_from(symbols)) * 3 + symbols[0] % 2, DType.F32)
        )
    nest = LoopNest("n", axes, (), (), (Store("out", linear(symbols, out.strides, ZERO), value),), "cpu")
    program = LoopProgram("p", (x, out), (nest,), ("x",), (view(out),))
    given_x = torch.randn(step).as_strided(sizes, strides)
    simpler = dataclasses.replace(program, steps=simplify_steps(program.steps))
    verify(simpler)
    assert torch.equal(interpret(program, [given_x])[0], interpret(simpler, [given_x])[0])


# -- the verifier


def broken(program: LoopProgram, **nest_changes: object) -> LoopProgram:
    return dataclasses.replace(program, steps=(dataclasses.replace(program.steps[0], **nest_changes),))


def store_of(program: LoopProgram, **changes: object) -> LoopProgram:
    nest = program.steps[0]
    assert isinstance(nest, LoopNest)
    return broken(program, stores=(dataclasses.replace(nest.stores[0], **changes),))


CASES = {
    "buffers_have_one_name": lambda p: dataclasses.replace(p, buffers=(*p.buffers, p.buffers[0])),
    "reads_follow_writes": lambda p: dataclasses.replace(p, inputs=(), buffers=(
        dataclasses.replace(p.buffers[0], kind=BufferKind.TEMPORARY), p.buffers[1])),
    "buffers_are_written_once": lambda p: dataclasses.replace(p, steps=p.steps * 2),
    "symbols_are_in_scope": lambda p: store_of(p, index=Symbol("elsewhere", 0, 3)),
    "accesses_are_in_bounds": lambda p: store_of(p, index=p.steps[0].stores[0].index + 1),
    "types_agree": lambda p: store_of(p, value=build.const(1, DType.I32)),
    "results_exist": lambda p: store_of(p, value=build.reduced(0, DType.F32)),
}  # fmt: skip


@pytest.mark.parametrize("rule", CASES)
def test_verifier_names_the_broken_rule(rule: str) -> None:
    program = doubled()
    verify(program)
    with pytest.raises(InternalError) as caught:
        verify(CASES[rule](program))
    assert rule in caught.value.why


def test_verifier_refuses_two_stores_at_one_place() -> None:
    program = doubled()
    (store,) = program.steps[0].stores
    with pytest.raises(InternalError) as caught:
        verify(broken(program, stores=(store, store)))
    assert "twice at one place" in caught.value.why


def test_verifier_refuses_a_reduce_axis_after_the_reduction() -> None:
    program = row_sums()
    verify(program)
    with pytest.raises(InternalError, match="BZ9002"):
        verify(store_of(program, value=build.index(axis_symbol("r0", 4), DType.F32)))


def test_verifier_refuses_arithmetic_on_half_types() -> None:
    program = doubled()
    half = build.cast(build.load("x", DType.F32, ZERO), DType.BF16)
    value = build.cast(Node(Op.ADD, DType.BF16, (half, half), None), DType.F32)
    with pytest.raises(InternalError) as caught:
        verify(store_of(program, value=value))
    assert "bf16" in caught.value.why


def test_loads_under_a_mask_may_be_anywhere() -> None:
    program = doubled()
    nest = program.steps[0]
    i = nest.stores[0].index  # type: ignore[union-attr]
    outside = build.load("x", DType.F32, i - 1)
    inside = build.binary(Op.GE, build.index(i - 1), build.index(0))
    shifted = store_of(program, value=build.masked(inside, outside, build.const(0.0, DType.F32)))
    verify(shifted)
    x = torch.arange(12.0).reshape(3, 4)
    (out,) = interpret(shifted, [x])
    assert out.flatten().tolist() == [0.0, *range(11)]
    with pytest.raises(BrokenProgram):
        interpret(store_of(program, value=outside), [x])


# -- meaning


def test_reductions_over_nothing_give_neutral_elements() -> None:
    for kind, value in (
        (ReduceKind.SUM, 0.0),
        (ReduceKind.PROD, 1.0),
        (ReduceKind.MAX, -torch.inf),
        (ReduceKind.MIN, torch.inf),
    ):
        assert interpret(row_sums(2, 0, kind), [torch.empty(2, 0)])[0].tolist() == [value] * 2


def test_online_softmax_gives_maximum_and_sum() -> None:
    program = row_sums(kind=ReduceKind.ONLINE_SOFTMAX)
    nest = program.steps[0]
    value = build.div(build.reduced(1, DType.F32), build.unary(Op.EXP, build.reduced(0, DType.F32)))
    program = broken(program, stores=(dataclasses.replace(nest.stores[0], value=value),))  # type: ignore[union-attr]
    x = torch.randn(3, 4)
    top = x.amax(1)
    assert torch.allclose(interpret(program, [x])[0], (x - top[:, None]).exp().sum(1) / top.exp())


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(BrokenProgram):
        interpret(doubled(), [torch.randn(4, 3)])


def test_stores_of_one_nest_see_the_values_before_it() -> None:
    """All values are computed before any is written."""
    x, a, b = (
        buffer(n, (4,), k)
        for n, k in (("x", BufferKind.INPUT), ("a", BufferKind.OUTPUT), ("b", BufferKind.OUTPUT))
    )
    i = axis_symbol("i0", 4)
    first = LoopNest(
        "one", (Axis(i, Integer(4)),), (), (), (Store("a", i, build.load("x", DType.F32, i)),), "cpu"
    )
    moved = build.load("a", DType.F32, i)
    both = (Store("a", i, build.add(moved, moved)), Store("b", i, moved))
    second = LoopNest("two", (Axis(i, Integer(4)),), (), (), both, "cpu")
    program = LoopProgram("p", (x, a, b), (first, second), ("x",), (view(a), view(b)))
    given_x = torch.randn(4)
    for run in (interpret, replay):
        out = run(program, [given_x])
        assert torch.equal(out[0], given_x * 2)
        assert torch.equal(out[1], given_x)


# -- the text


def test_text_of_a_program() -> None:
    program = doubled()
    assert print_program(dataclasses.replace(program, steps=simplify_steps(program.steps))) == (
        "def twice(x):\n"
        "    out = buffer('f32', (3, 4), (4, 1))  # output\n"
        "\n"
        "    # double: mul\n"
        "    for i0 in range(12):\n"
        "        out[i0] = (x[i0] * f32(2.0))\n"
        "\n"
        "    return (view(out, (3, 4), (4, 1), 0, 'f32'),)\n"
    )


def test_text_of_nodes() -> None:
    x = build.load("x", DType.F32, axis_symbol("i0", 4))
    assert print_node(build.where(build.lt(x, build.const(0.0, DType.F32)), build.unary(Op.NEG, x), x)) == (
        "where((x[i0] < f32(0.0)), (-x[i0]), x[i0])"
    )
    assert print_node(build.const(float("inf"), DType.F32)) == "f32(float('inf'))"


def test_running_the_text_is_running_the_program() -> None:
    x = torch.randn(3, 4)
    for program in (doubled(), row_sums(), row_sums(kind=ReduceKind.MAX)):
        assert torch.allclose(replay(program, [x])[0], interpret(program, [x])[0])


def test_text_of_a_thousand_operations_in_a_row() -> None:
    """None is written so far within others that Python could not read it, nor we write it."""
    program = doubled()
    (nest,) = program.steps
    assert isinstance(nest, LoopNest)
    (store,) = nest.stores
    value = store.value
    for _ in range(500):
        value = build.add(build.mul(value, build.const(0.5, DType.F32)), build.const(1.0, DType.F32))
    longer = dataclasses.replace(nest, stores=(dataclasses.replace(store, value=value),))
    program = dataclasses.replace(program, steps=(longer,))
    x = torch.arange(12.0).view(3, 4)
    expected = x * 2
    for _ in range(500):
        expected = expected * 0.5 + 1.0
    torch.testing.assert_close(replay(program, [x])[0], expected, rtol=0, atol=0)


def test_text_with_sizes_externs_and_constants() -> None:
    n = Symbol("s0", 2)
    x = Buffer("x", DType.F32, (n, Integer(2)), (Integer(2), ONE), "cpu", BufferKind.INPUT)
    y = Buffer("y", DType.F32, (n, n), (n, ONE), "cpu", BufferKind.OUTPUT)
    a, b = view(x), BufferView("x", (Integer(2), n), (ONE, Integer(2)), ZERO, DType.F32)
    call = ExternCall("product", "aten.mm.default", (a, b), (), ("y",), ops=("mm",))
    program = LoopProgram("dyn", (x, y), (call,), ("x",), (view(y), n * 2, None), (), (SizeSource(n, 0, 0),))
    verify(program)
    given_x = torch.randn(5, 2)
    for run in (interpret, replay):
        out = run(program, [given_x])
        assert torch.allclose(out[0], given_x @ given_x.t())
        assert out[1:] == (10, None)
