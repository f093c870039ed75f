"""Triton kernels in Triton's interpreter: the same answers as the arithmetic says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.codegen.triton.emit import index_text
from braze.context import CompileContext
from braze.loops.ir import (
    Axis,
    BufferKind,
    DType,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    ReduceKind,
    Reduction,
    Store,
)
from braze.options import Options
from braze.schedule.facts.records import Group, GroupKind, MemoryPlan, Schedule
from braze.symbolic.expr import ZERO, Symbol, as_expr, axis_symbol, indirect
from braze.target import cuda_target
from tests.codegen.triton_bench import launcher
from tests.codegen.triton_groups import F32, buffer, const, read, softmax_group

CTX = CompileContext(Options(), cuda_target((9, 0), 132))


def run(group, buffers, tensors, folder):
    """Write the group's kernel, run it on tensors by buffer name, and return them."""
    program = LoopProgram("p", tuple(buffers), group.steps, (), ())
    text = generate(Schedule(program, (group,), MemoryPlan((), ZERO)), CTX)[0]
    path = folder / f"{group.name}_{group.kind.value}.py"
    path.write_text(text.source)
    launch = launcher(path, text)
    launch(*(tensors[b] for b in text.args))
    return tensors


def row_kernel(kind, rows, width, body, tmp_path, x, result=F32, reduced=F32):
    """out[i] = reduction over j of body(x[i, j])."""
    i, j = axis_symbol("i", rows), axis_symbol("j", width)
    nest = LoopNest(
        "n",
        (Axis(i, as_expr(rows)),),
        (Axis(j, as_expr(width)),),
        (Reduction(kind, reduced, body(read("x", i * width + j))),),
        (Store("out", i, Node(Op.REDUCED, result, (), 0)),),
        "cuda:0",
        ("r",),
    )
    out = {}
    for group_kind in (GroupKind.PERSISTENT, GroupKind.LOOPED):
        group = Group(
            f"triton_{group_kind.value}_fused_{nest.ops[0]}_0",
            group_kind,
            (nest,),
            nest.axes,
            nest.reduce_axes,
            device="cuda:0",
        )
        buffers = [buffer("x", (rows, width)), buffer("out", (rows,), result, BufferKind.OUTPUT)]
        dtype = {F32: torch.float32, DType.I64: torch.int64}[result]
        tensors = {"x": x, "out": torch.full((rows,), -7, dtype=dtype)}
        out[group_kind] = run(group, buffers, tensors, tmp_path)["out"]
    return out


def test_pointwise_with_broadcast_and_tail(tmp_path):
    """x[i, j] * b[j] + 1 over a size that no block divides."""
    i, j = axis_symbol("i", 7), axis_symbol("j", 33)
    value = Node(Op.ADD, F32, (Node(Op.MUL, F32, (read("x", i * 33 + j), read("b", j))), const(1.0)))
    axes = (Axis(i, as_expr(7)), Axis(j, as_expr(33)))
    nest = LoopNest("n", axes, (), (), (Store("out", i * 33 + j, value),), "cuda:0", ("mul", "add"))
    x, b = torch.randn(7, 33), torch.randn(33)
    buffers = [buffer("x", (7, 33)), buffer("b", (33,)), buffer("out", (7, 33), kind=BufferKind.OUTPUT)]
    out = torch.full((7, 33), torch.nan)
    run(
        Group("triton_poi_g", GroupKind.POINTWISE, (nest,), axes, device="cuda:0"),
        buffers,
        {"x": x, "b": b, "out": out},
        tmp_path,
    )
    assert torch.equal(out, x * b + 1)


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        (Op.TANH, torch.tanh),
        (Op.EXPM1, torch.expm1),
        (Op.LOG1P, torch.log1p),
        (Op.ROUND, torch.round),
        (Op.SIGN, torch.sign),
        (Op.TRUNC, torch.trunc),
        (Op.SIGMOID, torch.sigmoid),
        (Op.ERF, torch.erf),
    ],
)
def test_own_functions_match_eager(op, reference, tmp_path):
    """Functions written for Triton agree with ATen, special values included."""
    special = torch.tensor([0.0, -0.0, 1e-8, -1e-8, 0.5, 1.5, 2.5, -0.5, -1.5, 30.0, -30.0, 0.3, -0.7])
    special = torch.cat(
        [special, torch.tensor([torch.inf, -torch.inf, torch.nan]), torch.linspace(-3, 3, 48)]
    )
    if op is Op.LOG1P:
        special = special.abs()
    n = special.numel()
    i = axis_symbol("i", n)
    axes = (Axis(i, as_expr(n)),)
    nest = LoopNest("n", axes, (), (), (Store("out", i, Node(op, F32, (read("x", i),))),), "cuda:0", ("f",))
    out = torch.zeros(n)
    buffers = [buffer("x", (n,)), buffer("out", (n,), kind=BufferKind.OUTPUT)]
    run(
        Group("triton_poi_g", GroupKind.POINTWISE, (nest,), axes, device="cuda:0"),
        buffers,
        {"x": special, "out": out},
        tmp_path,
    )
    torch.testing.assert_close(out, reference(special), rtol=3e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        (ReduceKind.SUM, lambda x: x.sum(1)),
        (ReduceKind.MAX, lambda x: x.amax(1)),
        (ReduceKind.MIN, lambda x: x.amin(1)),
        (ReduceKind.PROD, lambda x: x.prod(1)),
    ],
)
@pytest.mark.parametrize("width", [1, 5, 37])
def test_reductions_both_ways(kind, reference, width, tmp_path):
    """A row reduction, persistent and looped, with a nan in one row."""
    x = torch.randn(3, width)
    x[1, 0] = torch.nan
    for out in row_kernel(kind, 3, width, lambda n: n, tmp_path, x).values():
        torch.testing.assert_close(out, reference(x), equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        (ReduceKind.ARGMAX, lambda x: x.argmax(1)),
        (ReduceKind.ARGMIN, lambda x: x.argmin(1)),
    ],
)
def test_arg_reductions_take_the_first_and_the_nan(kind, reference, tmp_path):
    """argmax gives the first of equals, and a nan wins."""
    x = torch.tensor([[1.0, 3.0, 3.0, -2.0, -2.0], [0.0, torch.nan, 9.0, torch.nan, -9.0]])
    for out in row_kernel(kind, 2, 5, lambda n: n, tmp_path, x, DType.I64).values():
        assert torch.equal(out, reference(x))


