"""Grouped products by our own kernel, in Triton's interpreter: what becomes one kernel, and its numbers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.codegen.triton.gemm_tiles import Means, Tiles
from braze.codegen.triton.waits import is_step
from braze.loops.ir import TemplateCall
from braze.lower import LOWERINGS
from braze.lower.products.grouped import device_grouped
from braze.products import Grouped
from tests.codegen.test_triton import offline
from tests.codegen.test_triton_gemm import no_further, numbers, planned_for
from tests.codegen.triton_bench import context, planned, run
from tests.loops.interpret import interpret

BF16, F32 = torch.bfloat16, torch.float32
#: small tiles, of which groups have several, with and without bands
CUTS = (Tiles(Means.CORES, 16, 16, 16), Tiles(Means.CORES, 16, 32, 32, 1, 4, 2, 2))


def product(x, w, ends):
    """PyTorch's, and in float64, of which it has none, one product after the other."""
    if x.dtype is not torch.float64:
        return torch._grouped_mm(x, w, offs=ends)
    made = [x[begin:end] @ m for begin, end, m in zip([0, *ends.tolist()], ends.tolist(), w)]
    return torch.cat([*made, x.new_zeros(len(x) - int(ends[-1]), w.shape[2])])


def given(ends=(5, 5, 43, 60), k=24, n=40, dtype=BF16, extra=0):
    """Rows, matrices that lie by columns as a layer's weights do, and where rows end."""
    x = numbers((ends[-1] if ends else 0) + extra, k, dtype=dtype)
    w = numbers(len(ends), n, k, dtype=dtype, seed=1).transpose(1, 2)
    return x, w, torch.tensor(ends, dtype=torch.int32)


def kinds(plan):
    return [g.kind.value for g in plan.groups]


def ours(fn, *inputs):
    return planned(fn, *inputs, grouped_template=True)


def check(fn, folder, *inputs, rows=None, cuts=CUTS):
    """The function's kernels, its template in the rule's cut and others, against eager, and its loops, interpreted; ``rows``: those that count."""
    plan = ours(fn, *inputs)

    def told(*given):
        return fn(*given)[:rows]

    def compare(found):
        no_further([y[:rows] for y in found], told, inputs)

    compare(run(plan, folder, *inputs))
    compare(interpret(plan.program, list(inputs)))
    for group in plan.groups:
        if isinstance(group.call, TemplateCall):
            for cut in cuts:
                ctx = dataclasses.replace(context(), tiles=((group.name, cut.text()),))
                compare(run(plan, folder, *inputs, texts=generate(plan, ctx)))
    return plan


@pytest.mark.parametrize(
    "ends",
    [(5, 5, 43, 60), (1, 2, 3, 4), (0, 0, 0, 7), (64,), (16, 32, 48), (0, 1, 34, 34, 34, 35, 100, 100, 133)],
    ids=str,
)
def test_groups_of_every_size(ends, tmp_path):
    plan = check(product, tmp_path, *given(ends))
    assert kinds(plan) == ["tem"]


def test_rows_that_no_group_has_are_not_told_of(tmp_path):
    """What becomes of them is not said; that it is written down is, for what else stands in the kernel."""
    x, w, ends = given(extra=21)

    def both(x, w, ends):
        return F.relu(product(x, w, ends))

    plan = check(both, tmp_path, x, w, ends, rows=60)
    (found,) = run(plan, tmp_path, x, w, ends)
    assert not found[60:].any()


@pytest.mark.parametrize(("k", "n"), [(8, 8), (16, 8), (72, 136), (40, 264)], ids=str)
def test_sizes_that_no_tile_divides(k, n, tmp_path):
    check(product, tmp_path, *given(k=k, n=n))


def gated(x, w, ends):
    gate, up = product(x, w, ends).chunk(2, -1)
    return F.silu(gate) * up


def test_both_halves_of_a_gated_layer_meet_in_the_kernel(tmp_path):
    plan = check(gated, tmp_path, *given(n=80), cuts=(CUTS[1],))
    assert kinds(plan) == ["tem"] and len(plan.groups[0].call.rights) == 2


