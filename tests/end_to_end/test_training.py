"""Gradients through compiled code are eager's, whatever the program does to its tensors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from tests.end_to_end.training import check, result
from tests.helpers import logged


def t(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)


def in_place_on_fresh(x):
    y = x * 2
    y.add_(1).mul_(x)
    return y


def write_through_view(x):
    y = x.clone()
    y[1].mul_(x[0])
    return y.sin()


def write_slice(x, v):
    y = torch.zeros(4, 5)
    y[:, 1:3] = x
    y[2] += v
    return y * 2


def views_of_views(x):
    y = x * 1
    z = y.view(2, 10).t()
    z[0].exp_()
    return z, y + 1


def output_is_view_of_output(x):
    y = x.sin()
    return y, y[1], y.t()


def output_is_input(x):
    return x, x.view(-1), x * 2


def detached_output(x):
    y = x.exp()
    return y, y.detach(), x.detach()


def no_grad_inside(x):
    with torch.no_grad():
        scale = x.abs().max()
    return x / scale


def input_written_with_history(x, w):
    x.mul_(w)
    return x.sum()


def buffer_gets_history(b, w):
    b.add_(w)
    return (b * 2).sum()


def input_written_without_grad(b, x):
    with torch.no_grad():
        b.mul_(0.9).add_(x, alpha=0.1)
    return x * b


def saved_before_written(b, x):
    y = x * b.clone()
    b.add_(1)
    return y


def integer_outputs(x):
    values, places = x.max(-1)
    return values, places, x.argsort(-1), x > 0


def unused_input(x, y):
    return x * 3


def same_twice(x):
    y = x.cos()
    return y, y


def expanded(x):
    return x.expand(3, 4, 5), x.expand(3, 4, 5) * 2


def out_of_out(x):
    y = torch.empty(4, 5)
    torch.mul(x.detach(), 2, out=y)
    return y * x


def data_write(x):
    y = x * 2
    y.data.mul_(1)
    return y + 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 10 + x


def user_function(x):
    return Doubled.apply(x) + 1


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def linear_cross_entropy(x, w, b):
    return F.cross_entropy(F.linear(x, w, b), torch.tensor([1, 0, 3, 2]))


def embedding(w):
    return F.embedding(torch.tensor([[1, 2, 1], [0, 3, 3]]), w)


def layer_norm(x, w, b):
    return F.layer_norm(x, (5,), w, b)


def batch_norm(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True)


def conv(x, w, b):
    return F.conv2d(x, w, b, padding=1).relu()


def pooled(x):
    return F.max_pool2d(x, 2) + F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)


def upsampled(x):
    return F.interpolate(x, scale_factor=2, mode="bilinear"), F.interpolate(x, scale_factor=2)


def indexed(x):
    return (
        x[torch.tensor([0, 2, 2])],
        x.gather(1, torch.zeros(4, 2, dtype=torch.long)),
        x.index_select(0, torch.tensor([1])),
    )


def scattered(x, y):
    z = x.index_add(0, torch.tensor([0, 0, 1, 3]), y)
    return z.scatter(1, torch.zeros(4, 1, dtype=torch.long), 0.0), torch.index_put(
        x, (torch.tensor([1]),), y[0]
    )


def scans(x):
    return x.cumsum(0), x.cumprod(1), x.logsumexp(-1), x.softmax(0), x.log_softmax(-1)


def reductions(x):
    return x.mean(), x.var(1), x.std(), x.norm(), x.prod(-1), x.amax(0), x.max(), x.min(1).values


def joined(x, y):
    return torch.cat([x, y], 1), torch.stack([x, y]), *x.split(2), *x.unbind(1)


def masked(x):
    return x.masked_fill(x > 0, 0.0), torch.where(x > 0, x, x.exp()), x.clamp(-0.5, 0.5), x.tril()


def half_precision(x, w):
    return (x.to(torch.bfloat16) @ w.to(torch.bfloat16)).float().tanh()


def autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ w).relu()


def complex_views(x):
    return torch.view_as_complex(x), torch.view_as_complex(x * 2) * 2, torch.view_as_real(x[:, 0] + 1j)


def checks_in_the_backward(a, b):
    return torch.linalg.solve(a, b), torch.linalg.eig(a)[0].real


def loop(x):
    for _ in range(5):
        x = x + x.sin() * 0.5
    return x


PROGRAMS = [
    (in_place_on_fresh, [t(4, 5)]),
    (write_through_view, [t(4, 5)]),
    (write_slice, [t(4, 2), t(5)]),
    (views_of_views, [t(4, 5)]),
    (output_is_view_of_output, [t(4, 5)]),
    (output_is_input, [t(4, 5)]),
    (detached_output, [t(4, 5)]),
    (no_grad_inside, [t(4, 5)]),
    (input_written_with_history, [result(t(4, 5)), t(5)]),
    (input_written_with_history, [t(4, 5, grad=False), t(5)]),
    (buffer_gets_history, [t(5, grad=False), t(5)]),
    (input_written_without_grad, [t(5, grad=False), t(5)]),
    (saved_before_written, [t(5, grad=False), t(5)]),
    (integer_outputs, [t(4, 5)]),
    (unused_input, [t(4, 5), t(3)]),
    (same_twice, [t(4, 5)]),
    (expanded, [t(4, 1)]),
    (out_of_out, [t(4, 5)]),
    (data_write, [t(4, 5)]),
    (user_function, [t(4, 5)]),
    (attention, [t(2, 2, 6, 8), t(2, 2, 6, 8), t(2, 2, 6, 8)]),
    (linear_cross_entropy, [t(4, 6), t(5, 6), t(5)]),
    (embedding, [t(4, 6)]),
    (layer_norm, [t(4, 5), t(5), t(5)]),
    (batch_norm, [t(4, 3, 5), t(3), t(3)]),
    (conv, [t(2, 3, 8, 8), t(4, 3, 3, 3), t(4)]),
    (pooled, [t(2, 3, 8, 8)]),
    (upsampled, [t(2, 3, 4, 4)]),
    (indexed, [t(4, 5)]),
    (scattered, [t(4, 5), t(4, 5)]),
    (scans, [t(4, 5)]),
    (reductions, [t(4, 5)]),
    (joined, [t(4, 5), t(4, 5)]),
    (masked, [t(4, 5)]),
    (half_precision, [t(4, 5), t(5, 6)]),
    (autocast, [t(4, 5), t(5, 6)]),
    (complex_views, [t(4, 2)]),
    (checks_in_the_backward, [t(4, 4), t(4, 2)]),
    (loop, [t(4, 5)]),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    ("program", "inputs"), PROGRAMS, ids=[f"{p.__name__}{i}" for i, (p, _) in enumerate(PROGRAMS)]
)
def test_gradients_are_eagers(program, inputs, backend):
    with logged() as messages:
        check(program, inputs, backend)
    assert not [m for m in messages if "as captured" in m]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("train", [False, True])
def test_an_lstm_leaves_its_backward_what_that_needs(backend, train):
    """oneDNN's layer fills its workspace only where grad mode is on, and gives none where it is off."""
    lstm = torch.nn.LSTM(4, 5).train(train)
    x = torch.randn(3, 2, 4)
    compiled = braze.compile(lstm, backend=backend, fullgraph=True)
    for f in (lstm, compiled):
        with torch.no_grad():
            torch.testing.assert_close(f(x), lstm(x))
    gradients = [torch.autograd.grad(f(x)[0].sin().sum(), lstm.parameters()) for f in (compiled, lstm)]
    torch.testing.assert_close(*gradients)


