"""Compile generated kernels to sm_90 machine code without a GPU; prints one line a kernel. Run by test_triton.py.

Its own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F

from benchmarks.machine_code import compile_offline
from braze.codegen.triton import generate
from braze.codegen.triton.gemm import gemm_kernel
from braze.codegen.triton.gemm_tiles import Means, Tiles
from braze.codegen.triton.ops import row
from braze.context import CompileContext
from braze.loops.ir import (
    Axis,
    DType,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    ReduceKind,
    Reduction,
    Store,
    TemplateCall,
)
from braze.loops.scalars import SCALARS, TESTS
from braze.options import Options
from braze.schedule.facts.records import Group, GroupKind, MemoryPlan, Schedule
from braze.symbolic.expr import ZERO, as_expr, axis_symbol
from braze.target import cuda_target
from tests.codegen.triton_bench import planned, weighing
from tests.codegen.triton_groups import F32, buffer, read, softmax_group

CTX = CompileContext(Options(), cuda_target((9, 0), 132))


def every_op(dtype, operations):
    """One pointwise group that computes every one of some operations."""
    i = axis_symbol("i", 1000)
    x, y = read("x", i, dtype), read("y", i, dtype)
    stores, buffers = [], [buffer("x", (1000,), dtype), buffer("y", (1000,), dtype)]
    for op in operations:
        args = (x, y, x)[: SCALARS[op].arity] if op in SCALARS else (Node(Op.LT, DType.BOOL, (x, y)), x, y)
        result = DType.BOOL if op in TESTS else dtype
        stores.append(Store(f"o_{op.value}", i, Node(op, result, args)))
        buffers.append(buffer(f"o_{op.value}", (1000,), result))
    axes = (Axis(i, as_expr(1000)),)
    nest = LoopNest("n", axes, (), (), tuple(stores), "cuda:0", ("every",))
    return Group("triton_poi_g", GroupKind.POINTWISE, (nest,), axes, device="cuda:0"), buffers


def reduction(kind, group_kind):
    """A row reduction of a kind, one result stored."""
    i, j = axis_symbol("i", 64), axis_symbol("j", 3000)
    index = kind in (ReduceKind.ARGMAX, ReduceKind.ARGMIN)
    flag = kind in (ReduceKind.ANY, ReduceKind.ALL)
    result = DType.I64 if index else DType.BOOL if flag else F32
    value = read("x", i * 3000 + j)
    if flag:
        value = Node(Op.CAST, DType.BOOL, (value,))
    nest = LoopNest(
        "n", (Axis(i, as_expr(64)),), (Axis(j, as_expr(3000)),),
        (Reduction(kind, DType.BOOL if flag else F32, value),),
        (Store("out", i, Node(Op.REDUCED, result, (), 0)),), "cuda:0", (kind.value,),
    )  # fmt: skip
    return Group(f"triton_{group_kind.value}_fused_{nest.ops[0]}_0", group_kind, (nest,), nest.axes, nest.reduce_axes, device="cuda:0"), [
        buffer("x", (64, 3000)), buffer("out", (64,), result)]  # fmt: skip


def dropout():
    """A random number of a seed in memory, and what it drops."""
    i = axis_symbol("i", 1000)
    seed = read("seed", ZERO, DType.I64)
    number = Node(Op.RANDOM, F32, (seed, Node(Op.INDEX, DType.I64, (), i)), "uniform")
    value = Node(Op.MUL, F32, (read("x", i), number))
    axes = (Axis(i, as_expr(1000)),)
    nest = LoopNest("n", axes, (), (), (Store("out", i, value),), "cuda:0", ("dropout",))
    buffers = [buffer("x", (1000,)), buffer("seed", (), DType.I64), buffer("out", (1000,))]
    return Group("triton_poi_fused_dropout_0", GroupKind.POINTWISE, (nest,), axes, device="cuda:0"), buffers


def cases():
    yield dropout()
    written = SCALARS.keys() - {Op.BITCAST, Op.RANDOM}
    yield every_op(F32, [Op.WHERE, *(op for op in SCALARS if op in written and row(op, F32))])
    yield every_op(
        DType.I32, [op for op in SCALARS if op in written - TESTS and "triton_int" in SCALARS[op].text]
    )
    names = [("x", (5, 41)), ("top", (5,)), ("e", (5, 41)), ("total", (5,)), ("out", (5, 41))]
    for kind in (GroupKind.PERSISTENT, GroupKind.LOOPED):
        yield softmax_group(5, 41, kind), [buffer(n, s) for n, s in names]
        for reduce_kind in ReduceKind:
            yield reduction(reduce_kind, kind)


def main() -> int:
    """Compile every case; nonzero where one gives no cubin."""
    with tempfile.TemporaryDirectory() as folder:
        for group, buffers in cases():
            program = LoopProgram("p", tuple(buffers), group.steps, (), ())
            text = generate(Schedule(program, (group,), MemoryPlan((), ZERO)), CTX)[0]
            built = compile_offline(text, Path(folder))
            print(text.name, group.kind.value, len(built["cubin"]), ".target sm_90" in built["ptx"])
            assert "cvt.rpi.ftz" not in built["ptx"], "ceil takes denormal numbers for zeros"
            if not built["cubin"] or ".target sm_90" not in built["ptx"]:
                return 1
        return (
            early(Path(folder))
            or following(Path(folder))
            or every_kernel(Path(folder))
            or rounding(Path(folder))
        )


def early(folder: Path) -> int:
    """A product that begins early has all of its weights on their way before it waits, and waits before it reads and writes anything else."""
    x, norm, w, r = (torch.empty(s, dtype=torch.bfloat16) for s in ((1, 256), (256,), (64, 256), (1, 64)))

    def fn(x, norm, w, r):
        return r + F.linear(F.rms_norm(x, (256,), norm), w)

    plan = planned(fn, x, norm, w, r, matmul_template=True)
    buffers = {b.name: b for b in plan.program.buffers}
    (group,) = plan.groups
    assert isinstance(group.call, TemplateCall)
    weight = group.call.args[1].buffer
    for known in (frozenset([weight]), frozenset[str]()):
        text = gemm_kernel(group, buffers, Tiles(Means.MULTIPLY, 1, 4, 256), known, triggers=True)
        built = compile_offline(text, folder)
        steps = re.findall(r"griddepcontrol\.\w+|(?:ld|st)\.global", built["ptx"])
        print("early", len(known), steps)
        if not known:  # nothing can be read ahead: it begins in its turn
            if any(step.startswith("griddepcontrol") for step in steps):
                return 1
            continue
        at = steps.index("griddepcontrol.wait")
        if steps[0] != "griddepcontrol.launch_dependents" or steps.count("griddepcontrol.wait") != 1:
            return 1
        if "ld.global" not in steps[:at] or "st.global" in steps[:at] or not steps[at + 1 :]:
            return 1
    return in_steps(plan, weight, folder)


def rounding(folder: Path) -> int:
    """A product that is added to is one operation with the sum, unless each operation is to round as eager's."""
    plan = planned(lambda x, y: x * y - y, *(torch.empty(4096, device="meta") for _ in range(2)))
    found = []
    for numerics in ("float32", "eager"):
        options = Options(numerics=numerics)
        (text,) = generate(plan, CompileContext(options, cuda_target((9, 0), 132)))
        found.append(re.findall(r"\b(?:fma|mul|sub|add)\S*\.f32", compile_offline(text, folder)["ptx"]))
        print("rounding", numerics, sorted({*found[-1]}))
    joined, apart = ({name.split(".")[0] for name in names} for names in found)
    return int("fma" not in joined or "mul" in joined or "fma" in apart or "mul" not in apart)


