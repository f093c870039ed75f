"""Control-flow operators, what the compiler is told about functions, and functions of other compilers."""

from __future__ import annotations

import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import braze
from tests.end_to_end.conformance import attempt, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
P, N = torch.tensor(True), torch.tensor(False)


@scenario
def cond_on_a_tensor(c):
    @c
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() - 1, (x,)) * 2

    for x in (X, Y - 9, X.t().contiguous().t()):
        yield f(x)


@scenario
def cond_with_what_it_closes_over(c):
    w = torch.ones(3)
    k = 2.0

    @c
    def f(x, p):
        def yes(x, y):
            return x * w * k, y + 0

        def no(x, y):
            return y - x, x * k

        return torch.cond(p, yes, no, (x, x + 1))

    for p in (P, N):
        yield f(X, p)
    w.add_(1)
    yield f(X, P)


@scenario
def cond_on_a_python_bool(c):
    @c
    def f(x, flag):
        return torch.cond(flag, lambda x: x + 1, lambda x: x - 1, (x,))

    yield f(X, True), f(X, False), f(X, x_is_big(X))


def x_is_big(x):
    return bool(x.sum() > 3)


@scenario
def cond_with_modules(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return torch.cond(x.mean() > 0, self.a, lambda x: torch.relu(self.b(x)), (x,))

    n = M()
    f = c(n)
    with torch.no_grad():
        yield f(X), f(Y - 4), f(X)


@scenario
def cond_with_gradients(c):
    n = nn.Linear(3, 3)
    nn.init.ones_(n.weight)
    nn.init.zeros_(n.bias)

    @c
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: n(x).sin(), lambda x: n(x) * 2, (x,)).sum()

    for x in (X, Y - 9):
        n.zero_grad()
        x = x.clone().requires_grad_()
        loss = f(x)
        loss.backward()
        yield loss, x.grad, n.weight.grad


@scenario
def cond_in_cond(c):
    @c
    def f(x):
        def outer(x):
            return torch.cond(x.max() > 4, lambda x: x * 10, lambda x: x * 100, (x,))

        return torch.cond(x.sum() > 0, outer, lambda x: -x, (x,))

    yield f(X), f(Y - 9), f(X / 10)


@scenario
def wrong_conds(c):
    @c
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x.sum() * 0 + 2, (x,))

    yield type(said(lambda: f(X))).__name__

    @c
    def g(x):
        return torch.cond("yes", lambda x: x, lambda x: x, (x,))

    yield type(said(lambda: g(X))).__name__


@scenario
def a_while_loop(c):
    @c
    def f(x, n):
        return while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 2 + 1), (torch.tensor(0), x))

    @c
    def g(x):
        def go_on(x):
            return x.norm() < 100

        return while_loop(go_on, lambda x: (x * 1.5 + 1,), (x,))

    yield f(X, 3), f(X, 5), f(Y, 5)
    yield g(X), g(Y)


@scenario
def a_scan(c):
    @c
    def f(x):
        def step(carry, x):
            carry = carry * 0.5 + x
            return carry, carry.sin()

        return scan(step, torch.zeros(3), x, dim=0)

    yield f(X), f(Y), f(torch.cat([X, Y]))


@scenario
def a_map(c):
    @c
    def f(x, y):
        return torch_map(lambda row, y: row * 2 + y, x, y)

    yield f(X, torch.ones(3)), f(torch.cat([X, Y]), torch.zeros(3))


@scenario
def flex_attention_up_to_rounding(c):
    from torch.nn.attention.flex_attention import flex_attention

    def attention(q):
        return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j))

    q = torch.rand(1, 2, 16, 8)
    found = c(attention)(q)
    yield found.shape, found.stride(), found.dtype
    yield torch.allclose(found, attention(q), rtol=1e-5, atol=1e-6)


@scenario
def checkpointed_parts(c):
    from torch.utils.checkpoint import checkpoint

    n = nn.Linear(3, 3)
    nn.init.ones_(n.weight)
    nn.init.zeros_(n.bias)

    @c
    def f(x):
        return checkpoint(lambda x: n(x).sin() * 2, x, use_reentrant=False).sum()

    for x in (X, Y):
        n.zero_grad()
        loss = f(x)
        loss.backward()
        yield loss, n.weight.grad


@scenario
def an_autograd_function(c):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.save_for_backward(x)
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ctx.k * 10 + x * 0, None

    @c
    def f(x):
        return Double.apply(x.sin(), 3).sum()

    for x in (X, Y):
        x = x.clone().requires_grad_()
        loss = f(x)
        loss.backward()
        yield loss, x.grad


@scenario
def items_and_lists_of_tensors(c):
    @c
    def f(x):
        n = int(x.max())
        v = x.sum().item()
        return torch.zeros(n) + v, x[0].tolist(), x * v

    yield f(X), f(X + 1), f(X)


