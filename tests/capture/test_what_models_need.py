"""Small programs behind what whole models met: each was a break, a wrong answer or a crash once."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan

import braze
from tests.helpers import breaks, explained, graphs

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Scaled(torch.autograd.Function):
    """Doubles; its gradient is ten times too large on purpose."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k, x.sin()

    @staticmethod
    def backward(ctx, grad, other):
        (x,) = ctx.saved_tensors
        return grad * ctx.k * 10 + other * x.cos(), None


class Late(torch.autograd.Function):
    """With ``setup_context`` and a default."""

    @staticmethod
    def forward(x, k=3.0):
        return x * k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.k * 10, None


def both(x):
    a, b = Scaled.apply(x + 1, 2.0)
    return (a * b + Late.apply(a)).relu()


def test_autograd_functions_are_captured():
    """Without gradients the forward is part of the graph; with them the function is one node of it."""
    assert graphs(both, X) == 1
    assert torch.equal(braze.compile(both, backend="eager")(X), both(X))
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    assert graphs(both, x) == 1
    braze.compile(both, backend="eager")(x).sum().backward()
    both(y).sum().backward()
    assert torch.equal(x.grad, y.grad)


def test_a_function_that_returns_its_input_returns_another_tensor():
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

    def f(x):
        return Same.apply(x)

    assert braze.compile(f, backend="eager")(X) is not X
    assert graphs(f, X) == 1


def test_sizes_compared_as_tuples_may_be_symbolic():
    def f(x, n):
        if x.size() != (n.shape[0], 4):
            return x
        return x + 1

    compiled = braze.compile(f, backend="eager", dynamic=True)
    for rows in (3, 5):
        x = torch.ones(rows, 4)
        assert torch.equal(compiled(x, x), x + 1)
    assert explained(f, X, X).breaks == ()


def test_baddbmm_with_symbolic_sizes():
    """PyTorch's own meta function needs the Python dispatcher there."""

    def f(a, b, c):
        return a.baddbmm(b, c, beta=1.0, alpha=0.5)

    compiled = braze.compile(f, backend="eager", dynamic=True, fullgraph=True)
    a, b, c = torch.randn(4, 1, 11), torch.randn(4, 11, 16), torch.randn(4, 16, 11)
    assert torch.equal(compiled(a, b, c), f(a, b, c))


def test_numpy_computes_with_numbers():
    def f(x):
        x = x + 0
        x *= np.sqrt(x.shape[1])
        return x

    assert graphs(f, X) == 1
    assert torch.equal(braze.compile(f, backend="eager")(X), f(X))


def test_the_first_dtype_of_a_module():
    """``parameters()`` keeps a set of tensors, which hash by identity."""
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def f(x):
        return x.to(next(p.dtype for p in module.parameters() if p.is_floating_point())) + 1

    assert graphs(f, X) == 1


class Settings:
    def __init__(self):
        self.depth = 2
        self.names = ["a", "b"]


def test_plain_objects_are_deep_copied():
    settings = Settings()

    def f(x):
        mine = copy.deepcopy(settings)
        mine.depth += 1
        mine.names.append("c")
        return x * mine.depth + len(mine.names)

    assert graphs(f, X) == 1
    assert torch.equal(braze.compile(f, backend="eager")(X), X * 3 + 3)
    assert (settings.depth, settings.names) == (2, ["a", "b"])


def test_objects_that_say_how_they_are_copied_are_left_to_python():
    class Odd(Settings):
        def __getstate__(self):
            return {"depth": 5}

    odd = Odd()

    def f(x):
        return x * copy.deepcopy(odd).depth

    assert torch.equal(braze.compile(f, backend="eager")(X), X * 5)


def test_a_message_about_a_tensor_that_is_dropped():
    def check(good, message):
        if not good:
            raise ValueError(message)

    def f(x):
        check(x.dim() == 2, f"wrong: {x.sum()} of {x}")
        return x + 1

    assert breaks(f, X) == []
    with pytest.raises(ValueError, match=r"wrong: 12\.0"):
        braze.compile(f, backend="eager")(torch.ones(2, 2, 3))