def test_what_follows_is_done_on_the_tile(tmp_path):
    """A bias of each expert, looked up; a residual; a weight of each row; a cast."""
    x, w, ends = given()
    bias, residual, weights = (
        numbers(*s, dtype=BF16, seed=k) for k, s in enumerate([(4, 40), (60, 40), (60,)])
    )
    which = torch.repeat_interleave(torch.arange(4), torch.tensor([5, 0, 38, 17]))

    def following(x, w, ends, bias, which, residual, weights):
        return ((product(x, w, ends) + bias.index_select(0, which)) * weights.unsqueeze(1) + residual).float()

    plan = check(following, tmp_path, x, w, ends, bias, which, residual, weights, cuts=CUTS[:1])
    assert kinds(plan) == ["tem"]


def test_rows_that_are_made_and_matrices_that_lie_otherwise(tmp_path):
    x, w, ends = given(k=24, n=40)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))

    def sorted_rows(x, w, ends, order):
        return product(x.index_select(0, order) * 2, w, ends)

    check(sorted_rows, tmp_path, x, w, ends, order, cuts=())
    by_rows = w.contiguous()
    check(product, tmp_path, x, by_rows, ends)
    check(product, tmp_path, numbers(60, 64, dtype=BF16)[:, 8:32], by_rows, ends)
    check(product, tmp_path, x, numbers(7, 24, 96, dtype=BF16)[2:6, :, 16:56], ends)
    check(product, tmp_path, x[:1].expand(60, 24).contiguous(), w[:1].expand(4, 24, 40), ends)
    apart = torch.tensor([5, 0, 5, 0, 43, 0, 60, 0], dtype=torch.int32)[::2]
    check(product, tmp_path, x, w, apart)


