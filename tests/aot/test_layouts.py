"""Convolutions of a training step in channels-last inside the graph: nobody outside sees it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze
from braze.aot import partition
from braze.aot.facts.memory_order import out_of_order
from braze.decomp import table
from tests.aot.recording import CONTEXT, record
from tests.helpers import as_double

aten = torch.ops.aten
LAST = torch.channels_last


@pytest.fixture(autouse=True)
def fresh():
    yield
    braze.reset()


def layouts(f, inputs, target, free=True, context=CONTEXT):
    """Of the operands of each convolution in forward and backward: whether they lie in channels-last."""
    gm, fakes, _ = record(f, inputs, grad=True)
    part = partition(gm, fakes, context, table(), free_layouts=free)
    graphs = [part.forward.graph, part.backward.graph.graph]
    return [
        [a.meta["val"].is_contiguous(memory_format=LAST) for a in n.args[:2]]
        for graph in graphs
        for n in graph.nodes
        if n.target is target
    ]


def two_convolutions(x, a, b):
    return F.conv2d(torch.relu(F.conv2d(x, a, padding=1)), b, padding=1).square().mean()


def operands(channels=(3, 8, 6)):
    torch.manual_seed(0)
    first, second, third = channels
    weights = [torch.randn(second, first, 3, 3), torch.randn(third, second, 3, 3)]
    return [torch.randn(2, first, 9, 10), *(w.requires_grad_() for w in weights)]


def test_operands_of_convolutions_and_of_their_gradients_come_in_channels_last():
    found = layouts(two_convolutions, operands(), aten.convolution_backward.default)
    assert found == [[True, True], [True, False]]  # the picture is the caller's
    forward = layouts(two_convolutions, operands(), aten.convolution.default)
    assert [x for x, _ in forward] == [True, True]


def test_a_picture_is_not_copied_for_the_backward():
    gm, fakes, _ = record(two_convolutions, operands(), grad=True)
    part = partition(gm, fakes, CONTEXT, table(), free_layouts=True)
    assert aten.clone.default in {n.target for n in part.forward.graph.nodes}
    assert aten.clone.default not in {n.target for n in part.backward.graph.graph.nodes}


def test_layouts_stay_where_nobody_said_that_they_are_free():
    found = layouts(two_convolutions, operands(), aten.convolution.default, free=False)
    assert [x for x, _ in found] == [False, False]


def two_pools(x, a):
    pooled = F.avg_pool2d(F.max_pool2d(F.conv2d(x, a, padding=1), 2), 2)
    return (pooled * pooled.tanh()).mean()


@pytest.mark.parametrize(
    "pool", [aten.max_pool2d_with_indices_backward.default, aten.avg_pool2d_backward.default]
)
def test_gradients_of_pools_lie_as_their_pictures(pool):
    """Else ATen copies picture and indices: peaks are higher than counted, and a max pool takes thirty times as long."""
    x, a, _ = operands()
    assert layouts(two_pools, [x, a], pool) == [[True, True]]
    assert layouts(two_pools, [x, a], pool, free=False) == [[False, False]]


def test_a_convolution_that_is_nearly_all_weight_stays_as_it_is():
    inputs = [torch.randn(1, 32, 2, 2), torch.randn(64, 32, 3, 3, requires_grad=True)]
    f = lambda x, w: F.conv2d(x, w, padding=1).square().mean()
    assert layouts(f, inputs, aten.convolution.default)[0][0] is False


def test_a_convolution_with_nothing_beside_it_lies_as_in_eager():
    """To turn its picture and its result takes longer than it saves; one of two, or one whose picture lies so, does not."""

    def pictures(f, *inputs):
        gm, fakes, _ = record(f, inputs)
        graph = partition(gm, fakes, CONTEXT, table(), free_layouts=True).forward.graph
        found = (n.args[0].meta["val"] for n in graph.nodes if n.target is aten.convolution.default)
        return [x.is_contiguous(memory_format=LAST) for x in found]

    x, a, b = (v.detach() for v in operands())
    assert pictures(lambda x, a: F.conv2d(torch.relu(x), a).relu(), x, a) == [False]
    assert pictures(two_convolutions, x, a, b) == [True, True]
    assert pictures(lambda x, a: F.conv2d(torch.relu(x), a), x.contiguous(memory_format=LAST), a) == [True]


def test_a_convolution_of_long_sums_is_as_exact_as_eagers():
    """Its operands lie as in eager, beside others in channels-last, but where the option asks for them all."""
    inputs, f = operands((3, 40, 6)), two_convolutions
    found = layouts(f, inputs, aten.convolution.default)
    assert [x for x, _ in found] == [True, False]
    backward = layouts(f, inputs, aten.convolution_backward.default)
    assert backward == [[False, False], [True, False]]
    turned = layouts(f, [inputs[0].contiguous(memory_format=LAST), *inputs[1:]], aten.convolution.default)
    assert [x for x, _ in turned] == [True, True]
    everywhere = dataclasses.replace(
        CONTEXT, options=dataclasses.replace(CONTEXT.options, channels_last=True)
    )
    assert [x for x, _ in layouts(f, inputs, aten.convolution.default, context=everywhere)] == [True, True]


def by_place(x, a, b):
    y = F.conv2d(torch.relu(F.conv2d(x, a, padding=1)), b, padding=1)
    return torch.as_strided(y.permute(0, 2, 3, 1), (4, 3), (7, 2), 5).square().sum() + y.mean()


def test_what_is_read_by_its_place_in_memory_lies_as_in_eager():
    """Through views too; the rest of the graph is laid out as ever."""
    assert [x for x, _ in layouts(by_place, operands(), aten.convolution.default)] == [True, True]
    gm, fakes, _ = record(by_place, operands(), grad=True)
    graph = partition(gm, fakes, CONTEXT, table(), free_layouts=True).forward.graph
    (place,) = graph.find_nodes(op="call_function", target=aten.as_strided.default)
    assert place.args[0].meta["val"].is_contiguous() or place.args[0].meta["val"].stride() == (540, 10, 1, 90)
    inputs = operands()
    want = torch.autograd.grad(by_place(*inputs), inputs[1:])
    found = torch.autograd.grad(braze.compile(by_place)(*inputs), inputs[1:])
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


class Net(nn.Module):
    """Convolutions with what stands between them: norms, pools, residuals, views, a depthwise one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 5, stride=2, padding=2, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.deep = nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.wide = nn.Conv2d(8, 24, 1)
        self.back = nn.Conv2d(24, 8, 1, bias=False)
        self.gate = nn.Conv2d(8, 8, 1)
        self.down = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.head = nn.Linear(12 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.pool(F.silu(self.norm(self.stem(x))))
        y = self.back(F.gelu(self.wide(self.deep(x).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2))))
        y = x + y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        z = F.hardswish(self.down(y))
        return self.head(z.contiguous().view(z.shape[0], -1)), y, z[:, ::2]


