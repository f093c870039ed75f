"""Seeds of PyTorch's generators set by a compiled function: before its random operations, after them, and between."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F

from tests.end_to_end.conformance import WHOLE, attempt, case, scenario

X = torch.arange(6.0).reshape(2, 3)


def whole(fn):
    """A scenario whose functions are captured without a break."""
    WHOLE.add(fn.__name__)
    return scenario(fn)


@case((X,), times=3, whole=True)
def seeded_before_all_draws(x):
    y = x * 2
    torch.manual_seed(3)
    torch.manual_seed(5)
    return y + torch.rand(3), F.dropout(x, 0.5), torch.randint(0, 10, (3,))


@case((X,), times=3, whole=True)
def seeded_after_all_draws(x):
    y = x + torch.rand(3)
    torch.manual_seed(3)
    z = y.sin()
    torch.manual_seed(4)
    return z * 2, F.dropout(x, 0.5, training=False) if x.dim() == 1 else x


@case((X,), times=3, whole=True)
def seeded_without_draws(x):
    got = torch.manual_seed(7)
    return x + 1, got is torch.default_generator


@whole
def seeds_and_what_others_draw(c):
    @c
    def f(x):
        a = random.random()
        torch.manual_seed(11)
        return x * a + torch.randn(3), random.random()

    for _ in range(3):
        yield f(X), torch.rand(2), random.random()


@case((X, 1), (X, 1), (X, 2), (X, 3), (X, -1), (X, 2.0), (X, "a"), times=2)
def seeds_of_arguments(x, seed):
    torch.manual_seed(seed)
    return x + torch.rand(3)


@case((X,), times=3)
def seeded_between_draws(x):
    a = torch.rand(3)
    torch.manual_seed(3)
    b = torch.rand(3)
    torch.manual_seed(4)
    return x * a + b, torch.rand(2)


@case((X, torch.tensor([0, 1])), (X, torch.tensor([0, 7])), times=2)
def seeded_before_and_after_an_error_of_the_data(x, index):
    x = x + torch.rand(3)
    try:
        found = F.embedding(index, x)
        torch.manual_seed(3)
    except IndexError as error:
        return "caught", type(error).__name__, torch.rand(1)
    return found + 1


@case((X, torch.tensor([0, 1])), (X, torch.tensor([0, 7])), times=2)
def seeded_at_the_end_of_what_fails(x, index):
    try:
        found = F.embedding(index, x)
        torch.manual_seed(3)
    except IndexError as error:
        return "caught", type(error).__name__, torch.rand(1)
    return found + torch.rand(1)


@scenario
def seeds_in_branches_and_caches(c):
    def drawn(x):
        torch.manual_seed(1)
        return x + torch.rand(3)

    f = c(lambda x: torch.cond(x.sum() > 3, lambda v: v + torch.rand(3), lambda v: v - 1, (x,)) + seeded(x))

    def seeded(x):
        torch.manual_seed(1)
        return x

    yield attempt(f, X), torch.rand(1)
    g = c(lambda x: torch.cond(x.sum() > 3, drawn, lambda v: v * 2, (x,)))
    yield type(attempt(g, X))
    yield c(drawn)(X), torch.rand(1)


@scenario
def states_saved_and_put_back(c):
    @c
    def f(x):
        state = torch.get_rng_state()
        torch.manual_seed(3)
        a = torch.rand(3)
        torch.set_rng_state(state)
        return a + x, torch.initial_seed()

    @c
    def g(x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            mask = torch.rand(3)
        return x * mask

    for _ in range(2):
        yield f(X), torch.rand(1), g(X), torch.rand(1)
