"""Functions for breaking at every statement and in every expression: see test_break_everywhere.py."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import torch

Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Config:
    k: int = 2
    names: list[str] = dataclasses.field(default_factory=list)


class Block(torch.nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.calls = 0
        self.seen: list[Any] = []

    @property
    def doubled(self) -> int:
        return self.k * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = x * self.k
        self.seen.append(y.shape[0])
        return y + self.doubled


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(2), Block(3)])
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> Any:
        for i, block in enumerate(self.blocks):
            x = block(x) + i
        self.last = x
        return x


def arithmetic(x: torch.Tensor) -> Any:
    a = x + 1
    b, c = a * 2, a - 1
    d = (b if a.shape[0] == 2 else c) + (b * c)
    e = {"d": d, "list": [a, b]}
    e["n"] = len(e["list"])
    return e, Pair(a, c), f"{x.shape[0]}"


def loops(x: torch.Tensor) -> Any:
    out = []
    for i in range(3):
        if i == 1:
            x = x - 5
            continue
        for j, name in enumerate(["p", "q"]):
            x = x + i * j
            out.append((name, x.sum()))
        else:
            out.append(i)
    while len(out) > 4:
        out.pop()
    return out, x


def contexts(x: torch.Tensor) -> Any:
    log: list[Any] = []
    with torch.no_grad():
        y = x * 2
        with noted(log, "a") as k:
            y = y + k
            log.append(torch.is_grad_enabled())
        z = y - 1
    return z, log, torch.is_grad_enabled()


@contextlib.contextmanager
def noted(log: list[Any], name: str) -> Iterator[int]:
    log.append(name)
    try:
        yield 3
    finally:
        log.append("end " + name)


def handlers(x: torch.Tensor) -> Any:
    log = []
    for i in range(3):
        try:
            y = x + i
            if i == 1:
                raise ValueError(i)
            log.append("fine")
        except ValueError as error:
            y = x * 10
            log.append(str(error))
        else:
            y = y + 1
        finally:
            x = y - 1
            log.append(i)
    return x, log


def closures(x: torch.Tensor) -> Any:
    count = 0

    def bump(v: int) -> int:
        nonlocal count
        count += v
        return count

    def scaled(t: torch.Tensor, by: Callable[[int], int] = bump) -> torch.Tensor:
        factor = by(2)
        return t * factor

    y = scaled(x)
    bump(1)
    z = scaled(y) + count
    return y, z, count, [f(1) for f in (bump, lambda v: v + count)]


def objects(x: torch.Tensor) -> Any:
    config = Config(3)
    config.names.append("one")
    config.k += 1
    other = dataclasses.replace(config, k=7)
    table = OrderedDict(a=x * config.k)
    table["b"] = table["a"] + other.k
    table.move_to_end("a")
    s = slice(0, 1)
    return list(table), table["b"][s], config.names, other.k, {config.k, other.k}


def modules(x: torch.Tensor) -> Any:
    model = MODEL
    y = model(x)
    model.blocks[0].k = model.blocks[0].k + 1
    z = model(y)
    last = model.last
    model.blocks[0].k -= 1
    return y, z, last is z, [b.calls for b in model.blocks]


def mutation(x: torch.Tensor) -> Any:
    y = x.clone()
    y[0] = 5
    y += 1
    view = y[:, 1:]
    view.mul_(2)
    items = [y]
    items[0] = items[0] + 1
    items.extend([view, x])
    del items[1]
    first, *rest = items
    return y, first, len(rest), view


def generators(x: torch.Tensor) -> Any:
    def parts(n: int) -> Iterator[torch.Tensor]:
        for i in range(n):
            yield x[i] + i

    total = sum(parts(2))
    both = [p * 2 for p in parts(2)]
    pairs = dict(zip("ab", both))
    best = max(range(3), key=lambda i: -i)
    return total, pairs, best, sorted([3, 1, 2], key=lambda v: v * -1)


WEIGHT = torch.nn.Parameter(torch.ones(3))


class Counter:
    calls = 0
    last: Any = None


def hooks(x: torch.Tensor) -> Any:
    log: list[Any] = []
    handle = WEIGHT.register_hook(lambda g: log.append("weight") or g * 2)
    y = x * WEIGHT
    y.register_hook(lambda g: g.clamp(-1, 1))
    z = y.sin()
    second = z.register_hook(lambda g: log.append("middle"))
    made = z.detach().requires_grad_()
    made.register_hook(lambda g: g + 1)
    loss = (z * z + made * z).sum()
    log.append("made")
    loss.backward()
    handle.remove()
    second.remove()
    grad = WEIGHT.grad
    return loss.detach(), grad, made.grad, log


def counts(x: torch.Tensor) -> Any:
    Counter.calls += 1
    counts.last = x.sum()
    first = Counter.calls, getattr(Counter, "more", None)
    Counter.more = [x.shape[0]]
    Counter.more.append(Counter.calls)
    Counter.last = counts.last + 1
    Counter.calls = Counter.calls * 2
    return first, Counter.calls, Counter.more, Counter.last, x * Counter.calls


def chances(x: torch.Tensor) -> Any:
    order = [0, 1, 2]
    random.shuffle(order)
    a = x * random.choice([2, 3])
    torch.manual_seed(3)
    some = random.sample(order, 2)
    b = torch.rand(3)
    torch.manual_seed(len(order))
    c = x + random.choices((0.5, 1.5), k=1)[0]
    names = sorted(vars())
    return a, b, c, order, some, names, globals()["Pair"] is Pair


MODEL = Model()
FUNCTIONS = [
    arithmetic,
    loops,
    contexts,
    handlers,
    closures,
    objects,
    modules,
    mutation,
    generators,
    hooks,
    counts,
    chances,
]


def restart() -> None:
    """Put the state that functions share back."""
    global MODEL
    MODEL = Model()
    WEIGHT.grad = None
    Counter.calls = 0
    vars(counts).clear()
    if hasattr(Counter, "more"):
        del Counter.more
    random.seed(0)
    torch.manual_seed(0)
