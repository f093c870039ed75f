"""Modes and settings of PyTorch in and around compiled functions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.end_to_end.conformance import attempt, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5


@scenario
def requires_grad_changes(c):
    f = c(lambda x: (x * 2, x.requires_grad, (x * 2).requires_grad))
    x = X.clone()
    yield f(x)
    x.requires_grad_()
    yield f(x)
    with torch.no_grad():
        yield f(x)
    yield f(x.detach())


@scenario
def gradients_flow(c):
    f = c(lambda x, w: (x @ w.t()).relu().sum())
    w = Y.clone().requires_grad_()
    for x in (X, X + 1):
        f(x, w).backward()
        yield w.grad


@scenario
def gradient_inside(c):
    @c
    def f(x):
        y = (x * x).sum()
        (g,) = torch.autograd.grad(y, x)
        return y, g

    yield attempt(f, X.clone().requires_grad_())
    yield attempt(f, X)


@scenario
def modes_inside(c):
    @c
    def f(x, w):
        with torch.no_grad():
            a = x * w
        with torch.inference_mode():
            b = x + 1
        with torch.enable_grad():
            d = x * w
        with torch.autocast("cpu", dtype=torch.bfloat16):
            e = x @ w.t()
        return a.requires_grad, b.is_inference(), d.requires_grad, e, a, d, torch.is_grad_enabled()

    w = Y.clone().requires_grad_()
    yield f(X, w)
    with torch.no_grad():
        yield f(X, w)


@scenario
def modes_outside(c):
    f = c(
        lambda x: (
            x @ x.t(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
        )
    )
    yield f(X)
    with torch.no_grad():
        yield f(X)
    with torch.inference_mode():
        yield f(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield f(X)
    with torch.autocast("cpu", dtype=torch.float16):
        yield f(X)
    yield f(X)


@scenario
def a_mode_left_by_an_exception(c):
    @c
    def f(x):
        try:
            with torch.no_grad():
                x = x * 2
                raise ValueError("out")
        except ValueError:
            return x.requires_grad, torch.is_grad_enabled()

    yield f(X.clone().requires_grad_())

    @c
    def g(x):
        torch.set_grad_enabled(False)
        raise KeyError("stay")

    yield attempt(g, X), torch.is_grad_enabled()
    torch.set_grad_enabled(True)


@scenario
def a_mode_that_stays(c):
    @c
    def f(x, on):
        torch.set_grad_enabled(on)
        return x * 2

    x = X.clone().requires_grad_()
    yield f(x, False), torch.is_grad_enabled()
    yield f(x, True), torch.is_grad_enabled()
    yield f(x, False), torch.is_grad_enabled()
    torch.set_grad_enabled(True)


@scenario
def no_grad_as_a_decorator(c):
    f = c(torch.no_grad()(lambda x: (x * 2, torch.is_grad_enabled())))
    g = c(lambda x: torch.no_grad()(lambda y: y * 3)(x))
    x = X.clone().requires_grad_()
    yield f(x), g(x), torch.is_grad_enabled()


@scenario
def default_dtype_changes(c):
    f = c(lambda x: (torch.ones(2) * 1.5, torch.tensor(1.0), x + torch.arange(3.0)))
    yield f(X)
    torch.set_default_dtype(torch.float64)
    try:
        yield f(X)
    finally:
        torch.set_default_dtype(torch.float32)
    yield f(X)


@scenario
def dropout_with_a_seed(c):
    f = c(lambda x: (F.dropout(x, 0.5, training=True), torch.rand_like(x), torch.randn(2)))
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            yield f(X)
            yield f(X)


@scenario
def a_seed_set_inside(c):
    @c
    def f(x, seed):
        torch.manual_seed(seed)
        return x + torch.rand(3)

    yield f(X, 3), f(X, 3), f(X, 4), torch.rand(1)


@torch.inference_mode()
def decorated(x):
    return x * x.sum().item()


@scenario
def a_break_in_inference_mode(c):
    @c
    def f(x):
        y = x + 1
        with torch.inference_mode():
            y = y * 2
            z = y * y.sum().item()
        return z, z.is_inference(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    @c
    def g(x):
        for i in range(3):
            with torch.no_grad(), torch.inference_mode(), torch.inference_mode(False):
                x = x / x.max().item()
            x = x + i
        return x

    @c
    def h(x):
        return decorated(x + 1) * 3, torch.is_inference_mode_enabled()

    for fn in (f, g, h, f, g, h):
        yield fn(X + 1)