WINDOWS = {
    "columns": lambda h: h[:, 1:3],
    "column": lambda h: h[:, 1],
    "rows": lambda h: h[::2],
    "every other": lambda h: h[:, ::2].t(),
    "expanded": lambda h: h.expand(2, 4, 5),
    "one row": lambda h: h[0].expand(4, 5),
    "chunk": lambda h: h.chunk(2, -1)[1],
}


@pytest.mark.parametrize("same", [lambda h: h[..., ::1], lambda h: h[:], lambda h: h.view(4, 5), lambda h: h])
def test_a_graph_of_nothing_but_a_view(same):
    check(same, [result(t(4, 5))])
    check(same, [t(4, 5)])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_parts_of_a_result_from_outside(window, dynamic):
    """What eager code has computed comes into the graph as it lies in memory, gaps and all."""

    def run(function):
        x = t(4, 5, dtype=torch.float64)
        out = function(WINDOWS[window](x * 2))
        (out * out.detach().cos()).sum().backward()
        return out.detach(), out.stride(), x.grad

    ours, theirs = run(braze.compile(lambda h: h.exp() + h, dynamic=dynamic)), run(lambda h: h.exp() + h)
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[2], theirs[2])
    assert ours[1] == theirs[1]


def test_a_sparse_gradient_keeps_its_numbers() -> None:
    """It is made of two tensors, whose memory nothing else may take."""
    tables = [torch.randn(3, 4), torch.randn(2, 5), torch.randn(4, 4)]

    def gradients(wrap):
        leaves = [t.clone().requires_grad_() for t in tables]

        def step():
            rows = [F.embedding(torch.tensor([1, 0, 1]), t, sparse=True) for t in leaves]
            sum(r.square().sum() for r in rows).backward()

        wrap(step)()
        return [t.grad.to_dense() for t in leaves]

    torch.testing.assert_close(gradients(braze.compile), gradients(lambda step: step), rtol=0, atol=0)


