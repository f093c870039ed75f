"""Functions and modules whose captures are written and read back: the archive needs code that lies in a file."""

from __future__ import annotations

import functools
import random
from typing import Any

import torch

LOG: list[Any] = []
SCALE = 2.0


def helper(x: torch.Tensor, factor: float = 3.0) -> torch.Tensor:
    """Inlined, with a default."""
    return x * factor


def nested_results(x: torch.Tensor) -> Any:
    y = helper(x).relu() * SCALE
    return {"y": y, "more": (y.sum(), 3.5, -0.0, [None, slice(1, 2)]), "dtype": y.dtype}


def writes(x: torch.Tensor, box: dict[str, Any]) -> torch.Tensor:
    box["seen"] = box.get("n", 0) + 1
    LOG.append(x.shape[0])
    x.add_(1)
    return x * 2


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if y.sum() > 0:
        return y * 2
    return y * 3


def calls_one_that_breaks(x: torch.Tensor) -> torch.Tensor:
    return breaks(x) + 1


def makes_a_function(x: torch.Tensor) -> Any:
    y = x * 2

    def later(z: torch.Tensor) -> torch.Tensor:
        return z + y

    return later


def decorator(fn: Any) -> Any:
    """A decorator such as libraries use."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs) + 1

    return wrapper


@decorator
@decorator
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def calls_decorated(x: torch.Tensor) -> torch.Tensor:
    return decorated(x) * 2


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * x
    return y + x


def transposed_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x + 0
    y.t_()
    return y @ x


def splits(x: torch.Tensor) -> Any:
    a, b = x.chunk(2)
    return torch.max(a, dim=0).values + b.sum(0), x[:, None, 1:], x.T


def draws(x: torch.Tensor) -> Any:
    number = random.uniform(2, 3)
    random.random()
    return x + 1, number, random.randint(0, 9)


def arrays(x: torch.Tensor, a: Any, rows: list[Any]) -> Any:
    """Arrays of numpy as inputs, one of them written."""
    y = torch.from_numpy(a)
    y.mul_(2)
    return x + y.sum() * a.shape[0] + torch.tensor(rows[0]), y


def chooses(x: torch.Tensor) -> Any:
    order = [2, 0, 1]
    random.shuffle(order)
    torch.manual_seed(4)
    return x + torch.rand(4), order, random.choices((0.5, -1.5), weights=[1, 2], k=2)


def puts_hooks(x: torch.Tensor) -> Any:
    handle = x.register_hook(lambda g: LOG.append(g))
    return x * 2, handle


class Count:
    """A counter on a class."""

    calls = 0


def counts(x: torch.Tensor) -> torch.Tensor:
    Count.calls = Count.calls + 1
    counts.last = getattr(Count, "nothing", x.dim())  # type: ignore[attr-defined]
    return x * Count.calls


class Net(torch.nn.Module):
    """Parameters, a buffer that is written, a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.nn.functional.gelu(self.norm(self.first(x)))


NUMBERS = [3.5, 2.5, 7.5, 1.5, 4.5, 6.5, 8.5, 9.5, 5.5]


def chosen(x: torch.Tensor, n: int) -> Any:
    """Numbers that an int chooses, of a list from outside and of one made here."""
    return x * NUMBERS[n] + [9, 8, 7, 6, 5, 4, 3, 2, 19][n], NUMBERS[n]


def chosen_by_arithmetic(x: torch.Tensor, n: int) -> Any:
    """Numbers that what is computed of an int and a size chooses."""
    return x * NUMBERS[(n * 3 + 1) % 7], NUMBERS[n - x.size(0) % n]


def reshapes(x: torch.Tensor, n: int, scale: float) -> torch.Tensor:
    """Sizes, an int and a float that may be symbols."""
    if x.shape[0] != n:
        return x
    return x.reshape(n * 2).unsqueeze(0).expand(3, -1) * scale + n
