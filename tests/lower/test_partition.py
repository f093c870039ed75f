"""Whole partitions: roles become buffer kinds, constants of the graph become inputs, models lower right."""

from __future__ import annotations

import pytest
import torch

from braze import aot, decomp
from braze.context import CompileContext
from braze.graph.fakes.fakes import new_mode
from braze.graph.nodes.facts import InputRole, set_facts
from braze.loops.ir import BufferKind, ExternCall, LoopProgram
from braze.loops.verify import verify
from braze.lower import lower
from braze.options import Options
from braze.target import cpu_target
from tests.loops.interpret import interpret
from tests.lower.conftest import _flat

CONTEXT = CompileContext(Options(), cpu_target(), "test")


class Net(torch.nn.Module):
    """Embedding, a norm, attention, a gated layer and a head, as in a small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(20, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.qkv = torch.nn.Linear(16, 48)
        self.out = torch.nn.Linear(16, 16, bias=False)
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(ids))
        q, k, v = self.qkv(x).view(2, 6, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(2, 6, 16))
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)))) * self.scale
        return torch.softmax(x @ self.table.weight.t(), -1)


def partition_of(module: torch.nn.Module, *inputs: torch.Tensor) -> tuple[aot.Partition, list[torch.Tensor]]:
    """A module's partition, and the real tensors of its placeholders."""
    traced = torch.fx.symbolic_trace(module)
    graph, tensors, fakes = torch.fx.Graph(), [], []
    mode = new_mode()
    env: dict[torch.fx.Node, torch.fx.Node] = {}
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    held: dict[str, torch.fx.Node] = {}

    def take(name: str, tensor: torch.Tensor, role: str) -> torch.fx.Node:
        node = graph.placeholder(name.replace(".", "_"))
        node.meta["val"] = mode.fake(tensor.detach())
        set_facts(node, role=InputRole(role))
        tensors.append(tensor.detach())
        fakes.append(node.meta["val"])
        return node

    waiting = list(inputs)
    for name, tensor in state.items():
        held[name] = take(name, tensor, "parameter")
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            env[node] = take(node.name, waiting.pop(0), "user")
        elif node.op == "get_attr":
            env[node] = held[node.target]
        elif node.op == "call_module":
            called = module.get_submodule(node.target)
            (x,) = (env[a] for a in node.args)
            p = {n: held[f"{node.target}.{n}"] for n, _ in called.named_parameters()}
            if isinstance(called, torch.nn.Linear):
                env[node] = graph.call_function(torch.nn.functional.linear, (x, p["weight"], p.get("bias")))
            elif isinstance(called, torch.nn.Embedding):
                env[node] = graph.call_function(torch.nn.functional.embedding, (x, p["weight"]))
            else:
                env[node] = graph.call_function(
                    torch.nn.functional.layer_norm,
                    (x, called.normalized_shape, p["weight"], p["bias"], called.eps),
                )
        else:
            env[node] = graph.node_copy(node, lambda n: env[n])
    graph.eliminate_dead_code()
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    with torch.no_grad():
        part = aot.partition(gm, fakes, CONTEXT, decomp.table())
    return part, tensors


@pytest.fixture(scope="module")
def net() -> tuple[Net, torch.Tensor, LoopProgram, list[torch.Tensor]]:
    torch.manual_seed(0)
    module, ids = Net().eval(), torch.randint(0, 20, (2, 6))
    part, tensors = partition_of(module, ids)
    return module, ids, lower(part, CONTEXT), tensors


def test_small_language_model(net: tuple) -> None:
    """The whole program gives eager's answer."""
    module, ids, program, tensors = net
    verify(program)
    with torch.no_grad():
        eager = _flat(module(ids))
        reference = _flat(module.double()(ids))
        module.float()
    for ours, e, r in zip(interpret(program, tensors), eager, reference, strict=True):
        # of a whole model the norm counts: single elements round by luck
        error, bound = (ours.double() - r).norm(), (e.double() - r).norm()
        assert error <= 1.5 * bound + 1e-7 * r.norm()


def test_roles_become_kinds(net: tuple) -> None:
    """Parameters are CONSTANT, what the caller passes is INPUT, in the order of the placeholders."""
    _, _, program, tensors = net
    assert len(program.inputs) == len(tensors)
    kinds = [program.buffer(name).kind for name in program.inputs]
    assert kinds.count(BufferKind.INPUT) == 1
    assert kinds[-1] is BufferKind.INPUT


def test_nothing_falls_back(net: tuple) -> None:
    """Only attention and the products over user values run through ATen."""
    _, _, program, _ = net
    targets = {s.target.split(".")[1] for s in program.steps if hasattr(s, "target")}
    assert all("scaled_dot_product" in t for t in targets), targets


class Masked(torch.nn.Module):
    """Attention of every place to every other from ``limit`` on, as model code writes it."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        places = torch.arange(q.size(2)) + 0
        mask = (places[:, None] >= self.limit).expand(2, 1, 5, 5)
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return a + torch.nn.functional.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask)


@pytest.mark.parametrize(("limit", "given"), [(0, 3), (3, 4)])
def test_a_mask_that_hides_nothing_is_left_out(limit: int, given: int) -> None:
    """Masks made from positions are often true everywhere; ATen's fast kernels want none then."""
    part, tensors = partition_of(Masked(limit), *(torch.randn(2, 2, 5, 8) for _ in range(3)))
    program = lower(part, CONTEXT)
    assert [len(s.args) for s in program.steps if isinstance(s, ExternCall)] == [given, given]
    torch.testing.assert_close(interpret(program, tensors)[0], Masked(limit)(*tensors))


def test_constants_of_the_graph_are_its_last_inputs() -> None:
    """A tensor that the traced code held is handed in after the graph's inputs."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    mode = new_mode()
    x.meta["val"] = mode.fake(torch.ones(3))
    c = graph.get_attr("c")
    y = graph.call_function(torch.add, (x, c))
    z = graph.call_function(torch.mul, (y, c))
    graph.output((z,))
    root = torch.nn.Module()
    root.c = torch.tensor([1.0, 2.0, 3.0])
    part = aot.partition(torch.fx.GraphModule(root, graph), [x.meta["val"]], CONTEXT, decomp.table())
    program = lower(part, CONTEXT)
    verify(program)
    assert len(program.attributes) == 1
    held = [getattr(part.forward, name) for name in program.attributes]
    (out,) = interpret(program, [torch.ones(3), *held])
    assert torch.equal(out, (torch.ones(3) + root.c) * root.c)