def test_statistics_of_one_type_are_written_by_one_call() -> None:
    """Means, variances and counters of all batch norms: at most as many calls as types, and one version more for each counter alone, as in eager."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.BatchNorm1d(6) for _ in range(4))).train()
    twin = copy.deepcopy(model)
    compiled = braze.compile(model)
    x = t(8, 6)
    compiled(x)
    versions = [b._version for b in model.buffers()]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        compiled(x)
    assert sum(e.count for e in found.key_averages() if e.key == "aten::_foreach_copy_") <= 2
    assert [b._version - before for b, before in zip(model.buffers(), versions, strict=True)] == [0, 0, 1] * 4
    twin(x), twin(x)
    torch.testing.assert_close(list(model.buffers()), list(twin.buffers()))


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_a_gradient_of_what_was_written_through_data_is_made_of_what_the_forward_kept(backend: str) -> None:
    """Of the argument logsigmoid's backward reads the sign alone."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = F.logsigmoid(x)
        x.data[1:].mul_(-3)
        return y

    found = []
    for call in (f, braze.compile(f, backend=backend)):
        x = torch.linspace(-2, 2, 9, dtype=torch.float64).requires_grad_()
        call(x).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_a_parameter_that_another_is_made_equal_to_still_requires_a_gradient(backend: str) -> None:
    """The new contents of the target are the parameter itself among the operation's results."""

    def f(x: torch.Tensor, target: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        target.detach().copy_(parameter.detach())
        return (x * target).sum()

    target, parameter = (torch.full((2,), n, requires_grad=True) for n in (2.0, 3.0))
    braze.compile(f, backend=backend)(torch.ones(2), target, parameter).backward()
    assert parameter.requires_grad and parameter.is_leaf and parameter.grad is None
    assert target.tolist() == [3, 3] and target.grad.tolist() == [1, 1]


def _turned_and_written(y: torch.Tensor) -> torch.Tensor:
    """All of it is written through a view of it, so that its new contents lie as the view does."""
    view = y.permute(*reversed(range(y.dim())))
    view.copy_(view.contiguous() * 2)
    return y


def normalized_behind_a_write(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(_turned_and_written(x * 1), 2)


def normalized_before_a_write(x: torch.Tensor) -> torch.Tensor:
    y = F.group_norm(x, 2)
    z = y * 3
    return _turned_and_written(y) + z


def pictures_normalized(x: torch.Tensor) -> torch.Tensor:
    y = F.group_norm(x.unflatten(2, (1, 2)).contiguous(memory_format=torch.channels_last), 2)
    z = y * 3
    return _turned_and_written(y) + z


def distances_of_rows(x: torch.Tensor) -> torch.Tensor:
    return F.pdist(_turned_and_written(x.flatten(1) * 1))


def losses_of_pictures(x: torch.Tensor) -> torch.Tensor:
    y = _turned_and_written(x.unflatten(2, (1, 2)) * 1)
    return F.nll_loss(y, torch.zeros(3, 1, 2, dtype=torch.long))


def determinant(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.det(_turned_and_written(x.reshape(6, 4)[:4] + torch.eye(4, dtype=x.dtype)))


def determinant_of_turned(x: torch.Tensor) -> torch.Tensor:
    y = (x.reshape(6, 4)[:4] + torch.eye(4, dtype=x.dtype)).mT
    y.copy_(y.contiguous() * 2)
    return torch.linalg.slogdet(y).logabsdet


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize(
    "f",
    [
        normalized_behind_a_write,
        normalized_before_a_write,
        pictures_normalized,
        distances_of_rows,
        losses_of_pictures,
        determinant,
        determinant_of_turned,
    ],
)
def test_what_a_kernel_reads_in_order_lies_so_whatever_was_written(f: Any, backend: str) -> None:
    found = []
    for call in (f, braze.compile(f, backend=backend, fullgraph=True)):
        x = torch.linspace(-2, 2, 24, dtype=torch.float64).sin().reshape(3, 4, 2).requires_grad_()
        y = call(x)
        y.backward(torch.linspace(-1, 2, y.numel(), dtype=torch.float64).reshape(y.shape))
        found.append((y, x.grad))
    torch.testing.assert_close(found[1], found[0])
