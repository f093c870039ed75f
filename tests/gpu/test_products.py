"""Products on a GPU that are joined: as near to float64 as eager's, weights that change are noticed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import braze
from braze.support import trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Block(nn.Module):
    """Attention of several heads, and a perceptron with a gate."""

    def __init__(self, width: int, heads: int, kv: int) -> None:
        super().__init__()
        self.heads, self.kv, self.dim = heads, kv, width // heads
        self.q = nn.Linear(width, width)
        self.k, self.v = nn.Linear(width, kv * self.dim), nn.Linear(width, kv * self.dim)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.dim)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv)
        x = x + self.o(out.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def close(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride())
    theirs = (eager.double() - exact).norm()
    assert (ours.double() - exact).norm() <= 1.2 * theirs + 1e-6 * exact.norm()


def calls_of(compiled, x):
    with trace.collect() as events:
        compiled(x)
    return [name for kind, p in events if kind == "compiled" for name in p.externs]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [(1, 1), (2, 96), (8, 1)])
@pytest.mark.parametrize("kv", [8, 2])
def test_layers_of_one_input(dtype, rows, kv):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(512, 8, kv) for _ in range(4))).cuda().to(dtype).eval()
    x = torch.randn(*rows, 512, device="cuda", dtype=dtype)
    compiled = braze.compile(model, fullgraph=True, options={"matmul_template": False})
    with torch.no_grad():
        calls = calls_of(compiled, x)
        assert len([c for c in calls if "mm." in c]) == 4 * 4, calls
        for scale in (1.0, -0.5):
            for p in model.parameters():
                p.mul_(scale)
            close(compiled(x), model(x), copy.deepcopy(model).double()(x.double()))


def test_sizes_that_vary():
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(512, 8, 8) for _ in range(4))).cuda().bfloat16().eval()
    compiled = braze.compile(model, fullgraph=True, dynamic=True)
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        for rows in (2, 96, 1, 33):
            x = torch.randn(2, rows, 512, device="cuda", dtype=torch.bfloat16)
            close(compiled(x), model(x), exact(x.double()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("act", [F.relu, lambda x: F.gelu(x, approximate="tanh")], ids=["relu", "gelu"])
@pytest.mark.parametrize("rows", [(1, 1), (2, 96), (640,)])
def test_an_activation_of_a_layer_is_computed_by_the_product(dtype, act, rows):
    torch.manual_seed(0)
    up, down = (nn.Linear(*n, device="cuda", dtype=dtype) for n in ((512, 2048), (2048, 512)))

    def f(x):
        return down(act(up(x)))

    x = torch.randn(*rows, 512, device="cuda", dtype=dtype)
    compiled = braze.compile(f, fullgraph=True, options={"matmul_template": False})
    wide = [copy.deepcopy(layer).double() for layer in (up, down)]
    with torch.no_grad():
        assert any("_addmm_activation" in name for name in calls_of(compiled, x))
        close(compiled(x), f(x), wide[1](act(wide[0](x.double()))))
        x[..., 0, 3] = float("nan")
        assert torch.equal(compiled(x).isnan(), f(x).isnan())


def test_logits_of_a_vocabulary_that_8_does_not_divide_have_no_padded_copy():
    """Beside the result a quarter of the rows lives, once the padded weight is kept."""
    torch.manual_seed(0)
    layer = nn.Linear(384, 51865, bias=False, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1, 1024, 384, device="cuda", dtype=torch.bfloat16)
    compiled = braze.compile(layer, fullgraph=True)
    with torch.no_grad():
        close(compiled(x), layer(x), F.linear(x.double(), layer.weight.double()))
        compiled(x)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = compiled(x)
        assert torch.cuda.max_memory_allocated() - before <= 1.3 * result.nbytes
