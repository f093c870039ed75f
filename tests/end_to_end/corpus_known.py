"""Numbers in tensors that a trace can know: made of constants, or kept by a model, whatever these come to hold later."""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.end_to_end.conformance import attempt, case, scenario

X = torch.arange(12.0).reshape(2, 6)


class Padded(nn.Module):
    """As convolutions of audio models do, it keeps its sizes in tensors and computes with them."""

    def __init__(self, kernel=3, stride=2):
        super().__init__()
        self.register_buffer("kernel", torch.tensor(kernel))
        self.stride = nn.Buffer(torch.tensor(stride), persistent=False)
        self.shapes = torch.tensor([[1, 2], [3, 1]])

    def forward(self, x):
        frames = torch.ceil((x.shape[-1] - self.kernel) / self.stride + 1).to(torch.int64) - 1
        missing = frames * self.stride + self.kernel - x.shape[-1]
        left, right = self.kernel // 2, missing + 1
        if x.shape[-1] <= max(left, right):
            x = torch.cat([x, x], -1)
        y = nn.functional.pad(x, (left, right))
        for height, width in self.shapes.tolist():
            y = y + height * width
        return y, x[:, : self.kernel], [int(n) for n in self.shapes[0]]


@scenario
def sizes_kept_in_buffers(c):
    model = Padded()
    f = c(model)
    yield f(X), f(X)
    for kernel in (4, 2, 5, 3, 1):
        model.kernel.fill_(kernel)
        yield f(X), f(X[:, :4])
    model.shapes[0, 1] = 7
    yield f(X)
    model.shapes = torch.tensor([[2, 2], [2, 3], [1, 1]])
    yield f(X)
    model.load_state_dict(Padded(4).state_dict())
    yield f(X)


@scenario
def sizes_kept_in_buffers_that_stay(c):
    f = c(Padded(4, 3))
    yield f(X), f(X)


