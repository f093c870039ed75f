"""Gradients over symbolic sizes: one capture, eager's numbers at each size, and no graph that runs as captured."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import braze
from braze.support import trace
from tests.helpers import logged

SIZES = [(4, 5), (3, 7), (6, 4)]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    braze.reset()
    yield
    braze.reset()


def leaf(*sizes: int) -> Tensor:
    return torch.rand(sizes, dtype=torch.float64).add_(0.1).requires_grad_()


def target(n: int, m: int) -> Tensor:
    return torch.arange(n) % m


#: name -> (program, its arguments for two sizes)
PROGRAMS: dict[str, tuple[Callable[..., Tensor], Callable[[int, int], tuple[Tensor, ...]]]] = {
    "matmul of batches": (torch.matmul, lambda n, m: (leaf(n, m, 3), leaf(n, 3, 4))),
    "matmul, one matrix": (torch.matmul, lambda n, m: (leaf(n, m, 3), leaf(3, 4))),
    "matmul, matrix first": (torch.matmul, lambda n, m: (leaf(m, 3), leaf(n, 3, 4))),
    "matmul, broadcast": (torch.matmul, lambda n, m: (leaf(n, 2, m, 3), leaf(2, 3, m))),
    "matmul by a vector": (torch.matmul, lambda n, m: (leaf(n, m, 3), leaf(3))),
    "matmul of a transpose": (lambda a, b: a @ b.mT, lambda n, m: (leaf(n, m, 3), leaf(n, m, 3))),
    "linear": (F.linear, lambda n, m: (leaf(n, m, 3), leaf(4, 3))),
    "linear with a bias": (F.linear, lambda n, m: (leaf(n, m, 3), leaf(4, 3), leaf(4))),
    "einsum": (
        lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b),
        lambda n, m: (leaf(n, 2, m, 3), leaf(n, 2, m, 3)),
    ),
    "bilinear": (F.bilinear, lambda n, m: (leaf(n, 3), leaf(n, 4), leaf(2, 3, 4))),
    "attention": (
        F.scaled_dot_product_attention,
        lambda n, m: (leaf(n, 2, m, 8), leaf(n, 2, m, 8), leaf(n, 2, m, 8)),
    ),
    "attention over one product": (
        lambda x, mask: F.scaled_dot_product_attention(
            *x.view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4), attn_mask=mask
        ),
        lambda n, m: (leaf(n, m, 48), torch.zeros(n, 1, m, m, dtype=torch.float64)),
    ),
    "conv2d": (F.conv2d, lambda n, m: (leaf(n, 3, m + 2, 8), leaf(4, 3, 3, 3))),
    "pad": (lambda x: F.pad(x, (1, 2)).exp(), lambda n, m: (leaf(n, m),)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), lambda n, m: (leaf(n, 2, m, 4),)),
    "linear_interpolation": (
        lambda x: F.interpolate(x, size=6, mode="linear"),
        lambda n, m: (leaf(n, 2, m),),
    ),
    "bilinear_interpolation": (
        lambda x: F.interpolate(x.to(memory_format=torch.channels_last), scale_factor=2, mode="bilinear"),
        lambda n, m: (leaf(n, 3, m, m),),
    ),
    "bicubic": (lambda x: F.interpolate(x, size=(5, 6), mode="bicubic"), lambda n, m: (leaf(n, 2, m, m),)),
    "max_pool": (lambda x: F.max_pool2d(x, 2), lambda n, m: (leaf(n, 2, m, 4),)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (3,), w), lambda n, m: (leaf(n, m, 3), leaf(3))),
    "group_norm": (lambda x: F.group_norm(x, 2), lambda n, m: (leaf(n, 4, m),)),
    "batch_norm": (
        lambda x: F.batch_norm(x, None, None, training=True).pow(3),
        lambda n, m: (leaf(n, 3, m),),
    ),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), lambda n, m: (leaf(n, m), target(n, m))),
    "rows": (lambda x, i: x[i].sin(), lambda n, m: (leaf(n, m), torch.tensor([0, 1, 0]))),
    "cat": (lambda a, b: torch.cat([a, b]).exp(), lambda n, m: (leaf(n, 3), leaf(m, 3))),
    "windows": (lambda x: x.unfold(1, 2, 1).exp(), lambda n, m: (leaf(n, m),)),
    "cumsum": (lambda x: x.cumsum(1).sin(), lambda n, m: (leaf(n, m),)),
    "std": (lambda x: x.std(0), lambda n, m: (leaf(n, m),)),
    "tril": (lambda x: x.tril().exp(), lambda n, m: (leaf(n, m),)),
    "a gradient that is another's, negated": (lambda a, b: b - a, lambda n, m: (leaf(n, m), leaf(n, m))),
    "mean of a mask": (lambda x: (x * (x > 0.5)).sum() / (x > 0.5).sum(), lambda n, m: (leaf(n, m),)),
}

#: C++ that knows plain sizes only: right, with one capture per size
FIXED = {
    "kron": (lambda a, b: torch.kron(a, b).sin(), lambda n, m: (leaf(n, 3), leaf(m, 2))),
    "multi_dot": (
        lambda *xs: torch.linalg.multi_dot(xs),
        lambda n, m: (leaf(n, 3), leaf(3, m), leaf(m, 2)),
    ),
}


def gradients(program: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> list[Any]:
    """The result, and what each input's gradient is."""
    result = program(*inputs)
    weights = torch.linspace(0.5, 1.5, max(result.numel(), 1), dtype=torch.float64)[: result.numel()]
    (result * weights.view(result.shape)).sum().backward()
    found = [result.detach(), *(x.grad for x in inputs if x.requires_grad)]
    for x in inputs:
        x.grad = None
    return found


