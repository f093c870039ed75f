"""Layouts, padding and kept constants on a GPU: results as near to float64 as eager's, strides eager's, writes to weights noticed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import braze
from braze.support import trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LAST = torch.channels_last


class Net(nn.Module):
    """A stem, residual blocks of depthwise, plain and transposed convolutions with norms and gates, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 5, stride=2, padding=2)
        self.norm = nn.BatchNorm2d(32)
        self.deep = nn.Conv2d(32, 32, 5, padding=2, groups=32)
        self.wide = nn.Conv2d(32, 64, 1)
        self.back = nn.Conv2d(64, 32, 1, bias=False)
        self.gate = nn.Conv2d(32, 32, 1)
        self.up = nn.ConvTranspose2d(32, 24, 2, stride=2)
        self.down = nn.Conv2d(24, 40, 3, stride=2, padding=1, groups=4)
        self.head = nn.Linear(40, 37)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = F.max_pool2d(F.silu(self.norm(self.stem(x))), 3, 2, 1)
        y = self.back(F.gelu(self.wide(self.deep(x))))
        y = x + y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        z = F.hardswish(self.down(self.up(y)))
        return self.head(z.mean((2, 3))), y, z[:, ::2]


@pytest.fixture(autouse=True)
def no_tf32():
    allowed, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    yield
    torch.backends.cudnn.allow_tf32 = allowed
    braze.reset()


