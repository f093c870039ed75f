"""Numbers that Python draws: anew at each call, in order, and the generator is left where Python would leave it."""

from __future__ import annotations

import functools
import random
from random import random as drawn

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.end_to_end.conformance import attempt, case, scenario

X = torch.arange(6.0).reshape(2, 3)


@case((X,), times=3, kernels=True, whole=True)
def drawn_and_not_used(x):
    random.uniform(0, 1)
    p = drawn()
    return x + 1 if p is not None else x


@case((X,), times=3, kernels=True, whole=True)
def drawn_into_the_graph(x):
    p, q = random.uniform(-1, 1), random.gauss(0, 1)
    return x * p + q, (p - q) * 2 + 1, p


@case((X,), times=3, whole=True)
def drawn_and_returned(x):
    numbers = [random.random(), random.randint(0, 5), random.randrange(10), random.getrandbits(40)]
    return x + 1, numbers, {"third": numbers[2], "again": numbers[2]}


@case((X,), times=4, kernels=True, whole=True)
def integers_into_the_graph(x):
    k = random.randint(0, 2)
    return torch.roll(x, k, 1) + k


@case((X,), times=4, kernels=True, whole=True)
def what_holds_of_each_number_that_may_be_drawn_is_no_decision(x):
    n, m, k = random.randint(1, 4), random.randrange(-9, -2, 3), random.choice((5, 3, 7))
    places = (n, -1).index(-1), [*random.sample([4, 6, 8], 2), 9].index(9)
    if n == 0 or n > 4 or m >= -2 or not 3 <= k <= 7 or random.getrandbits(3) > 7:
        return places
    return x.new_ones(n, 2) * m, x + random.randint(2, 2), k, places


@case((X,), times=6)
def what_holds_of_some_numbers_that_may_be_drawn_is_a_decision(x):
    n = random.randint(1, 4)
    y = x * 2 if n == 4 else x - n
    return y + 1 if random.randrange(3) < 2 else y


@case((X, 3), (X, 9), (X, 4), times=2, whole=True)
def bounds_from_arguments(x, n):
    return x * random.randint(0, n), random.uniform(0.5, high := n / 2), high


@case((X,), times=6, kernels=True)
def decided_by_chance(x):
    y = x * 2
    if random.random() < 0.5:
        return y + 1
    k = random.randint(1, 3)
    while random.random() < 0.4:
        y = y - k
    return y if 0.3 > random.random() else -y


@case((X,), times=3)
def other_functions_of_random(x):
    a = random.random()
    kind = random.choice(["add", "sub"])
    b = random.random()
    order = random.sample(range(3), 3)
    x = x[:, order] + a if kind == "add" else x - b
    return x * random.betavariate(1, 2), kind, order


@case((X,), times=4, kernels=True, whole=True)
def one_of_several_numbers(x):
    k, p = random.choice([1, -2, 3]), random.choice((0.5, 1.5))
    return x * k + p, random.choice(range(3, 9)), k


@case((X, [1.0, 2.0, 4.0]), (X, [8.0]), times=3, whole=True)
def several_of_several_numbers(x, weights):
    some = random.sample(range(10), 3)
    again = random.choices([-1.5, 2.5], k=3) + random.choices([1.0] * len(weights), weights=weights)
    more = random.choices(range(len(weights)), cum_weights=weights, k=2)
    return x * some[0] + again[-1], some, again, more, sum(some)


@case((X, [3, 1, 2, 0]), (X, [0.5, -1.5]), times=3, kernels=True, whole=True)
def put_in_another_order(x, given):
    own = [0, 1, 2]
    random.shuffle(own)
    random.shuffle(given)
    return x.roll(own[0]) + given[1], own, given


@case((X,), times=6)
def columns_in_an_order_that_is_drawn(x):
    order = list(range(x.shape[1]))
    random.shuffle(order)
    y = x[:, order] * 2
    return torch.cat([y[:, i : i + 1] for i in random.sample(order, 2)], 1), order


@case((X, []), (X, [1, 2.0]), (X, ["a", "b", "c"]), (X, [True, False]), (X, [X, X + 1, X + 2]), times=3)
def other_things_to_choose_from(x, things):
    x = x + random.random()
    try:
        chosen = random.choice(things)
    except IndexError as error:
        return x, str(error), random.random()
    random.shuffle(things)
    return x * random.uniform(0, 1), chosen, things, random.sample(things, 2)


