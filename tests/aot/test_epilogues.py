"""ReLU and GELU of a linear layer are the product's own on a GPU, where only PyTorch's calls read them; executed here on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from braze import pipeline
from braze.aot import partition
from braze.aot.passes import epilogues, layouts, padding
from braze.decomp import table
from braze.loops.ir import ExternCall
from tests.aot.cuda_fakes import CTX, partition_on_gpu
from tests.aot.recording import record

aten = torch.ops.aten
BF16 = torch.bfloat16
FUSED = aten._addmm_activation.default


def tensors(shapes, dtype=BF16):
    return [torch.randn(s, dtype=dtype) for s in shapes]


def fused(part):
    return [n for n in part.forward.graph.nodes if n.target is FUSED]


def same_as_eager(f, part, shapes):
    inputs = tensors(shapes, torch.float64)
    want = f(*inputs)
    items = part.forward.graph.output_node().args[0]
    for ours, node, eager in zip(part.forward(*inputs), items, want if isinstance(want, tuple) else (want,), strict=True):  # fmt: skip
        torch.testing.assert_close(ours, eager)
        assert node.meta["val"].stride() == eager.stride()


def gelu(x):
    return F.gelu(x, approximate="tanh")


def mlp(act):
    return lambda x, w, b, v, c: F.linear(act(F.linear(x, w, b)), v, c)


MLP = [(2, 3, 16), (24, 16), (24,), (8, 24), (8,)]


@pytest.mark.parametrize("act", [F.relu, gelu])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("rows", [(2, 3), (6,), (1,), (1, 1)])
def test_a_perceptron_is_two_calls(act, dtype, rows):
    shapes = [(*rows, 16), *MLP[1:]]
    part = partition_on_gpu(mlp(act), tensors(shapes, dtype), range(1, 5))
    (node,) = fused(part)
    assert node.kwargs["use_gelu"] == (act is gelu)
    plan = pipeline.schedule_program(pipeline.lower_graph(part, CTX), CTX)
    assert [g.call.target for g in plan.groups if isinstance(g.call, ExternCall)] == [
        "aten._addmm_activation.default",
        "aten.addmm.default",
    ]
    assert len(plan.groups) == 2
    # the CPU's kernel has the exact GELU, a GPU's the form by tanh
    same_as_eager(mlp(F.gelu if act is gelu else act), part, shapes)


def test_a_product_with_a_bias_of_its_own():
    shapes = [(24,), (6, 16), (16, 24)]
    part = partition_on_gpu(lambda c, a, b: torch.addmm(c, a, b).relu(), tensors(shapes))
    assert len(fused(part)) == 1
    same_as_eager(lambda c, a, b: torch.addmm(c, a, b).relu(), part, shapes)


APART = {
    "exact GELU": (mlp(F.gelu), MLP),
    "another function": (mlp(F.silu), MLP),
    "no bias": (lambda x, w, v: F.linear(F.relu(F.linear(x, w)), v), [(6, 16), (24, 16), (8, 24)]),
    "a kernel reads it": (lambda x, w, b: F.relu(F.linear(x, w, b)) * 2, MLP[:3]),
    "a norm reads a view of it": (lambda x, w, b: F.relu(F.linear(x, w, b)).view(-1, 12).softmax(1), MLP[:3]),
    "the product is read": (lambda x, w, b: [F.relu(y := F.linear(x, w, b)), y], MLP[:3]),
    "a scaled product": (lambda c, a, b: torch.addmm(c, a, b, beta=2).relu(), [(24,), (6, 16), (16, 24)]),
    "a bias a row": (lambda c, a, b: torch.addmm(c, a, b).relu(), [(6, 1), (6, 16), (16, 24)]),
    "one column": (lambda x, w, b: F.linear(x, w, b).relu(), [(6, 16), (1, 16), (1,)]),
    "no columns": (lambda x, w, b: F.linear(x, w, b).relu(), [(6, 16), (0, 16), (0,)]),
    "nothing to sum": (lambda x, w, b: F.linear(x, w, b).relu(), [(6, 0), (8, 0), (8,)]),
    "a vector": (lambda x, w, b: F.linear(x, w, b).relu(), [(16,), (8, 16), (8,)]),
    "no rows": (lambda x, w, b: F.linear(x, w, b).relu(), [(2, 0, 16), (8, 16), (8,)]),
    "turned rows": (lambda x, w, b: F.linear(x.transpose(0, 1), w, b).relu(), [(3, 2, 16), (8, 16), (8,)]),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_what_a_product_cannot_do_or_does_for_nothing_stays_apart(case):
    f, shapes = APART[case]
    part = partition_on_gpu(f, tensors(shapes))
    assert not fused(part)
    pipeline.schedule_program(pipeline.lower_graph(part, CTX), CTX)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types_whose_sums_were_not_compared_stay_apart(dtype):
    assert not fused(partition_on_gpu(mlp(F.relu), tensors(MLP, dtype)))


@pytest.mark.parametrize(("act", "many"), [(F.relu, 1), (gelu, 0)])
def test_in_training_the_backward_must_not_ask_for_what_the_function_read(monkeypatch, act, many):
    """ReLU's gradient reads its result, GELU's what it was made of; on the CPU's fakes, since autograd takes no others here."""
    for module in (layouts, padding, epilogues):
        monkeypatch.setattr(module, "is_on_gpu", lambda val: True)
    inputs = [t.requires_grad_() for t in tensors(MLP)]
    gm, fakes, _ = record(mlp(act), inputs, grad=True)
    part = partition(gm, fakes, CTX, table(), free_layouts=True)
    assert len(fused(part)) == many