def in_steps(plan: Schedule, weight: str, folder: Path) -> int:
    """One whose sum is several steps asks for its weights before it waits, and reads nothing."""
    buffers = {b.name: b for b in plan.program.buffers}
    text = gemm_kernel(plan.groups[0], buffers, Tiles(Means.MULTIPLY, 1, 2, 64), frozenset([weight]))
    ptx = compile_offline(text, folder)["ptx"]
    steps = re.findall(r"griddepcontrol\.wait|prefetch\.global\.L2|(?:ld|st)\.global", ptx)
    print("in steps", steps)
    at = steps.index("griddepcontrol.wait")
    return int(set(steps[:at]) != {"prefetch.global.L2"} or "prefetch.global.L2" in steps[at:])


def following(folder: Path) -> int:
    """What adds the parts of columns begins early, as what makes them lets it, and waits before it reads or writes anything."""
    plan = planned(lambda x: x.sum(0), torch.empty(65536, 1024, device="meta"))
    first, second = generate(plan, CTX)
    built = compile_offline(second, folder)
    steps = re.findall(r"griddepcontrol\.\w+|(?:ld|st)\.global", built["ptx"])
    print("following", dict(second.launch.constants)["EARLY"], steps)
    ahead = "gdc_wait()" in first.source or first.source.count("gdc_launch_dependents()") != 1
    return int(ahead or steps[0] != "griddepcontrol.wait" or {*steps[1:]} != {"ld.global", "st.global"})


def every_kernel(folder: Path) -> int:
    """Where all begin early but the first, each waits once before it reads what others write and before it writes."""
    shapes = ((1, 256), (256,), (768, 256), (256, 256), (256,))
    x, norm, w, out, cos = (torch.empty(s, dtype=torch.bfloat16) for s in shapes)

    def fn(x, norm, w, out, cos):
        q, k, v = F.linear(F.rms_norm(x, (256,), norm), w).chunk(3, -1)
        rows = torch.cat((q * cos, k, v), 0)
        return F.linear(torch.softmax(rows, -1).sum(0, keepdim=True), out) + x

    plan = weighing(planned(fn, x, norm, w, out, cos, matmul_template=True), (1, 2, 3))
    texts = generate(plan, CompileContext(Options(early_launches="all"), cuda_target((9, 0), 132)))
    for number, text in enumerate(texts):
        built = compile_offline(text, folder)
        steps = re.findall(r"griddepcontrol\.\w+|(?:ld|st)\.global", built["ptx"])
        print("every", text.name, steps)
        if steps.count("griddepcontrol.wait") != (number > 0):
            return 1
        before = steps[: steps.index("griddepcontrol.wait")] if number else []
        if "st.global" in before or ("ld.global" in before) != (number > 0 and "_tem_" in text.name):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
