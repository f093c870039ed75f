"""Batches of products, and long sums in parts, in Triton's interpreter: what becomes one kernel, and its numbers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze import pipeline
from braze.codegen.triton import generate
from braze.codegen.triton.gemm import tiles_of
from braze.codegen.triton.gemm_tiles import Means, batch_candidates
from braze.loops.ir import ExternCall, TemplateCall
from braze.products import DeviceProduct, Way, parts_of
from braze.schedule.facts.records import GroupKind
from tests.codegen.test_triton import offline
from tests.codegen.test_triton_gemm import (
    no_further,
    numbers,
    planned_for,
)
from tests.codegen.triton_bench import captured, context, planned, run
from tests.loops.interpret import interpret

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def kinds(plan):
    return [g.kind.value for g in plan.groups]


def in_every_cut(plan, folder, fn, inputs, most=3):
    """The schedule's kernels, their templates in the rule's tiles and a few others, against eager; its loops, interpreted, as well."""
    no_further(run(plan, folder, *inputs), fn, inputs)
    if not any(x.dtype is BF16 for x in inputs):
        no_further(interpret(plan.program, list(inputs)), fn, inputs)
    for group in plan.groups:
        if isinstance(group.call, TemplateCall):
            for tiles in tiles_of(group.call)[1:most]:
                ctx = dataclasses.replace(context(), tiles=((group.name, tiles.text()),))
                no_further(run(plan, folder, *inputs, texts=generate(plan, ctx)), fn, inputs)
    return plan


def check(fn, folder, *inputs, most=3):
    return in_every_cut(planned(fn, *inputs, matmul_template=True), folder, fn, inputs, most)


# -- batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(
    ("b", "m", "k", "n"), [(1, 1, 1, 1), (3, 19, 40, 33), (2, 1, 64, 40), (2, 65, 16, 64), (2, 130, 33, 5), (1, 16, 200, 17)]
)  # fmt: skip
def test_a_batch_of_products(b, m, k, n, dtype, tmp_path):
    x, y = numbers(b, m, k, dtype=dtype), numbers(b, k, n, dtype=dtype, seed=1)
    assert kinds(check(lambda x, y: torch.bmm(x, y), tmp_path, x, y)) == ["tem"]


def test_every_cut_of_a_batch(tmp_path):
    x, y = numbers(2, 70, 48, dtype=F16), numbers(2, 48, 40, dtype=F16, seed=1)
    check(lambda x, y: torch.bmm(x, y), tmp_path, x, y, most=99)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_floats_of_few_rows_are_multiplied_exactly(rows, tmp_path):
    x, y = numbers(3, rows, 70), numbers(3, 70, 20, seed=1)
    assert kinds(check(lambda x, y: torch.bmm(x, y), tmp_path, x, y, most=99)) == ["tem"]


def test_floats_of_more_rows_are_atens():
    plan = planned(lambda x, y: torch.bmm(x, y), numbers(3, 9, 70), numbers(3, 70, 20), matmul_template=True)
    assert kinds(plan) == ["ext"]


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (numbers(3, 20, 40, dtype=F16), numbers(3, 24, 40, dtype=F16, seed=1).transpose(1, 2)),
        (numbers(3, 40, 20, dtype=F16).transpose(1, 2), numbers(3, 40, 24, dtype=F16, seed=1)),
        (
            numbers(20, 3, 40, dtype=F16).transpose(0, 1),
            numbers(40, 3, 24, dtype=F16, seed=1).transpose(0, 1),
        ),
        (numbers(4, 21, 48, dtype=F16)[1:, 1:, 8:], numbers(4, 40, 25, dtype=F16, seed=1)[1:, :, 1:]),
        (numbers(1, 20, 40, dtype=F16).expand(3, 20, 40), numbers(3, 40, 24, dtype=F16, seed=1)),
        (numbers(3, 20, 40, dtype=F16), numbers(1, 40, 24, dtype=F16, seed=1).expand(3, 40, 24)),
    ],
    ids=["right by columns", "left by columns", "batch inside", "offset", "one left", "one right"],
)
def test_matrices_of_any_strides(x, y, tmp_path):
    assert kinds(check(lambda x, y: torch.bmm(x, y), tmp_path, x, y)) == ["tem"]


def test_what_follows_is_done_on_the_tile(tmp_path):
    def fn(x, y, c, r):
        return F.gelu(torch.baddbmm(c, x, y)) * 0.5 + r

    x, y = numbers(2, 19, 40, dtype=F16), numbers(2, 40, 33, dtype=F16, seed=1)
    assert kinds(
        check(fn, tmp_path, x, y, numbers(33, dtype=F16, seed=2), numbers(2, 19, 33, dtype=F16, seed=3))
    ) == ["tem"]


def test_scores_are_scaled_and_masked_by_their_product(tmp_path):
    """A mask for each sequence, which its heads share: the kernel divides the number of its product."""

    def fn(q, k, mask):
        scores = torch.bmm(q, k.transpose(1, 2)).view(2, 3, 17, 21) * 0.125
        return scores + mask

    q, k = numbers(6, 17, 32, dtype=F16), numbers(6, 21, 32, dtype=F16, seed=1)
    plan = check(fn, tmp_path, q, k, numbers(2, 1, 1, 21, dtype=F16, seed=2))
    assert kinds(plan) == ["tem"] and "batch) // " in generate(plan, context())[0].source


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_a_cast_and_a_scale_before(dtype, tmp_path):
    def fn(x, s, y):
        return torch.bmm((x.float() * 0.125 * s).to(y.dtype), y).relu()

    given = numbers(3, 19, 40), numbers(40, seed=1), numbers(3, 40, 33, dtype=dtype, seed=2)
    plan = check(fn, tmp_path, *given, most=99)
    assert kinds(plan) == ["tem"] and plan.groups[0].call.prologue


def test_heads_are_taken_apart_and_scaled_by_their_product(tmp_path):
    """What a program does of its own rows: of which head it is one, it divides once."""

    def fn(q, k):
        q = (q.view(2, 17, 3, 32).transpose(1, 2) * 0.5).reshape(6, 17, 32)
        return torch.bmm(q, k.transpose(1, 2))

    plan = check(fn, tmp_path, numbers(2, 17, 96, dtype=F16), numbers(6, 21, 32, dtype=F16, seed=1), most=99)
    assert kinds(plan) == ["tem"]


@pytest.mark.parametrize("shape", [(1, 19, 40), (3, 1, 40), (3, 19, 1), (1, 1, 40)])
def test_a_scale_before_matrices_of_one_row_or_column(shape, tmp_path):
    b, _, k = shape
    fn = lambda x, y: torch.bmm(x * 0.5 + 1, y)
    check(fn, tmp_path, numbers(*shape, dtype=F16), numbers(b, k, 20, dtype=F16, seed=1), most=99)


def test_sums_before_a_batch_and_many_columns_are_kernels_of_their_own(tmp_path):
    x, y, wide = (
        numbers(2, 5, 40, dtype=F16),
        numbers(2, 40, 24, dtype=F16, seed=1),
        torch.empty(2, 40, 2048, dtype=F16),
    )
    assert kinds(check(lambda x, y: torch.bmm(torch.softmax(x, -1), y), tmp_path, x, y)) == ["per", "tem"]
    assert kinds(planned(lambda x, y: torch.bmm(x * 2, y), x, wide, matmul_template=True)) == ["poi", "tem"]


def test_what_others_read_too_is_not_dropped(tmp_path):
    def fn(x, y):
        z = x * 2
        return torch.bmm(z, y), z.sum(1)

    check(fn, tmp_path, numbers(2, 5, 40, dtype=F16), numbers(2, 40, 24, dtype=F16, seed=1))


def test_special_values_of_a_batch(tmp_path):
    x, y = numbers(2, 17, 33, dtype=F16), numbers(2, 33, 20, dtype=F16, seed=1)
    x[0, 3, 5], x[1, 2, 7], x[1, 4, :] = torch.nan, torch.inf, -0.0
    plan = planned(lambda x, y: torch.bmm(x, y), x, y, matmul_template=True)
    (ours,) = run(plan, tmp_path, x, y)
    wanted = torch.bmm(x, y)
    assert torch.equal(ours.isnan(), wanted.isnan()) and torch.equal(ours.isinf(), wanted.isinf())
    torch.testing.assert_close(ours, wanted, rtol=1e-2, atol=1e-2, equal_nan=True)


@pytest.mark.parametrize("scales", [{"alpha": 2}, {"beta": 0.5}])
def test_scaled_sums_are_atens(scales):
    x, y, c = numbers(2, 19, 40, dtype=F16), numbers(2, 40, 33, dtype=F16), numbers(33, dtype=F16)
    plan = planned(lambda c, x, y: torch.baddbmm(c, x, y, **scales), c, x, y, matmul_template=True)
    assert kinds(plan) == ["ext"]


@pytest.mark.parametrize(
    "shapes", [((0, 3, 4), (0, 4, 5)), ((2, 0, 4), (2, 4, 5)), ((2, 3, 0), (2, 0, 5)), ((2, 3, 4), (2, 4, 0))]
)
def test_empty_batches_are_atens(shapes):
    x, y = (torch.empty(s, dtype=F16) for s in shapes)
    assert "tem" not in kinds(planned(lambda x, y: torch.bmm(x, y), x, y, matmul_template=True))


def test_nobody_asks_for_a_batch_by_default():
    x, y = numbers(2, 3, 40, dtype=F16), numbers(2, 40, 64, dtype=F16)
    assert kinds(planned(lambda x, y: torch.bmm(x, y), x, y)) == ["ext"]


@pytest.mark.parametrize("place", [0, 1])
def test_batches_of_varying_sizes_are_atens(place):
    x, y = numbers(5, 19, 40, dtype=F16), numbers(5, 40, 33, dtype=F16)
    bounds = {0: (2, 9), 1: (2, 9)} if place == 0 else {0: (2, 9)}
    fn = (lambda x, y: torch.bmm(x, y)) if place == 0 else (lambda x, y: torch.bmm(x.transpose(0, 1), y))
    given = (x, y) if place == 0 else (x.transpose(0, 1), y)
    assert kinds(planned_for(fn, bounds, *given, matmul_template=True)) == ["ext"]


# -- sums in parts ----------------------------------------------------------------------------------------


def in_parts(fn, product, *inputs, cores=132):
    """The schedule of a function with a product whose sum is in parts."""
    ctx = dataclasses.replace(context(cores), device_products=((product, Way.PARTS),))
    partition = captured(fn, ctx, *inputs)
    with torch.no_grad():
        return pipeline.schedule_program(pipeline.lower_graph(partition, ctx), ctx)


def label(dtype):
    return {F16: "f16", BF16: "bf16"}[dtype]


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 512, 1), (19, 1024, 33), (70, 512, 5), (3, 1536, 130)])
def test_parts_of_a_sum_are_added_with_what_follows(m, k, n, dtype, tmp_path):
    def fn(x, w, b, r):
        return F.relu(F.linear(x, w, b)) + r

    x, w = numbers(m, k, dtype=dtype, scale=0.2), numbers(n, k, dtype=dtype, seed=1, scale=0.2)
    given = x, w, numbers(n, dtype=dtype, seed=2), numbers(m, n, dtype=dtype, seed=3)
    plan = in_parts(fn, DeviceProduct(label(dtype), m, k, n), *given)
    template, added = plan.groups
    assert template.kind is GroupKind.TEMPLATE and added.steps and template.call.batch is not None
    in_every_cut(plan, tmp_path, fn, given, most=99 if n == 33 else 2)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (numbers(512, 19, dtype=F16, scale=0.2).t(), numbers(512, 33, dtype=F16, seed=1)),
        (numbers(21, 520, dtype=F16, scale=0.2)[1:, 8:], numbers(513, 33, dtype=F16, seed=1)[1:]),
        (numbers(1, 512, dtype=F16, scale=0.2).expand(19, 512), numbers(33, 512, dtype=F16, seed=1).t()),
    ],
    ids=["by columns", "offset", "one row"],
)
def test_parts_of_matrices_of_any_strides(x, y, tmp_path):
    fn = lambda x, y: x @ y
    plan = in_parts(fn, DeviceProduct("f16", x.shape[0], 512, 33), x, y)
    assert kinds(plan)[-2:] == ["tem", "per"]
    in_every_cut(plan, tmp_path, fn, (x, y), most=2)


def test_a_norm_before_parts_is_a_kernel_of_its_own(tmp_path):
    def fn(x, g, w):
        wide = x.float()
        return F.linear(g * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype), w)

    given = (
        numbers(3, 1024, dtype=F16),
        numbers(1024, dtype=F16, seed=1),
        numbers(20, 1024, dtype=F16, seed=2, scale=0.1),
    )
    plan = in_parts(fn, DeviceProduct("f16", 3, 1024, 20), *given)
    assert kinds(plan) == ["per", "tem", "per"]
    in_every_cut(plan, tmp_path, fn, given, most=2)


def test_a_gate_in_parts_meets_its_value_in_their_sum(tmp_path):
    def fn(x, w):
        gate, up = F.linear(x, w).chunk(2, -1)
        return F.silu(gate) * up

    x, w = numbers(17, 512, dtype=F16, scale=0.2), numbers(48, 512, dtype=F16, seed=1, scale=0.2)
    plan = in_parts(fn, DeviceProduct("f16", 17, 512, 48), x, w)
    assert kinds(plan)[0] == "tem" and len(plan.groups[0].call.args) == 2
    in_every_cut(plan, tmp_path, fn, (x, w), most=2)


def test_special_values_in_parts(tmp_path):
    x, w = numbers(3, 512, dtype=F16), numbers(20, 512, dtype=F16, seed=1, scale=0.1)
    x[0, 3], x[1, 500] = torch.nan, torch.inf
    fn = lambda x, w: F.linear(x, w)
    (ours,) = run(in_parts(fn, DeviceProduct("f16", 3, 512, 20), x, w), tmp_path, x, w)
    wanted = fn(x, w)
    assert torch.equal(ours.isnan(), wanted.isnan()) and torch.equal(ours.isinf(), wanted.isinf())


def test_parts_are_for_products_that_were_measured_so():
    x, w = numbers(19, 1024, dtype=F16), numbers(33, 1024, dtype=F16)
    fn = lambda x, w: F.linear(x, w)
    other = in_parts(fn, DeviceProduct("f16", 20, 1024, 33), x, w)
    assert [isinstance(g.call, ExternCall) for g in other.groups] == [True]
    assert kinds(planned(fn, x, w, matmul_template=True)) == ["tem"]


def test_how_many_parts_a_sum_has():
    def parts(rows, inner, columns, dtype="bf16", batch=0):
        return parts_of(DeviceProduct(dtype, rows, inner, columns, batch), 132)

    assert parts(16, 14336, 1024) == 16 and parts(64, 65536, 64) == 32
    assert parts(16, 256, 64) == parts(4096, 4096, 4096) == parts(None, 65536, 64) == 1
    assert parts(16, 50257, 64) == 1, "parts are equal"
    assert parts(4, 65536, 64, "f32") == parts(16, 65536, 64, batch=3) == 1
    for inner in (512, 1536, 5120, 11008):
        count = parts(8, inner, 128)
        assert inner % count == 0 and inner // count >= 256


# -- ways ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 8, 16, 17, 64, 65, 2048])
@pytest.mark.parametrize(("inner", "columns"), [(64, 2048), (2048, 64), (5, 3), (128, 1)])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_ways_to_cut_a_batch(rows, inner, columns, itemsize):
    found = batch_candidates(rows, inner, columns, itemsize)
    assert 1 <= len(found) <= 7 and len(set(found)) == len(found)
    for t in found:
        assert (
            t.columns & (t.columns - 1) == 0 and t.inner & (t.inner - 1) == 0 and t.rows & (t.rows - 1) == 0
        )
        assert t.means is Means.MULTIPLY or min(t.rows, t.columns, t.inner) >= 16


@pytest.mark.slow
def test_cuts_of_batches_and_parts_fit_a_multiprocessor():
    printed = [
        line for line in offline("tests.codegen.batches_offline").splitlines() if line.startswith("cut ")
    ]
    spilled = [line for line in printed if " 0 bytes of stack" not in line]
    assert len(printed) > 20 and len(spilled) <= 3, spilled
    assert any("wgmma True" in line for line in printed)
