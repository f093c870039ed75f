"""Side effects on what PyTorch keeps: parameters, buffers, gradients, hooks, tensors written in place, random numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.end_to_end.conformance import attempt, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5


@scenario
def buffers_and_parameters_rebound(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))
            self.register_buffer("b", torch.zeros(3))
            self.register_buffer("late", None)
            self.plain = X

        def forward(self, x):
            self.b = self.b + x.mean(0)
            if self.late is None:
                self.late = x.detach().clone()
            self.plain = self.plain * 2
            return x * self.w + self.b

    n = M()
    f = c(n)
    for x in (X, Y, X):
        yield f(x), n, n.plain, [k for k, _ in n.named_buffers()]


@scenario
def parameters_rebound(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.v = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x):
            self.w, self.v = self.v, self.w
            return x * self.w + self.v

    n = M()
    f = c(n)
    for x in (X, Y, X):
        yield f(x), [k for k, _ in n.named_parameters()], n.w, n.v


@scenario
def a_parameter_deleted_and_set_to_none(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.v = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x):
            if self.v is not None:
                x = x + self.v
                self.v = None
            if hasattr(self, "w"):
                x = x * self.w
                del self.w
            return x

    n = M()
    f = c(n)
    for x in (X, Y, X):
        yield f(x), [k for k, _ in n.named_parameters()], sorted(n._parameters)


@scenario
def registered_in_forward(c):
    class M(nn.Module):
        def forward(self, x):
            if not hasattr(self, "seen"):
                self.register_buffer("seen", torch.zeros(3))
                self.register_buffer("hidden", x.mean(0), persistent=False)
                self.register_parameter("scale", nn.Parameter(torch.full((3,), 2.0)))
                self.add_module("sub", nn.Identity())
            self.seen += x.sum(0)
            return self.sub(x) * self.scale + self.hidden

    n = M()
    f = c(n)
    for x in (X, Y, X):
        yield f(x), n, [k for k, _ in n.named_buffers()], [k for k, _ in n.named_modules()]


@scenario
def a_wrong_registration(c):
    class M(nn.Module):
        def forward(self, x, name):
            self.n = getattr(self, "n", 0) + 1
            self.register_buffer(name, x)
            return x

    n = M()
    f = c(n)
    for name in ("ok", "ok", "a.b", "forward", "", "ok2"):
        yield attempt(f, X, name), n.n, [k for k, _ in n.named_buffers()]


@scenario
def grad_set_and_cleared(c):
    w = torch.ones(3, requires_grad=True)

    @c
    def f(x):
        had = w.grad is not None
        w.grad = x.sum(0)
        return had, w.grad * 2

    @c
    def clear(x):
        w.grad = None
        return x + 1, w.grad

    yield f(X), w.grad
    yield f(Y), w.grad
    yield clear(X), w.grad
    yield clear(X), w.grad


@scenario
def grad_scaled_in_place(c):
    n = nn.Linear(3, 2)
    nn.init.ones_(n.weight)

    @c
    @torch.no_grad()
    def step(lr):
        for p in n.parameters():
            if p.grad is not None:
                p.add_(p.grad, alpha=-lr)
                p.grad.zero_()

    @c
    def clip(limit):
        return nn.utils.clip_grad_norm_(n.parameters(), limit)

    step(0.1)
    n(X).sum().backward()
    yield clip(1.0), n.weight.grad
    yield step(0.1), n.weight, n.weight.grad
    n(Y).sum().backward()
    yield clip(0.5), n.weight.grad
    yield step(0.2), n.weight, n.weight.grad


@scenario
def zero_grad_inside(c):
    n = nn.Linear(3, 2)
    nn.init.ones_(n.weight)

    @c
    def f(x):
        n.zero_grad()
        loss = n(x).sum()
        loss.backward()
        return loss

    yield f(X), n.weight.grad
    yield f(Y), n.weight.grad


@scenario
def a_whole_training_step(c):
    n = nn.Linear(3, 2)
    nn.init.ones_(n.weight)
    nn.init.zeros_(n.bias)
    opt = torch.optim.SGD(n.parameters(), lr=0.1, momentum=0.9)

    @c
    def step(x):
        opt.zero_grad()
        loss = F.mse_loss(n(x), torch.ones(2, 2))
        loss.backward()
        opt.step()
        return loss.detach()

    for x in (X, Y, X, Y):
        yield step(x), n.weight, n.bias


@scenario
def tensor_hooks_added_inside(c):
    log = []

    @c
    def f(x):
        y = x * 2
        y.register_hook(lambda g: log.append("y") or g * 10)
        z = y.sin()
        log.append("made")
        return z.sum()

    for _ in range(2):
        x = X.clone().requires_grad_()
        out = f(x)
        out.backward()
        yield out, x.grad, log


@scenario
def tensor_hooks_on_inputs(c):
    log = []

    @c
    def f(x, w):
        handle = w.register_hook(lambda g: log.append("w") or g + 1)
        y = (x * w).sum()
        return y, handle

    for _ in range(2):
        w = torch.ones(3, requires_grad=True)
        y, handle = f(X, w)
        y.backward()
        yield y, w.grad, log
        handle.remove()


@scenario
def module_hooks_added_inside(c):
    n, log = nn.Linear(3, 3), []
    nn.init.ones_(n.weight)
    nn.init.zeros_(n.bias)

    @c
    def f(x):
        before = n(x)
        handle = n.register_forward_hook(lambda m, a, o: log.append("hook") or o * 2)
        after = n(x)
        handle.remove()
        return before, after, n(x)

    yield f(X), log, len(n._forward_hooks)
    yield f(Y), log, len(n._forward_hooks)


@scenario
def a_hook_left_behind(c):
    n = nn.Identity()

    @c
    def f(x):
        n.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
        return n(x)

    yield f(X), len(n._forward_pre_hooks)
    yield f(X), len(n._forward_pre_hooks)
    yield n(X)


@scenario
def inputs_and_their_views_written(c):
    @c
    def f(x, v):
        x.add_(1)
        v.mul_(2)
        x[0] = 7
        x[:, 1] += v.sum()
        y = x.view(-1)
        y[2:4] = -1
        x.t()[0].zero_()
        return y, v

    base = X.clone()
    yield f(base, base[1]), base
    yield f(base, base[:, 0]), base
    yield f(X.clone(), Y[0].clone())


@scenario
def a_view_kept_from_the_last_call(c):
    kept = []

    @c
    def f(x):
        for old in kept:
            old.add_(1)
        kept.append(x[0])
        return x * 2

    a = X.clone()
    yield f(a), a, kept
    yield f(a), a, kept
    yield f(a), a, kept


@scenario
def writes_interleaved_with_a_break(c):
    log, buffer = [], torch.zeros(2, 3)

    @c
    def f(x):
        log.append("a")
        buffer.add_(x)
        print("half way", len(log))
        buffer.mul_(2)
        log.append("b")
        x.add_(1)
        print("done", float(buffer.sum()), float(x.sum()))
        log.append("c")
        return buffer + x

    x = X.clone()
    yield f(x), log, buffer, x
    yield f(x), log, buffer, x


@scenario
def data_and_metadata_of_inputs(c):
    @c
    def f(x, y):
        x.data = y * 2
        x.requires_grad_(True)
        return x + 1, x.requires_grad

    @c
    def g(x):
        x.unsqueeze_(0)
        x.resize_(4, 2)
        return x.shape

    x = X.clone()
    yield attempt(f, x, Y), x
    x = X.clone()
    yield attempt(f, x, Y), x
    yield attempt(lambda: g(torch.zeros(2, 3)))


@scenario
def dropout_in_and_around(c):
    n = nn.Dropout(0.5)

    @c
    def f(x):
        return n(x) + torch.rand(3), F.dropout(x, 0.3), torch.randn(2)

    torch.manual_seed(5)
    yield torch.rand(1), f(X), torch.rand(1), f(X), torch.rand(1)
    torch.manual_seed(5)
    yield torch.rand(1), f(X), torch.rand(1)
    n.eval()
    yield f(X), torch.rand(1)


@scenario
def seeds_set_inside(c):
    @c
    def f(x, seed):
        a = torch.rand(3)
        torch.manual_seed(seed)
        b = torch.rand(3)
        return a + b + x, torch.randint(0, 10, (3,))

    yield f(X, 1), torch.rand(1)
    yield f(X, 1), torch.rand(1)
    yield f(X, 2), torch.rand(1)


@scenario
def generators_and_rng_state(c):
    g = torch.Generator().manual_seed(3)

    @c
    def f(x):
        state = torch.get_rng_state()
        a = torch.rand(3)
        torch.set_rng_state(state)
        b = torch.rand(3)
        return a == b, torch.rand(2, generator=g), x + torch.randn(3, generator=g)

    @c
    def h(x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            a = torch.rand(2)
        return a, torch.rand(2) + x.sum()

    yield f(X), torch.rand(1)
    yield f(X), torch.rand(1), torch.rand(1, generator=g)
    yield h(X), torch.rand(1)
    yield h(X), torch.rand(1)
