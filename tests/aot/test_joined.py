"""Linear layers of one input are one product on a GPU in inference, where that pays; executed here on the CPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from braze import pipeline
from braze.aot.passes import joined
from braze.loops.ir import ExternCall
from braze.schedule.facts.choices import Choices
from tests.aot.cuda_fakes import CTX, partition_on_gpu

aten = torch.ops.aten
BF16 = torch.bfloat16


@pytest.fixture
def kept(monkeypatch):
    """Whatever is made of parameters is kept."""
    monkeypatch.setattr(Choices, "worth_a_look", lambda self, steps, made: True)


def layers(part):
    return [n for n in part.forward.graph.nodes if n.target is aten.linear.default]


def widths(part):
    return [n.args[1].meta["val"].shape[0] for n in layers(part)]


def tensors(shapes, dtype=BF16):
    return [torch.randn(s, dtype=dtype) for s in shapes]


def same_as_eager(f, part, shapes):
    inputs = tensors(shapes, torch.float64)
    want = f(*inputs)
    want = want if isinstance(want, tuple) else (want,)
    items = part.forward.graph.output_node().args[0]
    for ours, node, eager in zip(part.forward(*inputs), items, want, strict=True):
        torch.testing.assert_close(ours, eager)
        assert node.meta["val"].stride() == eager.stride()


def attention(x, wq, bq, wk, bk, wv, bv, wo):
    q, k, v = (
        F.linear(x, w, b).unflatten(-1, (4, -1)).transpose(1, 2) for w, b in ((wq, bq), (wk, bk), (wv, bv))
    )
    out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return F.linear(out, wo)


WIDE = [(2, 8, 1024), *[(1024, 1024), (1024,)] * 3, (1024, 1024)]


def test_queries_keys_and_values_are_windows_on_one_product_whose_weights_are_copied_once():
    def two(x, *weights):
        return attention(attention(x, *weights[:7]), *weights[7:])

    shapes = [*WIDE, *WIDE[1:]]
    part = partition_on_gpu(two, tensors(shapes), range(1, 15))
    assert widths(part) == [3072, 1024, 3072, 1024]
    apart = dataclasses.replace(CTX, options=dataclasses.replace(CTX.options, matmul_template=False))
    plan = pipeline.schedule_program(pipeline.lower_graph(part, apart), apart)
    assert len(plan.groups) == 6 and all(isinstance(g.call, ExternCall) for g in plan.groups)
    assert plan.fixed is not None and len({name for group in plan.fixed.groups for name in group.writes}) == 4
    same_as_eager(two, part, shapes)


def test_one_copy_that_is_not_worth_a_look_at_each_call_is_not_made():
    part = partition_on_gpu(attention, tensors(WIDE), range(1, 8))
    assert widths(part) == [1024] * 4


def test_copies_are_made_up_to_a_limit(kept, monkeypatch):
    monkeypatch.setattr(joined, "MOST", 3 * 1025 * 1024 * 2)

    def two(x, *weights):
        return attention(attention(x, *weights[:7]), *weights[7:])

    part = partition_on_gpu(two, tensors([*WIDE, *WIDE[1:]]), range(1, 15))
    assert widths(part) == [3072, 1024, 1024, 1024, 1024, 1024]


def gated(x, gate, up):
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


CASES = {
    "a gate": (gated, [(6, 32), (48, 32), (48, 32)], [96]),
    "unlike widths": (
        lambda x, a, b: F.linear(x, a).relu().sum() * F.linear(x, b).relu(), [(6, 32), (48, 32), (16, 32)], [64],
    ),
    "a vector": (gated, [(32,), (48, 32), (48, 32)], [96]),
    "one row": (gated, [(1, 1, 32), (48, 32), (48, 32)], [96]),
    "no rows": (gated, [(0, 32), (48, 32), (48, 32)], [96]),
    "one input column": (gated, [(6, 1), (8, 1), (8, 1)], [16]),
    "one has a bias": (
        lambda x, a, b, c, d: F.linear(x, a, d).relu() + F.linear(x, b).relu() + F.linear(x, c, d).relu(),
        [(6, 32), (16, 32), (16, 32), (16, 32), (16,)],
        [16, 16, 16],
    ),
    "joined rows of one view": (
        lambda x, a, b: (F.linear(x, a).view(-1) + F.linear(x, b).view(-1)),
        [(2, 3, 32), (16, 32), (16, 32)],
        [32],
    ),
    "two inputs": (lambda x, a, b: F.linear(x, a).relu() + F.linear(x + 1, b), [(6, 32), (16, 32), (16, 32)], [16, 16]),
    "a product between": (
        lambda x, a, b: F.linear(F.linear(x, a), b) + F.linear(x, b), [(6, 16), (16, 16), (16, 16)], [16, 16, 16],
    ),
    "results that leave": (lambda x, a, b: (F.linear(x, a), F.linear(x, b).view(-1)), [(6, 32), (16, 32), (16, 32)], [16, 16]),
    "by place": (
        lambda x, a, b: F.linear(x, a).as_strided((4, 3), (7, 2), 1) * F.linear(x, b).sum(), [(6, 32), (16, 32), (16, 32)], [16, 16],
    ),
    "the same weight": (lambda x, a: F.linear(x, a).relu() + F.linear(x, a), [(6, 32), (16, 32)], [16]),
    "widths that 16 bytes do not divide": (gated, [(6, 32), (12, 32), (12, 32)], [12, 12]),
    "no columns": (gated, [(6, 32), (0, 32), (0, 32)], [0, 0]),
    "a part that leaves beside two that stay": (
        lambda x, a, b, c: (F.linear(x, a).relu() * F.linear(x, c).relu(), F.linear(x, b)),
        [(6, 32), (16, 32), (24, 32), (16, 32)],
        [32, 24],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_joined_products_are_the_products(kept, case):
    f, shapes, want = CASES[case]
    part = partition_on_gpu(f, tensors(shapes), range(1, len(shapes)))
    assert sorted(widths(part)) == sorted(want)
    same_as_eager(f, part, shapes)
    pipeline.schedule_program(pipeline.lower_graph(part, CTX), CTX)


@pytest.mark.parametrize("parameters", [(), (1,)])
def test_weights_that_are_not_all_parameters_stay_apart(kept, parameters):
    part = partition_on_gpu(gated, tensors([(6, 32), (48, 32), (48, 32)]), parameters)
    assert widths(part) == [48, 48]


@pytest.mark.parametrize(("rows", "want"), [(1, [6144]), (1024, [6144]), (65536, [3072, 3072])])
def test_large_products_stay_apart_since_a_launch_less_is_nothing_beside_them(kept, rows, want):
    part = partition_on_gpu(
        gated, [torch.empty(s, dtype=BF16) for s in [(rows, 1024), (3072, 1024), (3072, 1024)]], (1, 2)
    )
    assert widths(part) == want