def held(program: Any, make: Any) -> int:
    """Compiled, the program gives eager's gradients at each size; in how many captures."""
    torch.manual_seed(0)
    compiled = braze.compile(program, dynamic=True)
    with trace.collect() as events:
        for n, m in SIZES:
            inputs = make(n, m)
            torch.testing.assert_close(gradients(compiled, inputs), gradients(program, inputs))
    kinds = [(kind, str(payload)) for kind, payload in events]
    assert not [said for kind, said in kinds if kind == "fallback" and said.startswith("the graph of")]
    return sum(1 for kind, _ in kinds if kind == "capture")


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_capture_serves_all_sizes(name: str) -> None:
    assert held(*PROGRAMS[name]) == 1


@pytest.mark.parametrize("name", FIXED)
def test_what_fixes_sizes_is_captured_again(name: str) -> None:
    assert 1 < held(*FIXED[name]) <= len(SIZES)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: SelfAttention(8, 2),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    "lstm": lambda: First(nn.LSTM(8, 4, batch_first=True)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv1d(5, 4, 1), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 2, 3)
    ),
}


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


class First(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_train_over_any_batch(name: str) -> None:
    torch.manual_seed(0)
    eager = LAYERS[name]().double()
    ours = copy.deepcopy(eager)
    compiled = braze.compile(ours, dynamic=True)
    with trace.collect() as events:
        for batch in (4, 3, 6):
            x = torch.randn(batch, 5, 8, dtype=torch.float64)
            for model in (eager, compiled):
                model.zero_grad()
                model(x).square().mean().backward()
            for want, have in zip(eager.parameters(), ours.parameters(), strict=True):
                torch.testing.assert_close(have.grad, want.grad)
    assert not [p for kind, p in events if kind == "fallback" and str(p).startswith("the graph of")]


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear"])
def test_a_nan_beside_what_is_interpolated_reaches_as_far_as_in_eager(mode: str) -> None:
    """To equal sizes, where PyTorch's formula for symbolic sizes multiplies it by 0."""
    dims = {"linear": 1, "bilinear": 2, "trilinear": 3}[mode]

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=(3,) * dims, mode=mode)

    x = torch.zeros(2, 1, *[3] * dims)
    x[0, 0].view(-1)[1] = torch.nan
    made = braze.compile(program, dynamic=True)(x.requires_grad_())
    assert torch.equal(made.isnan(), program(x).isnan())


POWERS = {
    "x ** n": lambda x, n: x.abs() ** n,
    "torch.pow": lambda x, n: torch.pow(x.abs(), exponent=n),
    "n ** x": lambda x, n: n**x,
    "written": lambda x, n: x.cos().pow_(n),
    "a size": lambda x, n: x.abs() ** x[:n].shape[0],
    "pooled": lambda x, n: F.lp_pool1d(x[None].abs(), n, 2),
}