def gradients(call, model, x):
    """Outputs of a step, the gradients of the picture and of the parameters."""
    model.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_()
    logits, features, part = call(x)
    (logits.sum(1).tanh().square().mean() + features.square().mean() + part.mean()).backward()
    return [logits, features, part, x.grad, *(p.grad for p in model.parameters())]


def steps(x: torch.Tensor) -> list[int]:
    """The strides that matter: eager's of a single element depend on the number of threads."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1]


@pytest.mark.parametrize("form", [torch.contiguous_format, LAST], ids=["rows", "channels-last"])
def test_values_and_strides_are_eagers(form):
    torch.manual_seed(0)
    model = Net().to(memory_format=form)
    x = torch.randn(2, 3, 29, 30).to(memory_format=form)
    double = as_double(model)
    exact = gradients(double, double, x.double())
    theirs = gradients(model, model, x)
    ours = gradients(braze.compile(model), model, x)
    exact, theirs, ours = ([t.detach() for t in found] for found in (exact, theirs, ours))
    largest = max(float(c.abs().max()) for c in exact[3:])
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert a.shape == b.shape and steps(a) == steps(b)
        error, eager = (a.double() - c).abs().max(), (b.double() - c).abs().max()
        assert float(error) <= 4 * float(eager) + 1e-6 * (float(c.abs().max()) + largest)


def test_draws_are_eagers_where_they_should_be():
    def f(x, a, b):
        y = F.conv2d(torch.relu(F.conv2d(x, a, padding=1)), b, padding=1)
        return F.dropout(y, 0.5).square().mean()

    inputs = operands()
    torch.manual_seed(3)
    want = f(*inputs)
    torch.manual_seed(3)
    got = braze.compile(f, options={"fallback_random": True})(*inputs)
    torch.testing.assert_close(got, want)


def test_an_operator_that_is_not_atens_sees_eagers_strides():
    seen = []

    @torch.library.custom_op("braze_layout_tests::look", mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.stride())
        return x.clone()

    look.register_fake(lambda x: torch.empty_like(x))
    look.register_autograd(lambda ctx, grad: grad)

    def f(x, a, b):
        return F.conv2d(look(F.conv2d(x, a, padding=1)), b, padding=1).square().mean()

    inputs = operands()
    f(*inputs).backward()
    braze.compile(f)(*inputs).backward()
    assert seen[0] == seen[1]


def test_pictures_of_one_pixel_lie_as_usual():
    """In channels-last oneDNN would copy the gradient of their weight, which may be the largest value there is."""

    def squeezed(x, a, b):
        h = F.conv2d(x, a, padding=1)
        return (h * F.conv2d(h.mean((2, 3), keepdim=True), b).sigmoid()).square().mean()

    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 9, 10), torch.randn(8, 3, 3, 3), torch.randn(8, 8, 1, 1)]
    gm, fakes, _ = record(squeezed, [inputs[0], *(w.requires_grad_() for w in inputs[1:])], grad=True)
    part = partition(gm, fakes, CONTEXT, table(), free_layouts=True)
    pixels = [
        a.meta["val"].stride()
        for graph in (part.forward.graph, part.backward.graph.graph)
        for n in graph.nodes
        if n.target in (aten.convolution.default, aten.convolution_backward.default)
        for a in n.args[: 1 if n.target is aten.convolution.default else 2]
        if a.meta["val"].shape[2:] == (1, 1)
    ]
    assert pixels == [(8, 1, 1, 1)] * 3


@pytest.mark.parametrize("verify", [1, 2])
def test_a_normed_weights_gradient_is_read_in_order(verify):
    """PyTorch's kernel reads it as it lies, whatever its strides; eager hands it over in order."""
    torch.manual_seed(0)
    model = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1)).double()
    x = torch.randn(3, 8, 6, 6, dtype=torch.float64)

    def gradients(layer):
        model.zero_grad()
        layer(F.softplus(x)).exp().log1p().tanh().pow(2).mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    def whole(h):
        return model(h)

    compiled = braze.compile(
        lambda h: model(F.softplus(h)).exp().log1p().tanh().pow(2).mean(), options={"verify": verify}
    )
    wanted = gradients(whole)
    model.zero_grad()
    compiled(x).backward()
    for p, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, gradient)


KERNELS_IN_ORDER = [
    (aten._weight_norm_interface_backward.default, (0, 1, 2, 3)),
    (aten._embedding_bag_backward.default, (1, 2, 3, 4)),
]


@pytest.mark.parametrize(("op", "places"), KERNELS_IN_ORDER, ids=str)
def test_what_kernels_read_in_order_is_copied_for_them(op, places):
    values = [torch.empty(4, 6).t() for _ in range(6)]
    assert [place for place, _ in out_of_order(op, values)] == list(places)
