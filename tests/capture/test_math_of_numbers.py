"""Functions of ``math`` on integers and sizes that change from call to call: floats that the graph computes, in one variant."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.graph.sizes.numbers import OF_MATH
from tests.helpers import logged

X = torch.arange(12.0).reshape(3, 4)


def broken(x: torch.Tensor, n: int) -> Any:
    y = x * math.log(n)
    braze.graph_break()
    return y + math.log(n)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "a cosine schedule": lambda x, n: x * (0.5 * (1 + math.cos(math.pi * n / 100))),
    "a bias that is corrected": lambda x, n: x / (1 - 0.9**n) * math.sqrt(1 - 0.99**n),
    "a logarithm to a base": lambda x, n: (x * math.log(n, 2), math.log(n, 10), math.log(n, 1.5)),
    "powers": lambda x, n: (x * math.pow(n, 0.5), math.pow(n, -1)),
    "beside the integer": lambda x, n: (x * (math.log(n) * n + n / 3 - 1), math.cos(n) / n),
    "beside a size": lambda x, n: (x * (x.shape[0] * math.log(n)), math.log(x.shape[1]) * x.shape[0]),
    "in text": lambda x, n: (x + 1, f"{math.log(n):.3f} of {math.cos(n)}"),
    "in a tensor": lambda x, n: (torch.tensor([math.log(n), 1.0]), torch.full((2,), math.cos(n))),
    "as an argument": lambda x, n: (x.add(x, alpha=-math.exp(-n)), x.clamp(max=math.log(n))),
    "returned": lambda x, n: [x * 2, math.log(n), {"k": -math.sin(n), "l": 2 * math.tanh(n) + 1}],
    "what is finite": lambda x, n: (x * n, math.isfinite(n), math.isnan(n), math.isinf(n)),
    "after a break": broken,
}


def captures(fn: Callable[..., Any], values: Any, **options: Any) -> int:
    """How often a function is compiled over values, each of which gives what Python gives, numbers to the last bit."""
    compiled = braze.compile(fn, **options)
    with logged() as said:
        for n in values:
            assert repr(told(compiled, n)) == repr(told(fn, n)), n
    assert not [message for message in said if "BZ2" in message or "BZ3" in message or "BZ9" in message]
    return int(compiled.misses)


def told(fn: Callable[..., Any], n: int) -> Any:
    try:
        return fn(X, n)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_float_made_of_a_number_that_changes_is_computed_by_the_graph(name: str, backend: str) -> None:
    assert captures(PROGRAMS[name], range(2, 42), backend=backend) <= 3


@pytest.mark.parametrize("function", sorted(OF_MATH, key=str), ids=str)
def test_numbers_that_a_function_refuses_are_refused(function: Any) -> None:
    """Each is told apart by what Python asks of it, not by its value."""
    numbers = [3, 4, 5, 9, 1, 0, -1, -3, 100, 699, 701, 2**40, 2**62, 41]
    assert captures(lambda x, n: (x + 1, function(n), function(n / 7)), numbers, backend="eager") < 13
    captures(lambda x, n: (x + 1, function(n)), numbers, dynamic=True)


DECISIONS: dict[str, Callable[..., Any]] = {
    "greater": lambda x, n: (x if math.log(n) > 1.5 else x * 2, math.log(n / 7) < 0),
    "beside the integer": lambda x, n: x if math.log(n) * n / 3 > 2.2 else x * 2,
    "whole": lambda x, n: (x * int(math.log(n)), math.ceil(math.log2(n)), math.floor(math.log(n) * 3)),
    "rounded": lambda x, n: (x * round(math.log(n), 2), round(math.log(n))),
    "a size": lambda x, n: x.new_zeros(1 << math.ceil(math.log2(n))),
    "a rest": lambda x, n: (x * (math.log(n) % 1), math.log(n) // 1),
}


@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_by_such_a_float_is_one_by_the_number(name: str, backend: str) -> None:
    captures(DECISIONS[name], [3, 4, 5, 9, 41, 2, 3, 17, 5], backend=backend)
    sizes = lambda x, n: DECISIONS[name](x, torch.ones(n).shape[0])
    captures(sizes, [3, 4, 5, 9, 41, 2, 3, 17, 5], backend=backend)


def test_random_expressions_are_pythons() -> None:
    rng = random.Random(0)
    total = ("sin", "cos", "tanh", "atan", "asinh")

    def expression(depth: int) -> str:
        if depth == 0:
            return rng.choice(["n", "x.shape[0]", "2.5", "n / 7", "3", f"math.{rng.choice(total)}(n)"])
        a, b = expression(depth - 1), expression(depth - 1)
        return rng.choice([f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"-{a}", f"abs({a})", f"{a} / 3"])

    for _ in range(100):
        text = expression(3)
        captures(
            eval(f"lambda x, n: (x[0, 0], {text})", {"math": math}), [3, 4, 5, -7, 2**40], backend="eager"
        )


def test_gradients_go_through_what_is_scaled_so() -> None:
    compiled = braze.compile(lambda x, n: (x * math.log(n)).square().sum())
    for n in range(2, 9):
        x = X.clone().requires_grad_()
        compiled(x, n).backward()
        torch.testing.assert_close(x.grad, 2 * X * math.log(n) ** 2)
    assert compiled.misses == 2


def test_a_kept_capture_computes_it_too() -> None:
    def scaled(x: torch.Tensor, n: int) -> Any:
        return x * math.log(n) + math.cos(n) * n, math.log(n)

    for _ in range(2):
        braze.reset()
        compiled = braze.compile(scaled, dynamic=True, options={"keep_captures": True})
        for n in (3, 4, 5):
            found, number = compiled(X, n)
            torch.testing.assert_close(found, scaled(X, n)[0])
            assert number == math.log(n)


AS_WRITTEN: dict[str, Callable[..., Any]] = {
    "what cancels": lambda x, n: (x.double() * ((n / 3 + 1e16) - 1e16), (n / 3 + 1e16) - 1e16),
    "of a size": lambda x, n: (torch.ones(n).shape[0] / 3 + 1e16) - 1e16,
    "constants": lambda x, n: (x[0, 0], (2.5 / 3 * (n / 7 * 3)) / 3, -(6 * (3 - n / 7))),
    "no number": lambda x, n: (x[0, 0], (n / 7) * (n - n), abs(n / 7 + 3 + n / 7 / 3)),
}


@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("name", AS_WRITTEN)
def test_floats_made_of_integers_are_computed_in_the_order_written(name: str, backend: str) -> None:
    """The algebra of symbols took the first for ``n / 3``."""
    values = [3, 4, 5, 9, 10, 11] + ([-7, -8, 2**40] if name != "of a size" else [])
    assert captures(AS_WRITTEN[name], values, backend=backend) <= 3


def test_places_up_to_a_float_that_changes_are_floats() -> None:
    """Their decomposition took a symbolic float for an integer, and was refused for it (BZ9022)."""
    compiled = braze.compile(lambda n: (torch.arange(0, n / 2), torch.arange(n / 4)))
    for n in range(3, 9):
        for found, wanted in zip(compiled(n), (torch.arange(0, n / 2), torch.arange(n / 4)), strict=True):
            assert found.dtype is wanted.dtype and torch.equal(found, wanted)


def test_a_size_that_was_found_to_be_another_is_told_by_that() -> None:
    """What is decided on a float that is made of it is guarded by what a call tells (as in steps of Adafactor)."""

    def step(update: torch.Tensor, x: torch.Tensor, alpha: float) -> torch.Tensor:
        smaller = max(1.0, update.norm(2).item() / ((update.numel() ** 0.5) * 1))
        return x.add(update, alpha=-alpha / smaller)

    compiled = braze.compile(step)
    with logged() as said:
        for n in (3, 4, 5, 4, 2):
            given = torch.full((n,), 2.0), torch.ones(n), 0.1 * n
            torch.testing.assert_close(compiled(*given), step(*given))
    assert not [message for message in said if "BZ9" in message]
