"""Tensors of 2^31 elements and more: places of 64 bits, and as many programs as a GPU runs. Nothing here has their memory."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

import braze
from braze import flex_kernels
from braze.codegen.triton import generate
from braze.loops import build
from braze.loops.ir import (
    Axis,
    Buffer,
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
from braze.runtime.triton.triton_load import load_module
from braze.schedule.facts.records import Group, GroupKind, MemoryPlan, Schedule
from braze.schedule.gpu.far import multiplies_far
from braze.symbolic.expr import ONE, ZERO, Integer, Symbol, axis_symbol, floor_div
from tests.codegen.triton_bench import context, planned

#: programs of a launch at most: along y and z there may be 65,535, which no launch of ours has any of
MOST = 2**31 - 1
F16, I64 = torch.float16, torch.int64


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, device="meta", dtype=dtype)


def texts(fn, *inputs):
    """The kernels of a function, by name."""
    return {text.name: text for text in generate(planned(fn, *inputs), context())}


def programs(text):
    return eval(text.launch.grid, {"max": max, "min": min})


def program_numbers(text):
    """What is made of the programs' numbers."""
    return re.findall(r"tl\.program_id\(0\)(?:\.to\(tl\.int64\))?", text.source)


TALL, LONG = meta(1 << 20, 4096), meta(16, 1 << 28)
BATCH, WINDOWS = meta(1 << 21, 32, 64, dtype=torch.bfloat16), meta(1 << 15, 64, 64, 64)


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (lambda x: x * 2, [TALL]),
        (lambda x, y: x + y.t(), [meta(1 << 17, 40000), meta(40000, 1 << 17)]),
        (lambda x: x.softmax(1), [TALL]),
        (lambda x: x.softmax(1), [LONG]),
        (lambda x: x.sum(1), [meta(1 << 29, 9)]),
        (lambda x: F.layer_norm(x, (1000,)), [meta(1 << 22, 1000)]),
        (lambda x: x.sum(0), [TALL]),
        (lambda x: x.softmax(0), [meta(4096, 1 << 20)]),
        (lambda x: x.sum(), [TALL]),
        (lambda x: x.var(), [TALL]),
        (lambda x: x.argmax(1), [LONG]),
        (lambda x: x.argmax(), [TALL]),
        (lambda x, i: F.embedding(i, x), [meta(1000, 4096), meta(1 << 20, dtype=I64)]),
        (lambda o, i, s: o.scatter_add(0, i, s), [meta(1000, 4096), meta(1 << 20, 4096, dtype=I64), TALL]),
        (lambda x: F.avg_pool2d(x, 2), [WINDOWS]),
        (lambda x, y: torch.bmm(x, y).relu(), [BATCH, meta(1 << 21, 64, 32, dtype=torch.bfloat16)]),
        (lambda x, y, z: torch._foreach_mul([x, y, z], 2.0), [TALL, meta(4), meta(5)]),
    ],
    ids=lambda value: "" if isinstance(value, list) else None,
)
def test_whoever_touches_a_tensor_of_more_than_32_bits_counts_in_64(fn, inputs):
    plan = planned(fn, *inputs)
    far = {b.name for b in plan.program.buffers if (b.last.value or 0) >= MOST}
    made = {text.name: text for text in generate(plan, context())}
    assert far and made
    touching = [text for text in made.values() if far & {*text.args}]
    assert touching
    for text in touching:
        assert all(".to(tl.int64)" in found for found in program_numbers(text)), text.source
    assert all(0 < programs(text) <= MOST for text in made.values())


@pytest.mark.parametrize(
    "fn",
    [
        lambda o, i, s: o.index_add(0, i, s.expand(1 << 20, 4096)),
        lambda o, i, s: o.scatter_add(0, i.unsqueeze(1).expand(1 << 20, 4096), s.expand(1 << 20, 4096)),
    ],
    ids=["index_add", "scatter_add"],
)
def test_points_that_no_buffer_holds_are_counted_in_64_bits(fn):
    """What is expanded is stored once: 2^32 points over buffers of 2^22 elements at most."""
    made = texts(fn, meta(1000, 4096), meta(1 << 20, dtype=I64), meta(1, 4096))
    (adding,) = [text for text in made.values() if programs(text) > 4000]
    assert all(".to(tl.int64)" in found for found in program_numbers(adding))


def test_a_place_of_an_extreme_that_no_buffer_holds_is_counted_in_64_bits():
    first, *_ = texts(lambda x, y: (x * y).argmax(), meta(1 << 18, 1), meta(1, 1 << 15)).values()
    assert first.name.endswith("part0") and all(".to(tl.int64)" in found for found in program_numbers(first))


