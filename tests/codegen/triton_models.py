"""From a graph on a GPU's fakes to sm_90 machine code, on a machine without one; prints one line a kernel.

A transformer layer and a residual block in bf16, through every stage of the pipeline. Run by test_triton.py in its
own process: Triton decides on import whether it interprets.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import fx
from torch.nn import functional as F

from benchmarks.machine_code import compile_offline, resources
from braze import pipeline
from braze.context import CompileContext
from braze.graph.fakes import fakes
from braze.graph.nodes.facts import InputRole, set_facts
from braze.graph.private import torch_compat
from braze.options import Options
from braze.target import cuda_target

CTX = CompileContext(Options(verify=2), cuda_target((9, 0), 132), "g")


def layer(ids, words, x, w1, b1, w2, b2, scale, shift):
    """Embedding, attention, feed-forward, norms, softmax."""
    x = F.layer_norm(x + F.embedding(ids, words), (64,), scale, shift)
    heads = x.view(8, 16, 4, 16).transpose(1, 2)
    x = x + F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(8, 16, 64)
    x = F.layer_norm(x + F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2), (64,), scale, shift)
    return torch.softmax(x, -1), x.mean((0, 1)), x.argmax(-1)


def block(x, w, scale, shift, mean, variance):
    """Convolutions with batch norm, the sum, pooling."""
    y = F.relu(F.batch_norm(F.conv2d(x, w, None, 1, 1), mean, variance, scale, shift))
    y = F.relu(x + F.batch_norm(F.conv2d(y, w, None, 1, 1), mean, variance, scale, shift))
    return F.max_pool2d(y, 3, 2, 1), F.adaptive_avg_pool2d(y, 1).flatten(1)


def two_sizes(x, w):
    """Kernels of one text over different counts of points, before and behind a product."""
    return (x.exp() @ w).exp()


LONG = torch.int64
CASES: list[tuple[Callable, list[tuple]]] = [
    (layer, [(8, 16), (1000, 64), (8, 16, 64), (128, 64), (128,), (64, 128), (64,), (64,), (64,)]),
    (two_sizes, [(20, 50), (50, 150)]),
    (block, [(4, 16, 8, 8), (16, 16, 3, 3), (16,), (16,), (16,), (16,)]),
]


def on_gpu(fn: Callable, shapes: list[tuple]) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """The function's graph and the fakes it is called with."""
    captured = fx.symbolic_trace(fn)
    mode = fakes.new_mode()
    examples = []
    places = [node for node in captured.graph.nodes if node.op == "placeholder"]
    for node, shape in zip(places, shapes, strict=True):
        meta = torch.empty(shape, dtype=LONG if node.name == "ids" else torch.bfloat16, device="meta")
        fake = torch_compat.assemble_fake(mode.dispatch, meta, torch.device("cuda:0"), False)
        node.meta["val"] = fake
        set_facts(node, role=InputRole.USER if node.name in ("x", "ids") else InputRole.PARAMETER)
        examples.append(fake)
    return captured, examples


def main() -> int:
    """Compile all; nonzero where a kernel has no machine code, or spills registers."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for fn, shapes in CASES:
            partition = pipeline.partition_graph(*on_gpu(fn, shapes), CTX)
            plan = pipeline.schedule_program(pipeline.lower_graph(partition, CTX), CTX)
            host = pipeline.generate_code(plan, CTX)
            print(fn.__name__, "launches", host.source.count("runtime.triton("))
            for text in host.kernels:
                built = compile_offline(text, Path(folder))
                registers, spilled = resources(built, Path(folder))
                print(fn.__name__, text.name, f"{registers} registers", f"{spilled} spilled")
                if not built["cubin"] or spilled:
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
