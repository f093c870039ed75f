"""Convolutions on a GPU in channels-last, in inference too; executed here on the CPU, in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from braze import pipeline
from braze.aot import partition
from braze.aot.passes import layouts
from braze.decomp import convolutions as decomposed
from braze.decomp import table
from braze.loops.ir import ExternCall
from tests.aot.cuda_fakes import CTX, partition_on_gpu
from tests.aot.recording import record

aten = torch.ops.aten
LAST = torch.channels_last


def block(x, w, b, deep, v, scale, shift, mean, variance):
    """A stem, a pool, a residual of a depthwise and a plain convolution, a gate, and a head that flattens."""
    x = F.max_pool2d(F.relu(F.batch_norm(F.conv2d(x, w, b, 1, 1), mean, variance, scale, shift)), 2)
    y = F.conv2d(F.conv2d(x, deep, b, 1, 1, 1, 8), v, None, 1, 1)
    y = x + F.batch_norm(y, mean, variance, scale, shift) * torch.sigmoid(y.mean((2, 3), keepdim=True))
    return y, y.contiguous().view(y.shape[0], -1) * 2


def operands(dtype=torch.bfloat16):
    torch.manual_seed(0)
    shapes = [(2, 3, 12, 10), (8, 3, 3, 3), (8,), (8, 1, 3, 3), (8, 8, 3, 3), (8,), (8,), (8,), (8,)]
    found = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    return [*found[:-1], found[-1].abs()] if dtype is None else [x.to(dtype) for x in found]


def is_last(node):
    return node.meta["val"].is_contiguous(memory_format=LAST)


def convolutions(part):
    return [n for n in part.forward.graph.nodes if n.target is aten.convolution.default]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_operands_and_results_lie_in_channels_last(dtype):
    with torch.no_grad():
        part = partition_on_gpu(block, operands(dtype), range(1, 9))
    found = convolutions(part)
    assert len(found) == 3
    assert all(is_last(n) and is_last(n.args[0]) for n in found)
    assert [is_last(n.args[1]) for n in found] == [True] * 3
    pool = next(n for n in part.forward.graph.nodes if n.target is aten.max_pool2d_with_indices.default)
    assert is_last(pool.args[0])


def test_results_keep_eagers_strides():
    inputs = operands(torch.float32)
    with torch.no_grad():
        part = partition_on_gpu(block, inputs, range(1, 9))
        want = block(*inputs)
    items = part.forward.graph.output_node().args[0]
    assert [n.meta["val"].stride() for n in items] == [x.stride() for x in want]


def test_the_graph_computes_what_eager_computes():
    inputs = operands(None)
    with torch.no_grad():
        part = partition_on_gpu(block, operands(torch.float32), range(1, 9))
        for node in part.forward.graph.find_nodes(op="call_function", target=aten.view.default):
            node.target = aten.reshape.default  # layouts are what fakes say, which only lowering follows
        part.forward.recompile()
        found = part.forward(*inputs)
        for ours, want in zip(found, block(*inputs), strict=True):
            torch.testing.assert_close(ours, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("why", ["double", "no TF32", "no cuDNN", "option"])
def test_they_stay_as_in_eager_where_tensor_cores_do_not_compute_them(why):
    dtype, ctx = torch.float32, CTX
    if why == "double":
        dtype = torch.float64
    elif why == "option":
        ctx = dataclasses.replace(CTX, options=dataclasses.replace(CTX.options, channels_last=False))
    cudnn = torch.backends.cudnn.flags(enabled=why != "no cuDNN", allow_tf32=why != "no TF32")
    with torch.no_grad(), cudnn:
        part = partition_on_gpu(block, operands(dtype), range(1, 9), ctx)
    assert not any(is_last(n) or is_last(n.args[0]) for n in convolutions(part))


@pytest.mark.parametrize(
    ("side", "form", "recorded", "turned"),
    [
        (16, torch.contiguous_format, False, False),
        (16, torch.contiguous_format, True, True),
        (16, torch.channels_last, False, True),
        (512, torch.contiguous_format, False, True),
    ],
    ids=["small", "small and recorded", "small and turned before", "large"],
)
def test_a_lone_small_convolution_is_not_turned_by_copies_that_the_host_must_launch(
    side, form, recorded, turned
):
    shapes = [(2, 16, side, side), (16, 16, 3, 3)]
    x, w = (torch.empty(s, dtype=torch.bfloat16) for s in shapes)
    ctx = dataclasses.replace(CTX, options=dataclasses.replace(CTX.options, cudagraphs=recorded))
    with torch.no_grad():
        inputs = [x.to(memory_format=form), w]
        (found,) = convolutions(partition_on_gpu(lambda x, w: F.conv2d(x, w).relu(), inputs, (), ctx))
    assert is_last(found.args[0]) is turned


def test_convolutions_are_called_without_a_bias():
    """A kernel of ours that reads the result adds it: ATen would in one more pass."""
    with torch.no_grad():
        part = partition_on_gpu(block, operands(), range(1, 9))
        program = pipeline.lower_graph(part, CTX)
    calls = [s for s in program.steps if isinstance(s, ExternCall) and "convolution" in s.target]
    assert [s.args[2] for s in calls] == [None] * 3
    bias = program.inputs[2]
    plan = pipeline.schedule_program(program, CTX)
    readers = [g for g in plan.groups if bias in g.reads]
    assert len(readers) == 2 and not any(isinstance(g.call, ExternCall) for g in readers)


def three(x, a, b, c):
    """Weights enough that they are turned once."""
    return F.conv2d(F.conv2d(F.conv2d(x, a), b), c)


def test_weights_are_turned_once():
    shapes = [(2, 1024, 12, 10), *[(1024, 1024, 3, 3)] * 3]
    inputs = [torch.empty(s, dtype=torch.bfloat16) for s in shapes]
    with torch.no_grad():
        part = partition_on_gpu(three, inputs, (1, 2, 3))
        plan = pipeline.schedule_program(pipeline.lower_graph(part, CTX), CTX)
        host = pipeline.generate_code(plan, CTX)
    weights = plan.program.inputs[1:4]
    assert plan.fixed is not None and plan.fixed.program.inputs == weights
    assert not any(set(g.reads) & set(weights) for g in plan.groups)
    # the results count once the constants have been looked at, after all is launched
    assert (
        "look = fixed((" in host.source
        and "return call(inputs) if look.differs() else results" in host.source
    )
    assert not host.units  # no C, and so no compiler


def loss(x, w, v):
    y = F.conv2d(F.max_pool2d(torch.relu(F.conv2d(x, w, padding=1)), 2), v.to(x.dtype), padding=1)
    return y.square().mean()


def test_training_lies_in_channels_last_in_both_halves(monkeypatch):
    """On the CPU's fakes: autograd takes no others here."""
    monkeypatch.setattr(layouts, "is_on_gpu", lambda val: True)
    monkeypatch.setattr(decomposed, "has_type", lambda dtype: True)  # as a GPU has
    inputs = [
        torch.randn(2, 3, 8, 8, dtype=torch.bfloat16),
        torch.randn(8, 3, 3, 3, dtype=torch.bfloat16, requires_grad=True),
        torch.randn(8, 8, 3, 3, requires_grad=True),
    ]
    gm, fakes, _ = record(loss, inputs, grad=True)
    part = partition(gm, fakes, CTX, table(), free_layouts=True)
    first, second = convolutions(part)
    assert is_last(first) and is_last(second) and is_last(second.args[1])  # the cast writes it so
    assert first.args[1].op == "placeholder"  # ATen turns what changes in each step anyway
    graph = part.backward.graph.graph
    found = graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert len(found) == 2 and all(is_last(n.args[0]) for n in found)
    strides = [n.meta["val"].stride() for n in graph.output_node().args[0]]
    assert strides == [x.stride() for x in inputs[1:]]
    (pool,) = graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices_backward.default)
    assert [is_last(n) for n in pool.args[:2]] == [True, True]