class Initialised(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ready", torch.tensor(False))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("scale", torch.tensor(0.0))

    def forward(self, x):
        if not self.ready:
            self.scale.copy_(x.mean())
            self.ready.fill_(True)
        self.calls += 1
        if self.calls % 3 == 0:
            x = x - 1
        return x * self.scale, self.calls.item(), float(self.scale)


@scenario
def flags_and_counters_in_buffers(c):
    model = Initialised()
    f = c(model)
    for k in range(8):
        yield f(X + k), model.calls, model.ready
    model.load_state_dict(Initialised().state_dict())
    yield f(X), model


@scenario
def written_in_ways_that_show_no_version(c):
    model = Padded()
    f = c(model)
    yield f(X)
    model.kernel.data.fill_(4)
    yield f(X)
    model.shapes.numpy()[0, 0] = 5
    yield f(X)
    with torch.no_grad():
        model.kernel.detach()[...] = 2
    yield f(X)


FACTOR = torch.tensor(2)
ZERO = torch.tensor(0.0)
WEIRD = torch.tensor([math.nan, -0.0])


@scenario
def tensors_of_the_module_around(c):
    f = c(lambda x: (x * FACTOR.item(), math.copysign(1, ZERO), [str(v) for v in WEIRD.tolist()]))
    yield f(X)
    FACTOR.fill_(3)
    ZERO.fill_(-0.0)
    WEIRD[0] = 1.0
    yield f(X)
    FACTOR.fill_(2)
    ZERO.fill_(0.0)
    WEIRD[0] = math.nan
    yield f(X)


@case((X,), (X[:, :4],), kernels=True, whole=True)
def computed_from_constants(x):
    k = torch.tensor(2) * 2 - 1
    steps = torch.linspace(0, 1, 4).tolist()
    spans = torch.tensor([[1, 2], [2, 1]])
    for i, (a, b) in enumerate(spans.tolist()):
        x = x + a * steps[i] - b
    if (torch.arange(4) > 2).any() and not torch.zeros(3).all():
        x = x[:, : int(k)]
    i = torch.zeros((), dtype=torch.long)
    while i < 3:
        x, i = x * 2, i + 1
    return x, k, i.item(), max(k, i), min(torch.tensor([3, 1])).item(), torch.full((2,), 7)[1].item()


@case((X,), kernels=True, whole=True)
def size_arguments_that_are_tensors(x):
    k = torch.tensor(3)
    return (
        x.narrow(1, 0, k),
        torch.zeros(k, 2),
        x.repeat(1, k - 1),
        x.view(k + 1, -1),
        torch.arange(k),
        range(k)[-1],
    )


@case((X,), (X - 5,), times=2)
def written_before_they_are_read(x):
    a, b, w = torch.zeros(3), torch.ones(2, 2), torch.zeros(3)
    a[1] = 5
    row = b[0]
    row += 1
    w.data[0] = 4
    first = a.sum().item()
    a.add_(1)
    torch.add(b, 1, out=b)
    mask = torch.zeros(2, dtype=torch.bool)
    mask |= x.sum() > 10
    return x + first, a.sum().item(), b.tolist(), w.tolist(), bool(mask.any())


@case((X,), times=2)
def known_then_written(x):
    a = torch.zeros(3)
    seen = [a.sum().item()]
    b = a + 1
    a += 2
    seen += [a.sum().item(), b.sum().item()]
    a.view(3)[0] = 9
    return x, seen, a.tolist(), (a + b).tolist()


@case((X,), times=2)
def known_and_written_through_a_view_alone(x):
    seen = []
    for view in (
        lambda t: t.view(-1),
        lambda t: t.view(2, 2)[1],
        lambda t: t[1:],
        lambda t: t.reshape(4),
        lambda t: t.unbind()[2],
        lambda t: t.split(2)[1],
        lambda t: t.view(2, 2).t()[0],
    ):
        t = torch.ones(4)
        seen.append(t.tolist())
        view(t).add_(1)
        view(t)[...] *= 3
        seen += [t.tolist(), view(t).tolist(), t.sum().item(), bool(t[2] > 1)]
    base = torch.zeros(4)
    part = base.view(2, 2)
    base[0] = 3
    return x, seen, part.tolist(), (part + 1).tolist()


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x):
        before = self.calls.tolist()
        self.calls.view(-1)[0] += 1
        self.calls[1:].add_(2)
        return x, before, self.calls.tolist()


@scenario
def a_buffer_that_is_written_through_views(c):
    f = c(Counted())
    yield f(X), f(X), f(X)


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        before = bool(self.norm.running_mean[1] > 0), self.norm.num_batches_tracked.item()
        y = self.norm(x)
        return y, before, bool(self.norm.running_mean[1] > 0), self.norm.num_batches_tracked.item()


@scenario
def statistics_read_around_the_norm(c):
    model = Norms().train()
    f = c(model)
    for _ in range(3):
        yield f(X)


class Alias(nn.Module):
    def __init__(self):
        super().__init__()
        self.all = torch.tensor([1, 2, 3])
        self.part = self.all[1]

    def forward(self, x):
        self.all.mul_(2)
        return x * self.part.item()


@scenario
def written_through_another_name(c):
    f = c(Alias())
    yield f(X), f(X), f(X)


@case((X, 0), (X, 1), (X, 2))
def reads_that_fail(x, how):
    t = torch.zeros(2, 2)
    try:
        if how == 0 and t:
            return x
        if how == 1:
            return x * t.item()
        return x[: torch.tensor(1.5)]
    except (RuntimeError, TypeError) as error:
        return type(error).__name__


@scenario
def drawn_numbers_are_never_known(c):
    @c
    def f(x):
        n = torch.randint(0, 5, ())
        return x * n.item(), bool(torch.rand(()) > 0.5), torch.randperm(3).tolist()

    yield attempt(f, X), attempt(f, X), attempt(f, X)
