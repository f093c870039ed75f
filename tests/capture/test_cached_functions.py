"""Functions with a cache: each call gives the object that the first one made, as it is by now."""

from __future__ import annotations

import functools
import math
import os
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import braze

Compile = Callable[[Any], Any]
Program = Callable[[Compile], Callable[[int], Any]]
X = torch.ones(3)


def a_tensor_is_written(c: Compile) -> Callable[[int], Any]:
    @functools.lru_cache
    def table(n: int) -> torch.Tensor:
        return torch.ones(3) * n

    def f(x: torch.Tensor) -> torch.Tensor:
        made = table(3)
        made[1:].add_(1)
        return x * made

    g = c(f)
    return lambda i: g(X)


def a_tensor_is_returned(c: Compile) -> Callable[[int], Any]:
    @functools.cache
    def tables() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(3), torch.zeros(3)

    g = c(lambda x: (x * 2, tables()[1][:2]))
    return lambda i: g(X)[1].add_(1).clone()


def a_list_grows(c: Compile) -> Callable[[int], Any]:
    @functools.cache
    def seen(kind: str) -> list[int]:
        return []

    def f(x: torch.Tensor) -> Any:
        seen("a").append(x.shape[0])
        return x * 2, len(seen("a")), len(seen("b"))

    g = c(f)
    return lambda i: g(X)


def an_object_counts(c: Compile) -> Callable[[int], Any]:
    class Counter:
        n = 0

    @functools.cache
    def counter() -> Counter:
        return Counter()

    def f(x: torch.Tensor) -> torch.Tensor:
        counter().n += 1
        return x * counter().n

    g = c(f)
    return lambda i: g(X)


def state_is_read(c: Compile) -> Callable[[int], Any]:
    settings = {"scale": 1}

    @functools.cache
    def scale() -> int:
        return settings["scale"]

    g = c(lambda x: x * scale())

    def call(i: int) -> Any:
        settings["scale"] = i
        return g(X)

    return call


def a_method_reads_its_object(c: Compile) -> Callable[[int], Any]:
    class Model(torch.nn.Module):
        k = 0

        @functools.lru_cache
        def table(self, n: int) -> torch.Tensor:
            return torch.ones(3) * self.k * n

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.table(2)

    model = Model()
    g = c(model)

    def call(i: int) -> Any:
        model.k = i
        return g(X)

    return call


def a_parameter_is_read(c: Compile) -> Callable[[int], Any]:
    weight = torch.nn.Parameter(torch.ones(3))

    @functools.cache
    def doubled() -> torch.Tensor:
        return weight.detach() * 2

    g = c(lambda x: x * doubled())

    def call(i: int) -> Any:
        with torch.no_grad():
            weight.add_(1)
        return g(X)

    return call


SCALE = 1


def a_global_number_is_replaced(c: Compile) -> Callable[[int], Any]:
    @functools.cache
    def scale() -> int:
        return helper() * 2

    def helper() -> int:
        return SCALE

    g = c(lambda x: x * scale())

    def call(i: int) -> Any:
        global SCALE
        SCALE = i + 1
        return g(X)

    return call


SETTINGS = types.ModuleType("settings")


class Flags:
    scale = 1


def settings_are_read(c: Compile) -> Callable[[int], Any]:
    """An environment variable, attributes of a module and of a class, and what PyTorch tells."""

    @functools.cache
    def variable() -> str:
        return os.environ.get("BRAZE_TESTED", "none")

    @functools.cache
    def attributes() -> float:
        return SETTINGS.number + getattr(SETTINGS, "more", 0) + Flags.scale

    @functools.cache
    def told() -> Any:
        return torch.get_default_dtype(), torch.get_num_threads()

    g = c(lambda x: (x * 2 if variable() == "none" else x, x + attributes(), x.to(told()[0]) + told()[1]))

    def call(i: int) -> Any:
        SETTINGS.number, Flags.scale = i // 2, 1 + i // 3
        with pytest.MonkeyPatch.context() as patch:
            if i:
                patch.setattr(SETTINGS, "more", i, raising=False)
                patch.setenv("BRAZE_TESTED", str(i))
            torch.set_default_dtype(torch.float64 if i > 2 else torch.float32)
            try:
                return g(X)
            finally:
                torch.set_default_dtype(torch.float32)

    return call


def numbers_are_drawn_once(c: Compile) -> Callable[[int], Any]:
    @functools.cache
    def noise() -> torch.Tensor:
        return torch.rand(3)

    g = c(lambda x: x + noise())
    return lambda i: g(X)


def one_size_gives_one_tensor(c: Compile) -> Callable[[int], Any]:
    @functools.cache
    def mask(n: int, *, k: int = 0) -> torch.Tensor:
        return torch.tril(torch.ones(n, n), k)

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = mask(x.shape[0]), mask(y.shape[0])
        return x @ a, a is b, mask(y.shape[0], k=1) is mask(y.shape[0], k=1), mask(2) is b

    g = c(f)
    sizes = [(2, 3), (3, 4), (4, 4), (5, 2), (6, 6)]
    return lambda i: g(*(torch.ones(n) for n in sizes[i]))