def symbolic(loads, sizes, index, row=()):
    """A kernel over sizes that nobody knows: a copy, or the sum of ``row``."""
    axes = tuple(Axis(axis_symbol(f"i{k}", size), size) for k, size in enumerate(sizes))
    x = Buffer("x", DType.F32, sizes, loads, "cuda:0", BufferKind.INPUT)
    at = index(*(a.symbol for a in axes))
    value = build.load("x", DType.F32, at)
    if not row:
        y = replace(x, name="y", kind=BufferKind.OUTPUT)
        nest = LoopNest("copy", axes, (), (), (Store("y", at, value),), "cuda:0", ("copy",))
        group = Group("triton_poi_copy", GroupKind.POINTWISE, (nest,), axes, device="cuda:0")
    else:
        y = Buffer("y", DType.F32, (ONE,), (ONE,), "cuda:0", BufferKind.OUTPUT)
        store = Store("y", ZERO, Node(Op.REDUCED, DType.F32, (), 0))
        reduced = (Reduction(ReduceKind.SUM, DType.F32, value),)
        nest = LoopNest("sum", (), axes, reduced, (store,), "cuda:0", ("sum",))
        group = Group("triton_red_sum", GroupKind.LOOPED, (nest,), (), axes, device="cuda:0")
    program = LoopProgram("p", (x, y), group.steps, (), ())
    return generate(Schedule(program, (group,), MemoryPlan((), ZERO)), context())[0]


S0, S1 = Symbol("s0", 2, None), Symbol("s1", 2, None)


@pytest.mark.parametrize(
    ("sizes", "numbers"),
    [((S0, S1), (3_000_000, 1024)), ((S0, Integer(1024)), (3_000_000,)), ((S1, S0), (50_000, 50_000))],
    ids=["two sizes", "one size", "both large"],
)
def test_sizes_that_fit_32_bits_are_multiplied_in_64(sizes, numbers, tmp_path):
    """The first program of 3 x 10^9 points: of a product of 32 bits it would lie past the end, and write nothing."""
    text = symbolic((sizes[1], ONE), sizes, lambda i, j: i * sizes[1] + j)
    path = tmp_path / "kernel.py"
    path.write_text(text.source)
    x, y = torch.randn(1024), torch.zeros(1024)
    function = getattr(load_module(path), text.name)
    function[(1,)](x, y, *numbers, **dict(text.launch.constants))
    assert torch.equal(x, y)


def test_a_row_as_long_as_a_product_of_sizes_is_walked_to_its_end():
    text = symbolic((S1, ONE), (S0, S1), lambda i, j: i * S1 + j, row=(0, 1))
    assert re.search(r"rnumel = \(bz_long\(s0\)\)\*\(bz_long\(s1\)\)", text.source)


@pytest.mark.parametrize(
    ("number", "far"),
    [
        (S0, False),
        (S0 + 1023, False),
        (S0 * 64, True),
        (S0 * S1, True),
        (floor_div(S0 * S1 + 1023, Integer(1024)), True),
        (Symbol("n", 2, 4096) * 64, False),
        (axis_symbol("i", S0) * S1, False),  # a place has 64 bits by then
        (axis_symbol("i", S0) * S0 * S1, True),
    ],
    ids=str,
)
def test_only_products_of_sizes_can_pass_32_bits_on_the_way(number, far):
    sizes = frozenset({S0, S1, Symbol("n", 2, 4096)})
    assert multiplies_far(number, sizes) is far


#: kernels whose programs along y and z are heads of attention and the parts of a long sequence
OF_HEADS = {"triton_paged.py", "triton_rope_kernels.py"}


def test_no_launch_has_a_number_of_programs_along_y_or_z_that_data_decide():
    """There may be 65,535, and a launch of more is refused: what is counted stands along x."""
    sources = {path.name: path.read_text() for path in Path(braze.__file__).parent.rglob("*.py")}
    along = {name for name, text in sources.items() if re.search(r"program_id\([12]\)", text)}
    assert along - OF_HEADS == {"triton_greatest.py"}  # y: parts of 2,048 logits of a row
    assert flex_kernels._programs(70_000 * 16, 37, 16) == (3 * 70_000 * 16,)


def test_known_sizes_need_no_longer_numbers():
    (text,) = texts(lambda x: x.softmax(1), meta(4096, 1024)).values()
    assert "bz_long" not in text.source and "int64" not in text.source