@pytest.mark.parametrize("kind", [GroupKind.PERSISTENT, GroupKind.LOOPED])
def test_softmax_in_one_kernel(kind, tmp_path):
    """A softmax keeps its maximum, powers and sum inside the kernel."""
    x = torch.randn(5, 41)
    x[2] = -torch.inf
    out = torch.zeros(5, 41)
    names = [("x", (5, 41)), ("top", (5,)), ("e", (5, 41)), ("total", (5,)), ("out", (5, 41))]
    buffers = [buffer(n, s) for n, s in names]
    run(softmax_group(5, 41, kind), buffers, {"x": x, "out": out}, tmp_path)
    torch.testing.assert_close(out, torch.softmax(x, 1), equal_nan=True)


@pytest.mark.parametrize("kind", [GroupKind.PERSISTENT, GroupKind.LOOPED])
def test_variance_by_welford(kind, tmp_path):
    """Two results of one reduction; large mean, so that a naive sum of squares would fail."""
    i, j = axis_symbol("i", 4), axis_symbol("j", 50)
    outs = (Store("mean", i, Node(Op.REDUCED, F32, (), 0)), Store("m2", i, Node(Op.REDUCED, F32, (), 1)))
    nest = LoopNest(
        "n",
        (Axis(i, as_expr(4)),),
        (Axis(j, as_expr(50)),),
        (Reduction(ReduceKind.WELFORD, F32, read("x", i * 50 + j)),),
        outs,
        "cuda:0",
        ("var",),
    )
    x = torch.randn(4, 50) + 3000
    tensors = {"x": x, "mean": torch.zeros(4), "m2": torch.zeros(4)}
    buffers = [buffer("x", (4, 50)), buffer("mean", (4,)), buffer("m2", (4,))]
    run(
        Group("triton_red_g", kind, (nest,), nest.axes, nest.reduce_axes, device="cuda:0"),
        buffers,
        tensors,
        tmp_path,
    )
    torch.testing.assert_close(tensors["mean"], x.double().mean(1).float())
    torch.testing.assert_close(tensors["m2"] / 50, x.double().var(1, correction=0).float(), rtol=1e-4, atol=0)


def test_masked_load_does_not_read_outside(tmp_path):
    """Padding: the load happens only inside the source."""
    n = 12
    i = axis_symbol("i", n)
    inside = Node(
        Op.AND,
        DType.BOOL,
        (
            Node(Op.GE, DType.BOOL, (Node(Op.INDEX, DType.I64, (), as_expr(i)), const(2, DType.I64))),
            Node(Op.LT, DType.BOOL, (Node(Op.INDEX, DType.I64, (), as_expr(i)), const(7, DType.I64))),
        ),
    )
    value = Node(Op.MASKED, F32, (inside, read("x", i - 2), const(0.5)))
    axes = (Axis(i, as_expr(n)),)
    nest = LoopNest("n", axes, (), (), (Store("out", i, value),), "cuda:0", ("pad",))
    x, out = torch.randn(5), torch.zeros(n)
    run(
        Group("triton_poi_g", GroupKind.POINTWISE, (nest,), axes, device="cuda:0"),
        [buffer("x", (5,)), buffer("out", (n,))],
        {"x": x, "out": out},
        tmp_path,
    )
    assert torch.equal(out, torch.nn.functional.pad(x, (2, 5), value=0.5))