def a_shape_is_given(c: Compile) -> Callable[[int], Any]:
    @functools.cache
    def halves(shape: tuple[int, ...], scale: tuple[str, tuple[int, int]]) -> tuple[list[int], int]:
        return [n // 2 for n in shape], scale[1][0] * shape[0]

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = halves(x.shape, ("k", (2, len(y)))), halves((*y.shape,), ("k", (2, len(y))))
        return x * a[1] + a[0][0], b[1], a[0] is b[0]

    g = c(f)
    sizes = [(2, 3), (3, 4), (4, 4), (5, 2), (6, 6)]
    return lambda i: g(*(torch.ones(n, 3) for n in sizes[i]))


def equal_numbers_are_one_key(c: Compile) -> Callable[[int], Any]:
    @functools.lru_cache
    def told(value: Any, scale: Any = 1) -> str:
        return f"{value} {scale}"

    @functools.lru_cache(typed=True)
    def typed(value: Any) -> str:
        return str(value)

    def f(x: torch.Tensor, n: int) -> Any:
        alone = told(n), told(1.0), told(True), told(1), told(0.0), told(False), told(-0.0)
        more = (
            told(1, n),
            told(1.0, scale=True),
            told(True, scale=1),
            told((1, 2.0)),
            told((n, 2)),
            told(True, 1.0),
        )
        return x * n, alone, more, typed(1.0), typed(n), typed(True), typed((n,)), typed((True,))

    g = c(f)
    return lambda i: [ord(c) for c in str(g(X, i))]


def a_small_cache_forgets(c: Compile) -> Callable[[int], Any]:
    @functools.lru_cache(maxsize=1)
    def table(n: int) -> torch.Tensor:
        return torch.ones(3) * n

    g = c(lambda x: (x * 2, table(1) is table(1), (table(1), table(2), table(1))[0] is table(1)))
    return lambda i: g(X)


def calls_are_counted(c: Compile) -> Callable[[int], Any]:
    @functools.cache
    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    g = c(lambda x, n: x * fibonacci(n) + fibonacci(n))
    return lambda i: (g(X, 5 + i), tuple(fibonacci.cache_info()))


def what_is_wrapped_is_no_function(c: Compile) -> Callable[[int], Any]:
    factorial = functools.cache(math.factorial)
    g = c(lambda x, n: x * factorial(n))
    return lambda i: g(X, i)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "program",
    [
        a_tensor_is_written,
        a_tensor_is_returned,
        a_list_grows,
        an_object_counts,
        state_is_read,
        a_method_reads_its_object,
        a_parameter_is_read,
        a_global_number_is_replaced,
        settings_are_read,
        numbers_are_drawn_once,
        one_size_gives_one_tensor,
        a_shape_is_given,
        equal_numbers_are_one_key,
        a_small_cache_forgets,
        calls_are_counted,
        what_is_wrapped_is_no_function,
    ],
    ids=lambda f: f.__name__,
)
def test_a_cache_gives_what_it_gives_uncompiled(program: Program, dynamic: bool | None) -> None:
    def results(c: Compile) -> list[Any]:
        torch.manual_seed(0)
        call = program(c)
        return [call(i) for i in range(5)]

    expected = results(lambda f: f)
    found = results(lambda f: braze.compile(f, backend="eager", dynamic=dynamic))
    torch.testing.assert_close(found, expected)


class Angles(NamedTuple):
    cosines: torch.Tensor
    sines: torch.Tensor


BASE = 10000.0


@functools.lru_cache(maxsize=32)
def angles(n: int, width: int) -> Angles:
    steps = torch.outer(torch.arange(n), BASE ** (-torch.arange(0, width, 2) / width))
    return Angles(steps.cos(), steps.sin())


def test_tables_that_stay_inside_are_a_part_of_the_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        turned = angles(*x.shape)
        return torch.cat([x[:, ::2] * turned.cosines, x[:, 1::2] * turned.sines], 1)

    compiled = braze.compile(f, backend="eager", fullgraph=True)
    for n in (2, 3, 5, 3):
        x = torch.rand(n, 4)
        torch.testing.assert_close(compiled(x), f(x))


class Recipe:
    def __init__(self, pattern: str) -> None:
        self.order = [int(place) for place in pattern]


@functools.lru_cache
def recipe(pattern: str) -> Recipe:
    return Recipe(pattern)


@functools.lru_cache
def turned(known: Recipe, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    return known.order, [shape[place] for place in known.order]


def test_objects_and_shapes_that_stay_inside_are_a_part_of_the_graph_where_sizes_change() -> None:
    """Also where another call has handed the object of other arguments out."""

    def f(x: torch.Tensor, pattern: str) -> torch.Tensor:
        order, shape = turned(recipe(pattern), x.shape)
        return (x * 2).permute(order).contiguous().view(shape[0] * shape[1], -1)

    assert braze.compile(lambda x: (x * 2, recipe("0")), backend="eager")(X)[1] is recipe("0")
    compiled = braze.compile(f, backend="eager", fullgraph=True)
    for sizes in ((2, 3, 4), (3, 4, 5), (5, 6, 7)):
        x = torch.rand(sizes)
        torch.testing.assert_close(compiled(x, "201"), f(x, "201"))
