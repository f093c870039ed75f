"""What depends on constants only is computed apart; the two programs together compute the one."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braze.loops.ir import BufferKind, BufferView, ExternCall, LoopProgram, Node, Op, ReduceKind
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.dependences import accesses
from braze.schedule.fusion.fusion import kept_buffers
from braze.schedule.rewrites.hoist import hoist, is_repeatable
from braze.symbolic.expr import ONE, ZERO, Expr, Symbol, as_expr
from tests.loops.interpret import interpret
from tests.schedule.programs import Builder, axes, call, context, load, scheduled
from tests.schedule.test_random_programs import programs


def hoisted(program: LoopProgram) -> tuple[LoopProgram | None, LoopProgram]:
    return hoist(program, kept_buffers(program), Choices(context().options))


def with_constants(program: LoopProgram, *names: str) -> LoopProgram:
    """The program with some inputs as constants."""
    return dataclasses.replace(
        program,
        buffers=tuple(
            dataclasses.replace(b, kind=BufferKind.CONSTANT) if b.name in names else b
            for b in program.buffers
        ),
    )


def folded_norm() -> LoopProgram:
    """scale = rsqrt(var) * weight per channel, then out = x * scale."""
    b = Builder()
    b.input("x", 8, 16)
    b.input("var", 16)
    b.input("weight", 16)
    over = axes("i", 16)
    i = over[0].symbol
    b.point("scale", over, call(Op.MUL, call(Op.RSQRT, load("var", i)), load("weight", i)))
    full = axes("i", 8, 16)
    p, q = full[0].symbol, full[1].symbol
    b.point("out", full, call(Op.MUL, load("x", p * 16 + q), load("scale", q)))
    return with_constants(b.program("out"), "var", "weight")


def test_channel_scale_is_computed_once() -> None:
    """The scale leaves the program and comes back as its last input."""
    fixed, rest = hoisted(folded_norm())
    assert fixed is not None
    assert fixed.inputs == ("var", "weight")
    assert rest.inputs == ("x", "var", "weight", "scale")
    assert [s.name for s in rest.steps] == ["s_out"]
    plan = scheduled(folded_norm())
    assert plan.fixed is not None
    assert [g.reads for g in plan.groups] == [("scale", "x")]
    assert scheduled(folded_norm(), hoist=False).fixed is None


def test_user_input_is_not_constant() -> None:
    """Nothing leaves where the operands change from call to call."""
    program = dataclasses.replace(
        folded_norm(),
        buffers=tuple(
            dataclasses.replace(b, kind=BufferKind.INPUT) if b.kind is BufferKind.CONSTANT else b
            for b in folded_norm().buffers
        ),
    )
    assert hoisted(program) == (None, program)


def test_written_constant_is_not_constant() -> None:
    """A buffer that the program updates (a running mean) is read at each call."""
    b = Builder()
    b.input("x", 16)
    b.input("mean", 16)
    over = axes("i", 16)
    i = over[0].symbol
    b.point("old", over, call(Op.EXP, load("mean", i)))
    b.point("mean", over, call(Op.ADD, load("mean", i), load("x", i)))
    b.point("out", over, call(Op.ADD, load("old", i), load("x", i)))
    assert hoisted(with_constants(b.program("out"), "mean"))[0] is None


def test_output_is_made_at_each_call() -> None:
    """The caller may write into what it gets, so outputs are never shared between calls."""
    b = Builder()
    b.input("w", 16)
    over = axes("i", 16)
    b.point("out", over, call(Op.EXP, load("w", over[0].symbol)))
    assert hoisted(with_constants(b.program("out"), "w"))[0] is None


def test_cheap_tables_are_not_loaded() -> None:
    """A counter is computed where it is used; a costly table made from it is kept."""
    b = Builder()
    b.input("x", 16)
    over = axes("i", 16)
    i = over[0].symbol
    b.point(
        "count", over, Node(Op.CAST, b.buffers["x"].dtype, (Node(Op.INDEX, b.buffers["x"].dtype, (), i),))
    )
    b.point("table", over, call(Op.SIN, load("count", i)))
    b.point("out", over, call(Op.ADD, call(Op.MUL, load("x", i), load("table", i)), load("count", i)))
    fixed, rest = hoisted(b.program("out"))
    assert fixed is not None
    assert fixed.inputs == ()
    assert rest.inputs == ("x", "table")
    assert [s.name for s in rest.steps] == ["s_count", "s_out"]


def test_on_a_gpu_a_table_of_nothing_is_kept_where_a_look_at_constants_does_not_pay() -> None:
    """What reads no constant can change with none, so that nobody has to look."""
    b = Builder()
    b.input("x", 16)
    b.input("w", 16)
    over = axes("i", 16)
    i = over[0].symbol
    dtype = b.buffers["x"].dtype
    b.point("table", over, call(Op.SIN, Node(Op.CAST, dtype, (Node(Op.INDEX, dtype, (), i),))))
    b.point("scale", over, call(Op.SIN, load("w", i)))
    b.point("out", over, call(Op.MUL, call(Op.MUL, load("x", i), load("table", i)), load("scale", i)))
    made = with_constants(b.program("out"), "w")
    buffers = tuple(dataclasses.replace(x, device="cuda:0") for x in made.buffers)
    steps = tuple(dataclasses.replace(s, device="cuda:0") for s in made.steps)
    fixed, rest = hoisted(dataclasses.replace(made, buffers=buffers, steps=steps))
    assert fixed is not None and fixed.inputs == ()
    assert rest.inputs == ("x", "w", "table")
    assert [s.name for s in rest.steps] == ["s_scale", "s_out"]


def test_unknown_sizes_stay() -> None:
    """A table of symbolic length cannot be made before the call."""
    n = Symbol("n", 2, None)
    b = Builder()
    b.input("w", n)
    b.input("x", n)
    over = axes("i", n)
    b.point("table", over, call(Op.SIN, load("w", over[0].symbol)))
    b.point("out", over, call(Op.ADD, load("x", over[0].symbol), load("table", over[0].symbol)))
    assert hoisted(with_constants(b.program("out"), "w"))[0] is None


def test_budget_bounds_what_is_kept() -> None:
    """Results larger than what they are made from count against a limit."""

    class Small(Choices):
        fixed_bytes = 100

    b = Builder()
    b.input("w", 16)
    b.input("x", 64, 16)
    full = axes("i", 64, 16)
    i, j = full[0].symbol, full[1].symbol
    b.point("wide", full, call(Op.EXP, load("w", j)))
    b.point("out", full, call(Op.ADD, load("x", i * 16 + j), load("wide", i * 16 + j)))
    program = with_constants(b.program("out"), "w")
    assert hoist(program, kept_buffers(program), Small(context().options))[0] is None
    assert hoisted(program)[0] is not None


def test_gemm_with_a_derived_weight_may_pack_it() -> None:
    """A weight computed from constants (a cast, a sum) is constant too."""
    b = Builder()
    b.input("x", 4, 8)
    b.input("w", 8, 6)
    b.point(
        "doubled",
        axes("i", 48),
        call(Op.ADD, load("w", axes("i", 48)[0].symbol), load("w", axes("i", 48)[0].symbol)),
    )
    b.buffers["doubled"] = dataclasses.replace(b.buffers["w"], name="doubled", kind=BufferKind.TEMPORARY)
    b.gemm("out", "x", "doubled", 4, 8, 6)
    b.steps[-1] = dataclasses.replace(b.steps[-1], constant_b=False)  # type: ignore[type-var]
    fixed, rest = hoisted(with_constants(b.program("out"), "w"))
    assert fixed is not None
    assert rest.steps[-1].constant_b  # type: ignore[union-attr]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.sets(st.sampled_from(["a", "b", "w", "row", "column"])))
def test_parts_compute_the_whole(program: LoopProgram, names: set[str]) -> None:
    """Whichever inputs are constant: fixed part, then the rest, equals the program."""
    program = with_constants(program, *names)
    fixed, rest = hoisted(program)
    if fixed is None:
        return
    gen = torch.Generator().manual_seed(0)
    given_ = {
        n: torch.randn([int(e.value or 0) for e in program.buffer(n).sizes], generator=gen)
        for n in program.inputs
    }
    made = interpret(fixed, [given_[n] for n in fixed.inputs])
    twin = {n: t.clone() for n, t in given_.items()}
    expected = interpret(program, [given_[n] for n in program.inputs])
    found = interpret(rest, [*(twin[n] for n in program.inputs), *made])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert all(
        set(accesses(s).reads) <= {*rest.inputs, *(n for t in rest.steps for n in accesses(t).writes)}
        for s in rest.steps
    )
    assert kept_buffers(program) == kept_buffers(rest) - set(rest.inputs[len(program.inputs) :])


def test_reduction_of_a_weight_is_fixed() -> None:
    """Sums over weights count as costly: they are kept."""
    b = Builder()
    b.input("w", 8, 16)
    b.input("x", 8)
    over, row = axes("i", 8), axes("r", 16)
    b.reduce("total", over, row, ReduceKind.SUM, load("w", over[0].symbol * 16 + row[0].symbol))
    b.point("out", over, call(Op.ADD, load("x", over[0].symbol), load("total", over[0].symbol)))
    fixed, rest = hoisted(with_constants(b.program("out"), "w"))
    assert fixed is not None
    assert len(rest.steps) == 1


def summed_part(size: Expr) -> LoopProgram:
    """out = x + the sum of the first elements of a constant, by ATen."""
    b = Builder()
    b.input("x", 8)
    b.input("weight", 16)
    b.buffer("total", (8,))
    part = BufferView("weight", (size,), (ONE,), ZERO, torch.float32)
    b.steps.append(ExternCall("sum", "aten.sum.dim_IntList", (part, (as_expr(0),)), (), ("total",)))
    over = axes("i", 8)
    i = over[0].symbol
    b.point("out", over, call(Op.ADD, load("x", i), load("total", i)))
    return with_constants(b.program("out"), "weight")


def test_a_call_is_taken_out_where_all_that_it_is_given_is_known() -> None:
    fixed, rest = hoisted(summed_part(as_expr(4)))
    assert fixed is not None and [s.name for s in fixed.steps] == ["sum"]
    assert [s.name for s in rest.steps] == ["s_out"]
    fixed, rest = hoisted(summed_part(Symbol("s", 2)))
    assert fixed is None and len(rest.steps) == 2


def scales(count: int) -> LoopProgram:
    """Sums of a picture's channels by so many scales, each the root of a constant, on a GPU; the first constant lies on the CPU."""
    b = Builder()
    b.input("x", 16)
    over = axes("i", 16)
    i = over[0].symbol
    total = load("x", i)
    for k in range(count):
        b.input(f"w{k}", 16)
        b.point(f"scale{k}", over, call(Op.RSQRT, load(f"w{k}", i)))
        total = call(Op.ADD, total, load(f"scale{k}", i))
    b.point("out", over, total)
    program = with_constants(b.program("out"), *(f"w{k}" for k in range(count)))
    return dataclasses.replace(
        program,
        buffers=tuple(
            b if b.name == "w0" else dataclasses.replace(b, device="cuda:0") for b in program.buffers
        ),
        steps=tuple(dataclasses.replace(s, device="cuda:0") for s in program.steps),
    )


def test_a_gpu_keeps_what_costs_more_than_a_look_at_its_constants() -> None:
    """A constant that does not lie there is not looked at."""
    fixed, rest = hoisted(scales(6))
    assert fixed is not None and fixed.inputs == ("w1", "w2", "w3", "w4", "w5")
    assert [s.name for s in rest.steps] == ["s_scale0", "s_out"]
    assert hoisted(scales(3))[0] is None


def test_what_writes_to_an_input_or_draws_numbers_does_not_run_twice() -> None:
    program = scales(2)
    assert is_repeatable(program)
    assert not is_repeatable(dataclasses.replace(program, mutated=("x",)))
    draw = ExternCall("draw", "aten.rand.default", ((16,),), (), ("scale0",))
    assert not is_repeatable(dataclasses.replace(program, steps=(draw, *program.steps)))
