"""Errors that depend on data: the graph takes for granted that they are not raised, and Python raises them where they are."""

from __future__ import annotations

import torch

from tests.end_to_end.conformance import attempt, case, scenario

X = torch.arange(6.0).reshape(2, 3)
CALLS = (X,), (X + 20,), (X - 9,), (X,)


@case(*CALLS, kernels=True, whole=True)
def labels_are_checked(x):
    y = x * 2
    if x.max() >= 20:
        raise ValueError(f"labels must be < 20, not {x.max().item()}")
    if not (x >= 0).any():
        raise RuntimeError("all are negative: %d" % x.numel())
    return y + 1


@case(*CALLS, kernels=True, whole=True)
def asserted_with_messages(x):
    y = x + 1
    assert (x < 20).all(), f"too large: {x.max()}"
    assert x.min() + 5
    return y.sum(), y


@case(*CALLS, whole=True)
def raised_in_the_other_branch(x):
    if x.sum() > 0:
        y = x / x.sum()
    else:
        raise ZeroDivisionError("nothing to divide by", x.shape)
    return y


@case(*CALLS, whole=True)
def raised_and_caught(x):
    y = torch.zeros_like(x)
    y.add_(x)
    try:
        if y.sum() > 30:
            raise KeyError("large")
        z = y * 2
    except KeyError as error:
        z = y - 1 + len(error.args)
    finally:
        y = y + 1
    return z, y


def checked(x, name, log):
    log.append(name)
    if (x < 0).any():
        raise ValueError(name) from IndexError("cause")
    return x.sqrt()


@case(*[(*c, []) for c in CALLS])
def raised_in_calls(x, log):
    y = checked(x, "first", log)
    try:
        return checked(y - 1, "second", log)
    except ValueError as error:
        log.append(str(error.__cause__))
        return y, x


@case(*CALLS)
def writes_before_the_error(x):
    x += 1
    if x.max() > 20:
        raise ValueError("after a write")
    x *= 2
    assert x.min() > -5, "second"
    return x.view(-1)[1:]


@case(*CALLS)
def writes_after_the_error(x):
    if x.max() > 20:
        raise ValueError("before a write")
    x.view(-1)[:2].zero_()
    return x + 1


@scenario
def writes_to_lists_before_the_error(c):
    seen = []

    @c
    def f(x):
        seen.append(x.shape[0])
        if x.max() > 20:
            raise ValueError(len(seen))
        seen.append("fine")
        return x * 2

    for (x,) in CALLS:
        yield attempt(f, x), seen


@case(
    (X, torch.tensor([True, False])),
    (X, torch.zeros(0)),
    (X, torch.tensor([float("nan")])),
    (X, torch.tensor([[1]])),
)
def conditions_of_other_shapes(x, condition):
    if condition:
        raise ValueError("true")
    return x + 1


@case(*CALLS, times=1)
def not_only_an_error(x):
    if x.max() > 20:
        x = x - 20
        if x.min() > 19:
            raise ValueError("rare")
    while x.sum() < 0:
        x = x + 5
        if x.max() > 3:
            raise OverflowError
    return x


@case((X.clone().requires_grad_(),), ((X + 30).requires_grad_(),), times=1)
def with_gradients(x):
    y = (x * x).sum()
    if y > 1000:
        raise ValueError("loss")
    (grad,) = torch.autograd.grad(y, x)
    return y, grad