def test_a_message_about_a_tensor_that_is_used():
    """The text is made by Python, wherever it goes."""

    def f(x):
        y = x + 1
        text = f"sum {y.sum()}" + "!"
        return y * 2, text, {f"{x[0, 0]}": len(f"<{x[0, 0]}>")}

    ours, theirs = braze.compile(f, backend="eager")(X), f(X)
    assert torch.equal(ours[0], theirs[0])
    assert ours[1:] == theirs[1:]


def test_checks_of_what_tensors_hold_run_with_the_graph():
    def f(x):
        torch._check_tensor_all(x > -2)
        return x * 2

    for backend in ("eager", "braze"):
        compiled = braze.compile(f, backend=backend, fullgraph=True)
        assert torch.equal(compiled(X), X * 2)
        with pytest.raises(RuntimeError):
            compiled(X - 5)


def test_inputs_with_the_same_long_name():
    """Names of graph inputs are cut; two that come out alike stay two."""

    class Deep(nn.Module):
        def __init__(self, depth):
            super().__init__()
            self.inner = Deep(depth - 1) if depth else nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x)

    first, second = nn.ModuleList([Deep(9)]), nn.ModuleList([Deep(9)])

    def f(x):
        return first[0](x) + second[0](x)

    assert graphs(f, X) == 1
    assert torch.equal(braze.compile(f, backend="eager")(X), f(X))


def test_functions_of_pybind_are_never_copied():
    """What they are bound to aborts the process when it is made by hand."""
    found = torch._C._functorch.unwrap_if_dead

    def g(x):
        keep = functools.partial(found)
        torch.seed()
        return keep(x) + 1

    assert torch.equal(braze.compile(g, backend="eager")(X), X + 1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 11])
def test_an_associative_scan_is_unrolled(length, reverse):
    """A linear recurrence, as state-space models run it."""

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    def f(a, b):
        return associative_scan(combine, (a, b), 1, reverse=reverse, combine_mode="generic")

    a, b = torch.rand(2, length, 3, dtype=torch.double), torch.rand(2, length, 3, dtype=torch.double)
    ours = braze.compile(f, backend="eager", fullgraph=True)(a, b)
    order = range(length)[::-1] if reverse else range(length)
    gain, state = torch.ones(2, 3, dtype=torch.double), torch.zeros(2, 3, dtype=torch.double)
    for i in order:
        gain, state = gain * a[:, i], a[:, i] * state + b[:, i]
        torch.testing.assert_close(ours[0][:, i], gain)
        torch.testing.assert_close(ours[1][:, i], state)


def test_a_scan_of_more_than_arithmetic_is_left_to_torch():
    def f(a):
        return associative_scan(lambda x, y: x + y.cumsum(0), a, 1, combine_mode="generic")

    assert len(breaks(f, torch.rand(2, 4, 3))) == 1


CLIPS = {
    "norm": lambda ps: nn.utils.clip_grad_norm_(ps, 0.5),
    "largest": lambda ps: nn.utils.clip_grad_norm_(ps, 0.5, float("inf"), foreach=True),
    "one by one": lambda ps: nn.utils.clip_grad_norm_(ps, 0.5, foreach=False),
    "value": lambda ps: nn.utils.clip_grad_value_(ps, 0.1),
    "total": lambda ps: nn.utils.get_total_norm([p.grad for p in ps]),
}


@pytest.mark.parametrize(
    "dtypes", [(torch.float32,), (torch.float32, torch.bfloat16, torch.float64)], ids=len
)
@pytest.mark.parametrize("name", CLIPS)
def test_gradients_are_clipped_in_one_graph(name, dtypes):
    """Grouped by type as eager groups them, of parameters some of which have no gradient."""
    clip = CLIPS[name]

    def parameters():
        g, made = torch.Generator().manual_seed(0), []
        for k, size in enumerate([(3, 4), (1,), (33,), (2, 3, 5), (7,)]):
            p = nn.Parameter(torch.randn(size, generator=g).to(dtypes[k % len(dtypes)]))
            p.grad = torch.randn(size, generator=g).to(p.dtype)
            made.append(p)
        made[-1].grad = None if name != "total" else made[-1].grad
        return made

    eager, ours = parameters(), parameters()
    wanted, got = clip(eager), braze.compile(clip, fullgraph=True)(ours)
    assert (wanted is None) is (got is None)
    if wanted is not None:
        torch.testing.assert_close(got, wanted)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