def close(ours, eager, exact):
    """No further from float64 than eager is."""
    for a, b, c in zip(ours, eager, exact, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        theirs = (b.double() - c).norm()
        assert (a.double() - c).norm() <= 1.3 * theirs + 1e-6 * c.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("form", [torch.contiguous_format, LAST])
def test_a_network_of_convolutions(dtype, form):
    torch.manual_seed(0)
    model = Net().cuda().eval().to(dtype=dtype, memory_format=form)
    x = torch.randn(16, 3, 65, 62, device="cuda").to(dtype=dtype, memory_format=form)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        close(braze.compile(model, fullgraph=True)(x), model(x), exact)


def test_tf32_is_what_it_is():
    """Where PyTorch's flag lets it, float32 is rounded to TF32's 11 bits; in channels-last cuDNN does that for more convolutions."""
    torch.manual_seed(0)
    model = Net().cuda().eval()
    x = torch.randn(16, 3, 65, 62, device="cuda")
    torch.backends.cudnn.allow_tf32 = True
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        for ours, c in zip(braze.compile(model, fullgraph=True)(x), exact, strict=True):
            assert (ours.double() - c).norm() <= 2e-3 * c.norm()


def step(call, model, x):
    model.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_()
    logits, features, part = call(x)
    loss = logits.float().tanh().square().mean() + features.float().square().mean() + part.float().mean()
    loss.backward()
    return [x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_of_a_network_of_convolutions(dtype):
    torch.manual_seed(0)
    model = Net().cuda().to(dtype)
    x = torch.randn(16, 3, 65, 62, device="cuda", dtype=dtype)
    double = copy.deepcopy(model).double()
    exact = step(double, double, x.double())
    eager = step(model, model, x)
    ours = step(braze.compile(model), model, x)
    largest = max(float(c.norm()) for c in exact)
    for a, b, c in zip(ours, eager, exact, strict=True):
        assert a.stride() == b.stride()
        theirs = (b.double() - c).norm()
        assert (a.double() - c).norm() <= 1.5 * theirs + 1e-5 * largest


def logits(x, w, b):
    scores = F.linear(x, w, b)
    return scores, F.log_softmax(scores.float(), -1)


@pytest.mark.parametrize("vocabulary", [50257, 30522, 50264])
def test_a_vocabulary_of_any_size(vocabulary):
    torch.manual_seed(0)
    layer = nn.Linear(768, vocabulary).cuda().bfloat16()
    x = torch.randn(4, 512, 768, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        exact = logits(x.double(), layer.weight.double(), layer.bias.double())
        call = braze.compile(lambda x: logits(x, layer.weight, layer.bias))
        for _ in range(2):
            close(call(x), logits(x, layer.weight, layer.bias), exact)


@pytest.mark.parametrize("chunks", [None, False])
def test_gradients_over_a_vocabulary(chunks):
    torch.manual_seed(0)
    w = (torch.randn(50257, 768, device="cuda") / 28).bfloat16().requires_grad_()
    x = torch.randn(2048, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    y = torch.randint(0, 50257, (2048,), device="cuda")

    def loss(x, w):
        return F.cross_entropy((x @ w.t()).float(), y)

    exact = torch.autograd.grad(loss(*(wide := [t.detach().double().requires_grad_() for t in (x, w)])), wide)
    eager = torch.autograd.grad(loss(x, w), (x, w))
    compiled = braze.compile(loss, options={"chunk_losses": chunks})
    for a, b, c in zip(torch.autograd.grad(compiled(x, w), (x, w)), eager, exact, strict=True):
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        # in chunks each one's products are rounded
        assert (a.double() - c).norm() <= 2 * (b.double() - c).norm()


@pytest.mark.parametrize("mask", ["none", "all", "one number", "padding", "bias"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_stays_one_operator_in_training(mask, dropout):
    """Forward and backward, whatever the strides of its mask."""
    torch.manual_seed(0)
    x = torch.randn(4, 128, 3, 12, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    kept = torch.arange(128, device="cuda") < torch.tensor([128, 100, 64, 1], device="cuda")[:, None]

    def f(x):
        q, k, v = x.unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        given = {
            "none": lambda: None,
            "all": lambda: (torch.arange(128, device="cuda")[:, None] >= 0).expand(4, 1, 128, 128),
            "one number": lambda: (q.detach()[:1, :1, :1, :1] > -99).expand(4, 1, 128, 128),
            "padding": lambda: kept[:, None, None, :].expand(4, 1, 128, 128),
            "bias": lambda: q.detach()[:, :1, :, :1].expand(4, 1, 128, 128),
        }[mask]()
        out = F.scaled_dot_product_attention(q, k, v, given, dropout)
        return out.transpose(1, 2).reshape(4, 128, 768)

    with trace.collect() as events:
        out = braze.compile(f, fullgraph=True)(x)
        (gradient,) = torch.autograd.grad(out.float().square().mean(), x)
    calls = [name for kind, p in events if kind == "compiled" for name in p.externs]
    assert len([c for c in calls if "attention" in c]) == 2, calls
    assert not any("bmm" in c for c in calls), calls
    if not dropout:
        double = x.detach().double().requires_grad_()
        want = f(double)
        (exact,) = torch.autograd.grad(want.square().mean(), double)
        assert (out.double() - want).norm() <= 0.01 * want.norm()
        assert (gradient.double() - exact).norm() <= 0.02 * exact.norm()


class Deep(nn.Module):
    """Convolutions and norms enough that their weights are turned and folded once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(m for _ in range(8) for m in (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


WRITES = {
    "in place": lambda p: p.mul_(-0.5),
    "data": lambda p: p.data.mul_(-0.5),
    "new data": lambda p: setattr(p, "data", p.data * -0.5),
    "on a stream of its own": lambda p: on_a_stream(lambda: p.data.mul_(-0.5)),
}


def on_a_stream(write):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        write()
    torch.cuda.current_stream().wait_stream(stream)


@pytest.mark.parametrize("write", WRITES)
def test_a_weight_that_changes_is_noticed_in_the_very_call(write):
    torch.manual_seed(0)
    model = Deep().cuda().eval().bfloat16()
    x = torch.randn(4, 16, 32, 32, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad(), trace.collect() as events:
        call = braze.compile(model)
        for layer in (0, 3, 1, 21, 22):
            torch.testing.assert_close(call(x), model(x), rtol=0.1, atol=0.05)
            for p in model.layers[layer].parameters():
                WRITES[write](p)
            want, found = model(x), call(x)
            torch.testing.assert_close(found, want, rtol=0.1, atol=0.05)
            torch.testing.assert_close(call(x), want, rtol=0.1, atol=0.05)
    assert any(p.fixed for kind, p in events if kind == "compiled")


def test_a_recorded_call_reads_the_weights_as_they_are():
    torch.manual_seed(0)
    model = Deep().cuda().eval().bfloat16()
    x = torch.randn(4, 16, 32, 32, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        call = braze.compile(model)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call(x)
        model.layers[0].weight.data.mul_(-0.5)
        graph.replay()
        torch.testing.assert_close(out, model(x), rtol=0.1, atol=0.05)
