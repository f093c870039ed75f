"""Modules: hooks, buffers, modes, shared and replaced parameters, containers of modules."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.end_to_end.conformance import attempt, case, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.act = F.relu
        self.scale = 2.0

    def forward(self, x):
        return self.b(self.act(self.a(x))) * self.scale


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.calls = 0

    def forward(self, x):
        self.seen += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.calls += 1
        return x - self.mean + self.calls


@scenario
def a_module_with_attributes_changed(c):
    n = Net()
    f = c(lambda x: n(x))
    yield f(X)
    n.scale = 3.0
    yield f(X)
    n.act = torch.tanh
    yield f(X)
    n.b = nn.Identity()
    yield f(X)
    n.a.bias = None
    yield f(X)
    del n.a
    yield attempt(f, X)


@scenario
def a_compiled_module_object(c):
    n = Net()
    m = c(n)
    yield m(X)
    n.scale = 0.5
    yield m(X), list(m.state_dict()), m.training, isinstance(m, Net)
    m.scale = 4.0
    yield m(X), n(X), n.scale
    m.eval()
    yield n.training, m.a.training


@scenario
def parameters_replaced_and_written(c):
    n = Net()
    f = c(lambda x: n(x))
    yield f(X)
    n.a.weight = nn.Parameter(torch.ones(3, 3))
    yield f(X)
    with torch.no_grad():
        n.a.weight.mul_(2)
    yield f(X)
    n.b.weight.data = torch.eye(3)
    yield f(X)
    n.b.weight.requires_grad_(False)
    n.a.requires_grad_(False)
    n.b.bias.requires_grad_(False)
    yield f(X)
    n.double()
    yield f(X.double())
    yield attempt(f, X)
    n.float().load_state_dict({k: v * 0 + 1 for k, v in n.state_dict().items()})
    yield f(X)


@scenario
def buffers_written_in_forward(c):
    n = Counting()
    f = c(n)
    for x in (X, Y, X):
        yield f(x), n.seen, n.mean, n.calls
    n.seen.zero_()
    n.mean = torch.ones(3)
    yield f(X), n.seen, n.mean


@scenario
def batch_norm_trains(c):
    n = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    for p in n.parameters():
        nn.init.constant_(p, 0.3)
    f = c(n)
    with torch.no_grad():
        yield f(X), n
        yield f(Y), n
        n.eval()
        yield f(X), n
        n.train()
        torch.manual_seed(3)
        yield f(Y), n
        n[1].eval()
        yield f(X), n


@scenario
def training_mode_switches(c):
    class M(nn.Module):
        def forward(self, x):
            return x * 2 if self.training else x - 1

    n = M()
    f = c(n)
    yield f(X), n.eval() is n, f(X), n.train() is n, f(X)


@scenario
def weights_are_tied(c):
    n = Net()
    n.b.weight = n.a.weight
    f = c(lambda x: (n(x), n.a.weight is n.b.weight))
    yield f(X)
    with torch.no_grad():
        n.a.weight.add_(1)
    yield f(X)
    n.b.weight = nn.Parameter(torch.eye(3))
    yield f(X)
    n.b = n.a
    yield f(X)


@scenario
def module_hooks(c):
    n, log = Net(), []
    f = c(lambda x: n(x))
    yield f(X)
    pre = n.a.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    yield f(X)
    post = n.b.register_forward_hook(lambda m, args, out: out * 2)
    kw = n.register_forward_hook(lambda m, a, k, o: log.append((len(a), k)) or None, with_kwargs=True)
    yield f(X), log
    pre.remove()
    yield f(X), log
    post.remove()
    kw.remove()
    yield f(X), log
    always = nn.modules.module.register_module_forward_hook(lambda m, a, o: o + 1)
    yield f(X)
    always.remove()
    yield f(X)


@scenario
def hooks_on_a_compiled_module(c):
    n = Net()
    m = c(n)
    yield m(X)
    h = m.register_forward_hook(lambda m, a, o: (o, "hooked"))
    yield m(X)
    h.remove()
    yield m(X)


@scenario
def containers_of_modules(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
            self.heads = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 1)})
            self.ps = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
            self.seq = nn.Sequential(nn.ReLU(), nn.Flatten(0))

        def forward(self, x, head="a"):
            for i, layer in enumerate(self.layers):
                x = layer(x) + i
            for p in self.ps:
                x = x * p
            names = [k for k, _ in self.heads.items()]
            return (
                self.heads[head](x),
                self.seq(x),
                len(self.layers),
                names,
                self.layers[-1] is layer,
                head in self.heads,
            )

    n = M()
    f = c(n)
    yield f(X), f(X, "b"), attempt(f, X, "zz")
    n.layers.append(nn.Identity())
    yield f(X)
    n.layers = n.layers[:1]
    yield f(X)
    n.heads["a"] = nn.Identity()
    yield f(X)
    n.seq.append(nn.Softmax(0))
    yield f(X)


@scenario
def walking_over_a_module(c):
    n = Net()

    @c
    def f(x):
        total = sum(p.numel() for p in n.parameters())
        names = [k for k, _ in n.named_parameters()]
        kinds = [type(m).__name__ for m in n.modules()]
        return (
            x * total,
            names,
            kinds,
            list(n.state_dict()),
            n.a.weight.shape,
            [k for k, _ in n.named_children()],
        )

    yield f(X)
    n.c = nn.ReLU()
    yield f(X)


@scenario
def module_getattr_and_properties(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)
            nn.init.ones_(self.inner.weight)
            nn.init.zeros_(self.inner.bias)
            self._k = 2

        @property
        def k(self):
            return self._k

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            self._k += 1
            return x @ self.weight * self.k, hasattr(self, "bias"), attempt(lambda: 1)

    n = M()
    f = c(n)
    yield f(X), n.k
    yield f(X), n.k


@scenario
def a_module_writes_what_it_likes(c):
    class M(nn.Module):
        def forward(self, x):
            self.last = x * 2
            self.cache = {"x": x, "n": getattr(self, "n", 0)}
            self.n = self.cache["n"] + 1
            self.p = nn.Parameter(torch.ones(2))
            return self.last

    n = M()
    f = c(n)
    yield attempt(f, X), n.__dict__.get("cache"), [k for k, _ in n.named_parameters()]
    yield attempt(f, Y), n.__dict__.get("cache"), [k for k, _ in n.named_parameters()], n.n


@scenario
def modules_made_inside(c):
    @c
    def f(x):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        return layer(x), nn.ReLU()(x), layer.weight.requires_grad

    yield attempt(f, X)
    yield attempt(f, X)


@scenario
def a_training_loop(c):
    n = Net()
    f = c(n)
    opt = torch.optim.SGD(n.parameters(), lr=0.1)
    for x in (X, Y, X):
        opt.zero_grad()
        loss = (f(x) - 1).square().mean()
        loss.backward()
        opt.step()
        yield loss, n, n.a.weight.grad


@scenario
def a_wrong_shape_in_a_module(c):
    n = Net()
    f = c(n)
    yield (
        attempt(f, torch.rand(2, 5)),
        attempt(f, "text"),
        attempt(f),
        attempt(f, X, X),
        f(X),
        attempt(f, X.long()),
    )


@scenario
def methods_other_than_forward(c):
    class M(Net):
        def encode(self, x, *, k=1):
            return self.a(x) * k

        @torch.no_grad()
        def generate(self, x, n):
            for _ in range(n):
                x = self(x)
            return x

    n = M()
    f, g = c(n.encode), c(n.generate)
    yield f(X), f(X, k=3), g(X, 2), g(X, 3)


@scenario
def the_same_code_for_two_modules(c):
    one, two = Net(), Net()
    with torch.no_grad():
        two.a.weight.zero_()
    f = c(lambda m, x: m(x))
    yield f(one, X), f(two, X), f(one, X), f(two.eval(), Y)
    g, h = c(one), c(two)
    yield g(X), h(X), g(Y), h(Y)


@scenario
def parametrized_and_normed_weights(c):
    n = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    nn.init.ones_(n.parametrizations.weight.original1)
    nn.init.zeros_(n.bias)
    f = c(n)
    yield f(X)
    with torch.no_grad():
        n.parametrizations.weight.original0.fill_(2.0)
    yield f(X)


@scenario
def a_lazy_module(c):
    n = nn.LazyLinear(2)
    f = c(n)
    yield f(X).shape
    yield f(X).shape, type(n).__name__


@case((X,), whole=True)
def parameters_made_inside(x):
    p = nn.Parameter(x.detach() * 2)
    q = nn.Parameter(torch.ones(3), requires_grad=False)
    return (
        x * p + q,
        isinstance(p, nn.Parameter),
        p.requires_grad,
        q.requires_grad,
        p.is_leaf,
        type(p).__name__,
    )


@scenario
def gradients_through_parameters_made_inside(c):
    @c
    def f(x):
        p = nn.Parameter(x.detach() * 2)
        return (x * p).sum()

    for _ in range(2):
        x = X.clone().requires_grad_()
        f(x).backward()
        yield x.grad


@case((X,))
def parameters_handed_out(x):
    p = nn.Parameter(x + 1)
    y = x * p
    return y, p, nn.Parameter(torch.zeros(2)).sum()
