"""What becomes one kernel, and what must not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from braze.loops.ir import (
    BufferView,
    DType,
    ExternCall,
    LoopNest,
    LoopProgram,
    Op,
    ReduceKind,
    Store,
    StoreMode,
)
from braze.schedule import schedule
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.records import GroupKind
from braze.schedule.fusion import fusion
from braze.schedule.fusion.blocks import Block
from braze.schedule.fusion.legality import join
from braze.schedule.stage.verify import verify_schedule
from braze.support.errors import InternalError
from braze.symbolic.expr import Integer, Symbol, indirect
from tests.schedule.programs import (
    Builder,
    as_program,
    at,
    axes,
    call,
    context,
    load,
    run,
    scheduled,
    strides,
)


def kernels(program: LoopProgram) -> int:
    """How many groups the program's schedule has; the schedule is checked against the program."""
    plan = scheduled(program)
    for expected, found in zip(run(program), run(as_program(plan)), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    return len(plan.groups)


def softmax(b: Builder, x: str, rows: int, width: int) -> str:
    over, row = axes("i", rows), axes("r", width)
    i, r = over[0].symbol, row[0].symbol
    b.reduce("top", over, row, ReduceKind.MAX, load(x, i * width + r))
    shifted = call(Op.EXP, call(Op.SUB, load(x, i * width + r), load("top", i)))
    b.reduce("total", over, row, ReduceKind.SUM, shifted)
    full = axes("i", rows, width)
    i, j = full[0].symbol, full[1].symbol
    shifted = call(Op.EXP, call(Op.SUB, load(x, i * width + j), load("top", i)))
    return b.point("out", full, call(Op.DIV, shifted, load("total", i)))


def test_softmax_is_one_kernel() -> None:
    """Two reductions over the same row and the division after them share the row."""
    b = Builder()
    b.input("x", 32, 16)
    assert kernels(b.program(softmax(b, "x", 32, 16))) == 1


def test_add_then_softmax_is_one_kernel() -> None:
    """A pointwise producer joins the reduction, over axes of its own making."""
    b = Builder()
    b.input("x", 4, 8, 16)
    b.input("y", 4, 8, 16)
    over = axes("i", 4, 8, 16)
    index = at(over, (128, 16, 1))
    b.point("sum", over, call(Op.ADD, load("x", index), load("y", index)))
    assert kernels(b.program(softmax(b, "sum", 32, 16))) == 1


def test_steps_that_meet_once_what_stood_between_them_is_gone() -> None:
    """An exponential, too costly to repeat, and what reads it were passes apart: the one between was wanted in rows alone."""
    b = Builder()
    b.input("x", 6)
    b.input("t", 6)
    over, row = axes("i", 6), axes("r", 5)
    full = axes("i", 6, 5)
    i, r, j = over[0].symbol, row[0].symbol, full[1].symbol
    b.point("e", over, call(Op.EXP, load("x", i)))
    b.point("spread", full, call(Op.ADD, load("t", full[0].symbol), load("x", full[0].symbol)))
    b.point("square", over, call(Op.MUL, load("e", i), load("e", i)))
    b.reduce("total", over, row, ReduceKind.SUM, call(Op.MUL, load("spread", i * 5 + r), load("e", i)))
    ends = call(Op.ADD, load("total", full[0].symbol), load("square", full[0].symbol))
    value = call(
        Op.ADD, ends, call(Op.MUL, load("spread", full[0].symbol * 5 + j), load("e", full[0].symbol))
    )
    assert kernels(b.program(b.point("out", full, value))) == 1


def test_residual_and_layer_norm_is_one_kernel_that_keeps_the_sum() -> None:
    """The sum is needed again later: the kernel stores it, and still reads it only where it is made."""
    b = Builder()
    for name in "xy":
        b.input(name, 8, 16)
    b.input("scale", 16)
    full = axes("i", 8, 16)
    i, j = full[0].symbol, full[1].symbol
    b.point("sum", full, call(Op.ADD, load("x", i * 16 + j), load("y", i * 16 + j)))
    over, row = axes("i", 8), axes("r", 16)
    p, r = over[0].symbol, row[0].symbol
    b.reduce("mean", over, row, ReduceKind.SUM, load("sum", p * 16 + r))
    centred = call(Op.SUB, load("sum", p * 16 + r), load("mean", p))
    b.reduce("var", over, row, ReduceKind.SUM, call(Op.MUL, centred, centred))
    b.point("inverse", over, call(Op.RSQRT, load("var", p)))
    normal = call(Op.MUL, call(Op.SUB, load("sum", i * 16 + j), load("mean", i)), load("inverse", i))
    b.point("out", full, call(Op.MUL, normal, load("scale", j)))
    program = b.program("out", "sum")
    assert kernels(program) == 1
    group = scheduled(program).groups[0]
    assert group.kind is GroupKind.PERSISTENT
    assert set(group.internal) == {"mean", "var", "inverse"}
    assert set(group.writes) == {"out", "sum"}


def test_bias_and_activation_move_into_the_gemm() -> None:
    """A reshaped consumer of a GEMM's output becomes its epilogue; the plain product is never stored."""
    b = Builder()
    b.input("x", 12, 8)
    b.input("w", 8, 6)
    b.input("bias", 6)
    b.gemm("y", "x", "w", 12, 8, 6)
    over = axes("i", 3, 4, 6)
    biased = call(Op.ADD, load("y", at(over, (24, 6, 1))), load("bias", over[2].symbol))
    b.point("out", over, call(Op.TANH, biased))
    program = b.program("out")
    assert kernels(program) == 1
    (group,) = scheduled(program).groups
    assert group.kind is GroupKind.TEMPLATE
    assert [s.buffer for s in group.call.epilogue] == ["out"]  # type: ignore[union-attr]


def test_epilogue_takes_a_residual_but_not_a_later_value() -> None:
    """Extra operands are fine; an operand computed from the product itself by another kernel is not."""
    b = Builder()
    b.input("x", 6, 6)
    b.input("w", 6, 6)
    b.gemm("y", "x", "w", 6, 6, 6)
    b.gemm("z", "y", "w", 6, 6, 6)
    over = axes("i", 6, 6)
    index = at(over, (6, 1))
    b.point("out", over, call(Op.ADD, load("y", index), load("z", index)))
    program = b.program("out")
    assert kernels(program) == 2
    assert [g.writes for g in scheduled(program).groups] == [("y",), ("out",)]


def test_siblings_that_read_the_same_share_a_kernel() -> None:
    """Two independent results of one input are written by one kernel."""
    b = Builder()
    b.input("x", 64)
    over = axes("i", 64)
    i = over[0].symbol
    b.point("p", over, call(Op.EXP, load("x", i)))
    b.point("q", over, call(Op.TANH, load("x", i)))
    assert kernels(b.program("p", "q")) == 1


def test_sibling_reductions_share_a_pass() -> None:
    """The sum and the maximum of the same rows are one kernel."""
    b = Builder()
    b.input("x", 8, 16)
    over, row = axes("i", 8), axes("r", 16)
    index = over[0].symbol * 16 + row[0].symbol
    b.reduce("total", over, row, ReduceKind.SUM, load("x", index))
    b.reduce("top", over, row, ReduceKind.MAX, load("x", index))
    assert kernels(b.program("total", "top")) == 1


def test_sum_over_everything_takes_its_producer() -> None:
    """A group may have no parallel axes."""
    b = Builder()
    b.input("x", 8, 16)
    over = axes("i", 8, 16)
    index = at(over, (16, 1))
    b.point("square", over, call(Op.MUL, load("x", index), load("x", index)))
    row = axes("r", 128)
    b.reduce("total", (), row, ReduceKind.SUM, load("square", row[0].symbol))
    program = b.program("total")
    assert kernels(program) == 1
    assert scheduled(program).groups[0].axes == ()


def test_column_sum_of_a_row_softmax_stays_apart() -> None:
    """Rows of one kernel are not rows of the other."""
    b = Builder()
    b.input("x", 8, 16)
    softmax(b, "x", 8, 16)
    over, row = axes("i", 16), axes("r", 8)
    b.reduce("columns", over, row, ReduceKind.SUM, load("out", row[0].symbol * 16 + over[0].symbol))
    assert kernels(b.program("columns")) == 2


def test_shifted_read_stays_apart() -> None:
    """A reader of other elements than those written at its point waits for the whole buffer."""
    b = Builder()
    b.input("x", 17)
    over = axes("i", 17)
    b.point("y", over, call(Op.EXP, load("x", over[0].symbol)))
    inner = axes("i", 16)
    i = inner[0].symbol
    b.point("out", inner, call(Op.SUB, load("y", i + 1), load("y", i)))
    assert kernels(b.program("out")) == 2


def test_reversed_read_stays_apart() -> None:
    """Equal domains and sets of elements are not enough."""
    b = Builder()
    b.input("x", 16)
    over = axes("i", 16)
    i = over[0].symbol
    b.point("y", over, call(Op.EXP, load("x", i)))
    b.point("out", over, load("y", 15 - i))
    assert kernels(b.program("out")) == 2


def test_write_waits_for_earlier_reads_at_other_points() -> None:
    """An input is overwritten after a reader that looks elsewhere in it: no shared kernel."""
    b = Builder()
    b.input("x", 16)
    over = axes("i", 16)
    i = over[0].symbol
    b.point("y", over, load("x", 15 - i))
    b.point("x", over, call(Op.ADD, load("x", i), load("x", i)))
    assert kernels(b.program("y")) == 2


def test_scatter_is_a_barrier() -> None:
    """Nothing that reads a scattered-into buffer joins the scatter."""
    b = Builder()
    b.input("x", 16)
    b.input("where", 16)
    over = axes("i", 16)
    i = over[0].symbol
    b.point("y", over, load("x", i))
    index = load("where", i, DType.I64)
    store = Store("y", indirect(0), load("x", i), StoreMode.ADD, (index,))
    b.steps.append(LoopNest("scatter", over, (), (), (store,), "cpu", ("scatter",)))
    b.point("out", over, call(Op.EXP, load("y", i)))
    assert len(scheduled(b.program("out")).groups) == 3


def test_devices_stay_apart() -> None:
    """Loops of different devices never share a kernel."""
    b = Builder()
    b.input("x", 16)
    over = axes("i", 16)
    i = over[0].symbol
    b.point("y", over, call(Op.EXP, load("x", i)))
    b.point("out", over, call(Op.EXP, load("y", i)))
    b.steps[1] = dataclasses.replace(b.steps[1], device="cuda:0")
    assert len(scheduled(b.program("out")).groups) == 2


def test_extern_result_that_may_be_a_view_is_left_alone() -> None:
    """Buffers that may share storage under two names are not matched by name."""
    b = Builder()
    b.input("x", 16)
    over = axes("i", 16)
    i = over[0].symbol
    b.point("y", over, call(Op.EXP, load("x", i)))
    b.buffer("view", (16,))
    whole = BufferView("y", (Integer(16),), (Integer(1),), Integer(0), DType.F32)
    b.steps.append(ExternCall("alias", "aten.alias.default", (whole,), (), ("view",), aliases=("y",)))
    b.point("y", over, call(Op.ADD, load("y", i), load("y", i)))
    b.point("out", over, load("view", i))
    plan = scheduled(b.program("out"))
    assert [g.kind.value for g in plan.groups] == ["poi", "ext", "poi", "poi"]


def test_random_draws_keep_their_order() -> None:
    """Extern calls that use the generator are not reordered, whatever would save memory, nor dropped."""
    b = Builder()
    b.input("x", 16)
    whole = BufferView("x", (Integer(16),), (Integer(1),), Integer(0), DType.F32)
    for name in ("p", "q", "r"):
        b.buffer(name, (16,))
        b.steps.append(ExternCall(name, "aten.rand_like.default", (whole,), (), (name,)))
    over = axes("i", 16)
    b.point("out", over, call(Op.ADD, load("r", over[0].symbol), load("p", over[0].symbol)))
    plan = scheduled(b.program("out"))
    assert [g.call.name for g in plan.groups if g.call] == ["p", "q", "r"]
    swapped = dataclasses.replace(plan, groups=(plan.groups[1], plan.groups[0], *plan.groups[2:]))
    with pytest.raises(InternalError, match="order"):
        verify_schedule(swapped)


def test_verifier_finds_an_early_overwrite() -> None:
    """A group that overwrites an input before the readers of its old value is reported."""
    b = Builder()
    b.input("x", 16)
    over = axes("i", 16)
    i = over[0].symbol
    b.point("y", over, load("x", 15 - i))
    b.point("x", over, call(Op.ADD, load("x", i), load("x", i)))
    plan = scheduled(b.program("y"))
    with pytest.raises(InternalError, match="overwritten"):
        verify_schedule(dataclasses.replace(plan, groups=plan.groups[::-1]))


def test_step_limit() -> None:
    """max_fusion_steps bounds a kernel."""
    b = Builder()
    b.input("x", 16)
    over = axes("i", 16)
    last = "x"
    for k in range(6):
        last = b.point(f"t{k}", over, call(Op.EXP, load(last, over[0].symbol)))
    program = b.program(last)
    assert len(scheduled(program).groups) == 1
    assert len(scheduled(program, max_fusion_steps=2).groups) == 3


def test_symbolic_sizes_fuse() -> None:
    """Axes with equal size expressions are laid over each other without knowing the numbers."""
    n = Symbol("n", 2, None)
    b = Builder()
    b.input("x", n, 16)
    over = axes("i", n * 16)
    b.point("y", over, call(Op.EXP, load("x", over[0].symbol)))
    full = axes("i", n, 16)
    i, j = full[0].symbol, full[1].symbol
    b.point("z", full, call(Op.ADD, load("y", i * 16 + j), load("x", i * 16 + j)))
    rows, row = axes("i", n), axes("r", 16)
    b.reduce("total", rows, row, ReduceKind.SUM, load("z", rows[0].symbol * 16 + row[0].symbol))
    plan = scheduled(b.program("total"))
    assert len(plan.groups) == 1
    assert str(plan.groups[0].axes[0].extent) == "n"


def test_unused_steps_are_dropped() -> None:
    """What nobody reads is not computed."""
    b = Builder()
    b.input("x", 16)
    over = axes("i", 16)
    b.point("dead", over, load("x", over[0].symbol))
    b.point("out", over, call(Op.EXP, load("x", over[0].symbol)))
    plan = scheduled(b.program("out"))
    assert [g.writes for g in plan.groups] == [("out",)]


def test_equal_layers_have_equal_steps() -> None:
    """Groups are canonical: the same layer twice differs in buffer names only."""
    b = Builder()
    b.input("x", 4, 8, 16)
    last = "x"
    for k, cut in enumerate([(4, 8, 16), (512,)]):
        over = axes("q" if k else "i", *cut)
        last = b.point(f"t{k}", over, call(Op.EXP, load(last, at(over, strides(list(cut))))))
        b.steps.append(ExternCall(f"opaque{k}", "aten.sort.default", (), (), (), mutates=(last,)))
    plan = scheduled(b.program(last))
    first, second = (g for g in plan.groups if g.steps)
    assert first.axes == second.axes
    assert first.steps[0].stores[0].index is second.steps[0].stores[0].index


def test_choices_can_be_replaced() -> None:
    """A subclass of Choices decides otherwise."""

    class Never(Choices):
        def fits(self, steps: int) -> bool:
            return False

    b = Builder()
    b.input("x", 32, 16)
    program = b.program(softmax(b, "x", 32, 16))
    assert len(schedule(program, context(), Never(context().options)).groups) == 3


def test_what_is_not_joined_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins go round by round until nothing changes; of two blocks that are the same in the next round the answer is, too."""
    b = Builder()
    b.input("x", 64, 64)
    rows, columns = axes("i", 64, 64), axes("j", 64, 64)
    (i, j), (k, m) = (a.symbol for a in rows), (a.symbol for a in columns)
    b.point("along", rows, call(Op.EXP, load("x", i * 64 + j)))
    b.point("twice", rows, call(Op.NEG, load("along", i * 64 + j)))
    across = b.point("across", columns, call(Op.ADD, load("twice", m * 64 + k), load("along", k * 64 + m)))
    asked = []

    def ask(first: Block, second: Block, *args: object, **words: object) -> Block | None:
        asked.append((first, second))
        return join(first, second, *args, **words)  # type: ignore[arg-type]

    monkeypatch.setattr(fusion, "join", ask)
    assert kernels(b.program(across)) == 2
    assert len(asked) == len(set(asked))