@case((X, 5), (X, -1), (X, 100), times=2)
def more_than_there_are(x, k):
    try:
        return x + 1, random.sample(range(10), k)
    except ValueError as error:
        return x - random.random(), str(error)


@case((X, list(range(200))), times=2)
def a_long_list(x, things):
    random.shuffle(things)
    return x + random.choice(things), things


MODULE = random  # not the name of an import: its functions are looked up as methods are


@case((X,), times=3)
def methods_of_the_modules_generator(x):
    a = MODULE.choice(["add", "sub", "mul"])
    return x + MODULE.random(), a, MODULE.sample(["a", "b", "c", "d"], 2), MODULE.choice([1, 2, 3])


@case((X, 0), (X, 1), (X, 2), times=2)
def draws_that_fail(x, how):
    random.random()
    try:
        return x + (random.randint(5, 1), random.expovariate(0.0), random.uniform(0, "a"))[0]
    except (ValueError, ZeroDivisionError, TypeError) as error:
        return x - random.random(), str(error)


@case((X, torch.tensor([0, 1])), (X, torch.tensor([0, 7])), times=2)
def drawn_before_and_after_an_error_of_the_data(x, index):
    p = random.random()
    try:
        found = torch.nn.functional.embedding(index, x) * p
    except IndexError as error:
        return "caught", type(error).__name__, random.random()
    return found + random.random()


@scenario
def errors_leave_the_generator_as_python_does(c):
    @c
    def f(x, index):
        y = x * random.random()
        y = torch.nn.functional.embedding(index, y)
        return y * random.random()

    yield attempt(f, X, torch.tensor([0, 1])), random.getstate()[1][-1]
    yield type(attempt(f, X, torch.tensor([0, 7]))), random.getstate()[1][-1]


@scenario
def generators_of_ones_own(c):
    own = random.Random(5)
    f = c(lambda x: (x * own.random(), own.randint(0, 9), random.random()))
    yield f(X), own.random()
    yield f(X), own.random()


@scenario
def a_generator_that_is_put_in_place_of_the_modules(c):
    own = random.Random(7)
    f = c(lambda x: x * random.uniform(0, 1))
    yield f(X)
    kept, random.uniform = random.uniform, own.uniform
    try:
        g = c(lambda x: x - random.uniform(0, 1))
        yield g(X), g(X), own.random()
    finally:
        random.uniform = kept
    yield random.random()


@scenario
def seeds_between_draws(c):
    @c
    def f(x):
        a = random.random()
        random.seed(3)
        b = random.random()
        state = random.getstate()
        k = random.random()
        random.setstate(state)
        return x * a + b, k == random.random(), random.random()

    yield f(X)
    yield f(X)


class Drop(nn.Module):
    """Layers that are left out at random in training, drawn for in evaluation too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
        self.rate = 0.5

    def forward(self, x):
        for layer in self.layers:
            chance = random.uniform(0, 1)
            if self.training and chance < self.rate:
                continue
            x = layer(x).relu()
        return x


@scenario
def layers_left_out(c):
    model = Drop().eval()
    f = c(model)
    with torch.no_grad():
        yield f(X), random.random()
        model.train()
        for _ in range(4):
            yield f(X), random.random()


@scenario
def layers_drawn_for_in_evaluation(c):
    f = c(Drop().eval())
    with torch.no_grad():
        yield f(X), random.random()
        yield f(X), random.random()


@scenario
def drawn_in_functions_that_are_cached_or_run_again(c):
    @functools.lru_cache
    def once():
        return random.random()

    f = c(lambda x: x * once() + random.random())
    yield f(X), f(X)
    w = X.clone().requires_grad_()
    g = c(lambda x: checkpoint(lambda y: (y * random.random()).sin(), x, use_reentrant=False).sum())
    yield g(w), g(w), random.random()


@scenario
def drawn_around_graph_breaks(c):
    @c
    def f(x):
        a = random.random()
        print(float(x.sum()) + random.randint(0, 3))
        b = random.random()
        return x * a + b, a > b

    yield f(X)
    yield f(X)