def test_rows_are_looked_up_by_the_kernel_itself(tmp_path):
    """A token that chose two experts is read by both; the sorted copy is not made."""
    x, w, ends = given(n=80)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))

    def chosen(x, w, ends, order):
        return gated(x.index_select(0, order // 2), w, ends)

    plan = check(chosen, tmp_path, x[:30], w, ends, order, cuts=CUTS[1:])
    assert kinds(plan) == ["poi", "tem"]  # whose rows they are
    assert [b.sizes[0].value for b in plan.program.buffers if b.name in plan.groups[0].writes] == [60]
    *_, (text, _, walk) = (t.source.partition("for roffset") for t in generate(plan, context()))
    assert "tl.load(tl.broadcast_to(in_ptr0" in text and "in_ptr0" not in walk  # once, not in each step


def test_rows_that_others_see_or_that_are_computed_are_made(tmp_path):
    """Once, for all who read them; two products that alone read sorted rows look them up each."""
    x, w, ends = given()
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    other = numbers(4, 24, 16, dtype=BF16, seed=3)

    def returned(x, w, ends, order):
        rows = x.index_select(0, order)
        return product(rows, w, ends), rows

    def computed(x, w, ends, order):
        return product(x.index_select(0, order).relu(), w, ends)

    def twice(x, w, ends, order, other):
        rows = x.index_select(0, order)
        return product(rows, w, ends), product(rows, other, ends)

    for fn, inputs, wanted in (
        (returned, (x, w, ends, order), ["poi", "tem"]),
        (computed, (x, w, ends, order), ["poi", "tem"]),
        (twice, (x, w, ends, order, other), ["tem", "tem"]),
    ):
        plan = ours(fn, *inputs)
        assert kinds(plan) == wanted, fn.__name__
        no_further(run(plan, tmp_path, *inputs), fn, inputs)


def test_infinities_and_nan_stay_with_their_rows(tmp_path):
    x, w, ends = given()
    x[0, 0], x[4, 3], x[44, 1] = torch.inf, torch.nan, -torch.inf
    w[1] = torch.nan  # of a group without rows
    (found,) = run(ours(product, x, w, ends), tmp_path, x, w, ends)
    torch.testing.assert_close(found, product(x, w, ends), equal_nan=True, rtol=0.02, atol=0.02)


def test_ends_that_do_not_rise_touch_no_memory_beyond(tmp_path):
    """PyTorch says nothing of these."""
    x, w, _ = given()
    for wrong in ([5, 3, 43, 600], [-7, -1, 2**31 - 1, -(2**31)], [60, 0, 60, 0]):
        ends = torch.tensor(wrong, dtype=torch.int32)
        run(ours(product, x, w, ends), tmp_path, x, w, ends)


@torch.library.custom_op("braze_tests::grouped", mutates_args=())
def of_half(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return product(x.double(), w.double(), ends).to(x.dtype)


@of_half.register_fake
def _(x, w, ends):
    return x.new_empty(x.shape[0], w.shape[2])


def test_float16_and_rows_that_no_group_has(monkeypatch, tmp_path):
    """By an operator of the test's own: PyTorch's takes bfloat16 alone from fakes. The rows are zeros, whatever is in the matrices."""
    x, w, ends = given(dtype=torch.float16, extra=20)

    def lowered(g, a, b, offs):
        g.grouped = Grouped("f16", 80, 4, 24, 40, "kk")
        return device_grouped(g, a, b, offs)

    monkeypatch.setitem(LOWERINGS, torch.ops.braze_tests.grouped.default, lowered)

    def scaled(x, w, ends):
        return torch.ops.braze_tests.grouped(x, w, ends) * 2

    assert kinds(check(scaled, tmp_path, x, w, ends)) == ["tem"]
    w[3] = torch.inf
    (found,) = run(ours(scaled, x, w, ends), tmp_path, x, w, ends)
    assert not found[60:].any() and not found[:5].isnan().any()


@pytest.mark.parametrize("most", [64, 4096])
def test_rows_of_a_number_that_only_a_call_tells(most):
    """A program for each tile that there may be."""
    x, w, ends = given()
    plan = planned_for(product, {0: (2, most)}, x, w, ends, grouped_template=True)
    (text,) = generate(plan, context())
    assert kinds(plan) == ["tem"] and text.sizes and "//" in text.launch.grid


def test_other_products_are_atens():
    x, w, ends = given()
    assert "tem" not in kinds(planned(product, x, w, ends, grouped_template=False))
    assert "tem" not in kinds(planned(product, x, w, ends))
    rows = torch.tensor([8, 8, 24, 24], dtype=torch.int32)

    def of_weights(a, b, ends):
        return torch._grouped_mm(a, b, offs=ends)

    two = numbers(16, 24, dtype=BF16), numbers(24, 40, dtype=BF16, seed=1), rows
    assert "tem" not in kinds(ours(of_weights, *two))
    three = (
        numbers(4, 16, 24, dtype=BF16),
        numbers(24, 40, dtype=BF16, seed=1),
        torch.tensor([8, 8, 24, 40], dtype=torch.int32),
    )
    assert "tem" not in kinds(ours(of_weights, *three))

    def of_batches(a, b):
        return torch._grouped_mm(a, b)

    assert "tem" not in kinds(ours(of_batches, numbers(4, 16, 24, dtype=BF16), w))


def test_a_step_with_experts_is_still_a_step():
    """Whose kernels begin before those ahead of them end."""
    x, w, ends = given((1, 2, 3, 4))

    def step(x, w, ends, v):
        return F.relu(product(F.linear(x, v), w, ends))

    plan = planned(step, x, w, ends, numbers(24, 24, dtype=BF16), grouped_template=True, matmul_template=True)
    assert kinds(plan) == ["tem", "tem"] and is_step(plan)


def test_machine_code_keeps_sums_in_registers():
    lines = [
        line for line in offline("tests.codegen.grouped_offline").splitlines() if " bytes of stack" in line
    ]
    assert len(lines) == 9 and all(" 0 bytes of stack" in line for line in lines), lines
    assert sum("wgmma True" in line for line in lines) == 2 and sum("gfx942" in line for line in lines) == 1
