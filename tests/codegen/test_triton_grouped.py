"""Grouped products by our own kernel, in Triton's interpreter: what becomes one kernel, and its numbers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.codegen.triton.gemm_tiles import Means, Tiles
from braze.codegen.triton.grouped import grouped_tiles_of
from braze.loops.ir import TemplateCall
from tests.codegen.test_triton_gemm import halves_multiplied, no_further, numbers  # noqa: F401
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