@scenario
def sizes_from_data(c):
    @c
    def f(x):
        idx = x.nonzero()
        kept = x[x > 1]
        u = torch.unique(x)
        return idx.shape, kept * 2, u.numel(), idx.float().sum()

    yield f(X), f(Y), f(X)


@scenario
def branches_on_data(c):
    @c
    def f(x):
        if x.sum() > 0:
            y = x * 2
        else:
            y = x - 1
        while y.abs().max() < 100:
            y = y * 3 + 1
        return y if bool((y > 0).all()) else -y

    yield f(X), f(Y), f(Y - 9)


@scenario
def assertions_on_data(c):
    @c
    def f(x):
        assert x.min() >= 0, "negative"
        torch._assert(x.shape[0] == 2, "two rows")
        return x.sqrt()

    yield attempt(f, X), attempt(f, Y), attempt(f, X)


@scenario
def functions_disabled(c):
    log = []

    @torch.compiler.disable
    def secret(x):
        log.append(torch.compiler.is_compiling())
        return x + 1

    @torch.compiler.disable(recursive=False)
    def shallow(x):
        return deeper(x) * 2

    def deeper(x):
        return x - 3

    @braze.disable
    def ours(x):
        log.append("ours")
        return x * 5

    @c
    def f(x):
        return ours(shallow(secret(x * 2).sin()))

    yield f(X), log
    yield f(X), log


@scenario
def functions_allowed_in_the_graph(c):
    def strange(x):
        return x * int(x.shape[0]) if x.ndim else torch.stack([x, x])

    allowed = braze.allow_in_graph(strange)

    @c
    def f(x):
        return allowed(x + 1) * 3

    yield f(X)
    yield f(X[0]), f(X[0, 1])


@scenario
def constant_results(c):
    calls = []

    @torch.compiler.assume_constant_result
    def setting():
        calls.append(1)
        return 3

    @c
    def f(x):
        return x * setting()

    yield f(X)


@scenario
def questions_to_the_compiler(c):
    @c
    def f(x):
        if torch.jit.is_scripting() or torch.jit.is_tracing():
            return x
        if torch.compiler.is_exporting():
            return x - 1
        if torch.onnx.is_in_onnx_export():
            return x - 2
        return x + 1

    yield f(X)


@torch.jit.script
def scripted(x: torch.Tensor, n: int):
    y = x
    for i in range(n):
        if bool(y.sum() > 100):
            y = y - 1
        else:
            y = y * 2
    return y


@scenario
def scripted_functions(c):
    traced = torch.jit.trace(lambda x: x.sin() * 2, X)

    @c
    def f(x):
        return scripted(x + 1, 3) + traced(x), 1

    yield f(X), f(Y), f(X)


@scenario
def scripted_modules(c):
    torch.manual_seed(0)
    n = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    s = torch.jit.script(n)
    t = torch.jit.trace(n, X)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.s, self.t = s, t

        def forward(self, x):
            return self.s(x * 2) + self.t(x)

    m = M()
    f = c(m)
    yield f(X), f(Y)


@scenario
def a_compiled_function_in_another(c):
    log = []

    @c
    def inner(x):
        log.append(x.shape[0])
        return x * 2

    @c
    def outer(x):
        return inner(x + 1) - 1

    yield outer(X), inner(X), outer(Y), log


@scenario
def custom_operators(c):
    yield from with_custom_operators(c)


with torch.library._scoped_library("corpus", "FRAGMENT"):
    pass


@torch.library.custom_op("corpus::scaled", mutates_args=())
def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * k


@scaled.register_fake
def _(x, k):
    return torch.empty_like(x)


@torch.library.custom_op("corpus::fill_with", mutates_args={"out"})
def fill_with(out: torch.Tensor, k: float) -> None:
    out.fill_(k)


CALLS: list[float] = []


@torch.library.custom_op("corpus::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(float(x.sum()))
    return x[x > 0].clone()


@torch.library.custom_op("corpus::noted", mutates_args="unknown")
def noted(x: torch.Tensor, k: float) -> None:
    CALLS.append(float(x.sum()) + k)


def with_custom_operators(c):
    CALLS.clear()

    @c
    def f(x):
        out = torch.zeros(3)
        fill_with(out, 2.5)
        y = scaled(x, 3.0) + out
        fill_with(x, 1.0)
        return y, torch.ops.corpus.scaled(x, 0.5)

    @c
    def g(x):
        return without_fake(x * 2) + 1

    @c
    def h(x):
        noted(x, 0.5)
        return x + 1

    for x in (X, Y):
        x = x.clone()
        yield f(x), x
    yield g(X), g(Y), CALLS
    yield h(X), h(Y), CALLS


@scenario
def profiler_marks(c):
    @c
    def f(x):
        with torch.profiler.record_function("part"):
            y = x * 2
        with torch.autograd.profiler.record_function("other") as r:
            y = y + 1
            print("inside", r is not None)
            y = y + 1
        return y

    yield f(X), f(Y)
    with torch.profiler.profile():
        yield f(X)