def test_gather_through_an_index_tensor(tmp_path):
    """An embedding: the index of one load is the value of another."""
    i, j = axis_symbol("i", 6), axis_symbol("j", 8)
    place = read("ids", i, DType.I64)
    value = Node(Op.LOAD, F32, (place,), ("table", indirect(0) * 8 + j))
    axes = (Axis(i, as_expr(6)), Axis(j, as_expr(8)))
    nest = LoopNest("n", axes, (), (), (Store("out", i * 8 + j, value),), "cuda:0", ("embedding",))
    table, ids, out = torch.randn(10, 8), torch.tensor([3, 3, 0, 9, 1, 2]), torch.zeros(6, 8)
    buffers = [buffer("table", (10, 8)), buffer("ids", (6,), DType.I64), buffer("out", (6, 8))]
    run(
        Group("triton_poi_g", GroupKind.POINTWISE, (nest,), axes, device="cuda:0"),
        buffers,
        {"table": table, "ids": ids, "out": out},
        tmp_path,
    )
    assert torch.equal(out, table[ids])


def test_half_types_round_where_the_program_says(tmp_path):
    """fp16 in, f32 arithmetic, fp16 out (Triton's interpreter rounds bf16 toward zero, so not bf16 here)."""
    n = 40
    i = axis_symbol("i", n)
    wide = Node(Op.CAST, F32, (read("x", i, DType.F16),))
    value = Node(Op.CAST, DType.F16, (Node(Op.MUL, F32, (wide, const(1.7))),))
    axes = (Axis(i, as_expr(n)),)
    nest = LoopNest("n", axes, (), (), (Store("out", i, value),), "cuda:0", ("mul",))
    x, out = torch.randn(n).half(), torch.zeros(n, dtype=torch.float16)
    run(
        Group("triton_poi_g", GroupKind.POINTWISE, (nest,), axes, device="cuda:0"),
        [buffer("x", (n,), DType.F16), buffer("out", (n,), DType.F16)],
        {"x": x, "out": out},
        tmp_path,
    )
    assert torch.equal(out, (x.float() * 1.7).half())


def offline(module: str) -> str:
    """What a script that compiles for a GPU prints; it must succeed."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", module],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_kernel_compiles_to_sm_90_without_a_gpu():
    """Every operation and reduction gives Hopper machine code on a machine that has no GPU."""
    printed = offline("tests.codegen.triton_offline")
    assert "triton_red_fused_welford_0 red" in printed
    assert "early 1" in printed and "following 1" in printed and "every triton_tem" in printed
    assert "rounding eager" in printed
    assert len(printed.splitlines()) >= 20


def test_models_compile_to_sm_90_without_a_gpu():
    """A transformer layer and a residual block in bf16, from graph to machine code."""
    printed = offline("tests.codegen.triton_models")
    assert "layer triton_per_fused" in printed and "block triton_poi_fused" in printed
    assert "two_sizes launches 2" in printed, "a kernel of another extent is another launch"


def test_models_compile_to_gfx942_without_a_gpu():
    """The same as a worker builds them for an AMD GPU."""
    printed = [x for x in offline("tests.codegen.rocm_offline").splitlines() if x.endswith(" True")]
    assert {x.split()[0] for x in printed} == {"layer", "two_sizes", "block"} and len(printed) >= 10


def test_random_numbers_follow_the_seed(tmp_path):
    """Uniform numbers of a seed in memory and the element's place: spread over [0, 1), other ones for another seed."""
    n = 500
    i = axis_symbol("i", n)
    number = Node(
        Op.RANDOM, F32, (read("seed", ZERO, DType.I64), Node(Op.INDEX, DType.I64, (), i)), "uniform"
    )
    nest = LoopNest("n", (Axis(i, as_expr(n)),), (), (), (Store("out", i, number),), "cuda:0", ("uniform",))
    group = Group("triton_poi_random", GroupKind.POINTWISE, (nest,), nest.axes, device="cuda:0")
    buffers = [buffer("seed", (), DType.I64), buffer("out", (n,), kind=BufferKind.OUTPUT)]
    found = []
    for seed in (3, 3, -(2**62) + 5):
        tensors = {"seed": torch.tensor(seed), "out": torch.empty(n)}
        found.append(run(group, buffers, tensors, tmp_path)["out"])
    first, again, other = found
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for numbers in found:
        assert 0 <= numbers.min() and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.05
        assert numbers.unique().numel() > n - 5


def test_divisions_in_an_index_are_the_machines_only_from_zero_on():
    names = {"i": "i", "s": "s"}
    i, s = Symbol("i", 0), Symbol("s", -3)
    assert (index_text(i // 4, names), index_text(i % 4, names)) == ("((i) // (4))", "((i) % (4))")
    assert index_text(s // 4, names) == "bz_int_floordiv(s, 4)"
    assert index_text(s % 4, names) == "bz_int_remainder(s, 4)"