@pytest.mark.parametrize("name", POWERS)
@pytest.mark.parametrize("numbers", [(3, 2, 5, 1), (2.5, 1.5, 3.0)], ids=["int", "float"])
def test_a_power_by_a_number_that_changes_goes_backward_in_a_graph(name: str, numbers: tuple) -> None:
    """PyTorch's formulas ask whether an exponent is zero, and take a base's logarithm: not of symbols."""
    program = POWERS[name]
    compiled = braze.compile(program, backend="aot_eager", dynamic=True)
    with logged() as messages:
        for number in numbers:
            number = int(number) if name == "a size" else number
            x, y = (torch.linspace(-1, 1.5, 6, dtype=torch.float64).requires_grad_() for _ in range(2))
            result, expected = compiled(x, number), program(y, number)
            torch.testing.assert_close(result, expected)
            result.sum().backward()
            expected.sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
    assert not messages


MADE_WHOLE = {
    "int": int,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "of a product": lambda h: int(h * 2 + 1),
    "of a quotient": lambda h: int(h // 1),
}


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("name", MADE_WHOLE)
def test_a_size_that_is_made_of_a_float_is_a_number(name: str, backend: str) -> None:
    """The float is guarded by value, so that no symbol is left in sizes which the stages could not write."""

    def program(x: Tensor, h: float) -> Tensor:
        n = MADE_WHOLE[name](h)
        return (x * 2).sum(0, keepdim=True).expand(n, 3) * torch.arange(n).unsqueeze(1)

    compiled = braze.compile(program, backend=backend, dynamic=True)
    with logged() as messages:
        for h in (2.0, 3.5, 5.0):
            x, y = leaf(4, 3), leaf(4, 3)
            y.data.copy_(x.data)
            result, expected = compiled(x, h), program(y, h)
            torch.testing.assert_close(result, expected)
            result.sum().backward()
            expected.sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
    assert not messages


def test_a_float_that_is_made_an_integer_and_no_size_is_compiled_for_each_integer() -> None:
    graphs = []
    compiled = braze.compile(
        lambda x, h: x * int(h) + math.floor(h * 2), backend=lambda gm, _: graphs.append(gm) or gm.forward
    )
    for h in (2.0, 3.5, 3.75, 5.25, 5.3, 3.6):
        assert torch.equal(compiled(torch.ones(3), h), torch.ones(3) * int(h) + math.floor(h * 2))
    assert len(graphs) == 3


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_results_whose_backwards_read_sizes_of_each_others_tangents(backend):
    """They are one operation of autograd's (`rare` 7410000637); one of them may have no gradient."""

    def program(x):
        v = torch.meshgrid(x.reshape(-1), x.rot90(2).reshape(-1), indexing="ij")[0]
        return torch.linalg.slogdet(v)[0], v.repeat(2, 1, 1).squeeze(-3).vsplit(2)[1]

    compiled = braze.compile(program, backend=backend, dynamic=True)
    for shape in ((2, 2), (3, 2), (2, 3)):
        for used in ((1,), (0, 1)):
            found = []
            for call in (program, compiled):
                x = (torch.arange(float(shape[0] * shape[1])).reshape(shape).sin() + 2).requires_grad_()
                results = call(x)
                sum(results[k].sum() for k in used).backward()
                found.append((*[r.detach() for r in results], x.grad))
            torch.testing.assert_close(*found)


def test_a_weight_of_one_place_has_a_gradient_that_lies_as_eagers():
    """Under a convolution in channels-last, whose fake lies otherwise (`modules` 16100000837 and 16100001962)."""
    weight = leaf(8, 8, 1, 1)

    def gradient(call, x):
        return torch.autograd.grad(call(x).sum(), weight)[0]

    def program(x):
        return F.conv2d(x.to(memory_format=torch.channels_last), weight).tanh()

    compiled = braze.compile(program, dynamic=True)
    for size in (4, 6):
        x = leaf(3, 8, size, size)
        found, want = gradient(compiled, x), gradient(program, x)
        torch.testing.assert_close(found, want)
        assert found.stride() == want.stride()
