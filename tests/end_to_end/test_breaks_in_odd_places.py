"""Breaks where Python's semantics are subtle: cells, deleted names, special methods, handlers, finally, memory."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from tests.end_to_end.test_breaks import equal

note = braze.disable(lambda *values: None)
X = torch.arange(6.0).reshape(2, 3)


pytestmark = pytest.mark.usefixtures("fresh")


def keywords(x: Any, *args: int, k: int = 2, **more: int) -> Any:
    note()
    return x * k + len(args) + sum(more.values())


def calls_with_keywords(x: Any) -> Any:
    return keywords(x), keywords(x, 1, 2, k=3, z=4), keywords(*[x, 5], **{"k": 7, "q": 1})


def deleted_names(x: Any) -> Any:
    y = x + 1
    z = y * 2
    del y
    note()
    try:
        return y  # noqa: F821
    except UnboundLocalError:
        return z, "unbound"


def local_names(x: Any) -> Any:
    a = 1
    note()
    b = a
    return sorted(locals()), b


def on_the_stack(x: Any) -> Any:
    def same(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    return [y := x + 1, note(), y * 2], same(*[x, note()], **{"q": note()})


def pattern(x: Any) -> Any:
    match (x.shape[0], note()):
        case (2, None):
            return x + 1
        case _:
            return x


def decorated(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def around(x: Any) -> Any:
        note()
        return f(x) * 2

    return around


@decorated
def wrapped(x: Any) -> Any:
    return x + 1


def decorator(x: Any) -> Any:
    return wrapped(x) + 1


def special_methods(x: Any) -> Any:
    class Number:
        def __init__(self, v: Any) -> None:
            self.v = v
            note()

        def __add__(self, other: Any) -> Any:
            note()
            return Number(self.v + other)

        def __getitem__(self, i: int) -> Any:
            note()
            return self.v[i]

        def __bool__(self) -> bool:
            note()
            return True

        def __len__(self) -> int:
            note()
            return 2

        def __iter__(self) -> Iterator[Any]:
            note()
            yield from self.v

        def __enter__(self) -> Any:
            note()
            return self

        def __exit__(self, *args: object) -> bool:
            note()
            return True

        @property
        def doubled(self) -> Any:
            note()
            return self.v * 2

        @classmethod
        def made(cls, v: Any) -> Any:
            note()
            return cls(v)

        def __call__(self, v: Any) -> Any:
            note()
            return v + self.v

    a = Number(x) + 1
    with a:
        y = a[0] if a else 0
        n = len(a)
        q = a.doubled + Number.made(x).v + a(x)
        parts = list(a)
        raise ValueError("swallowed")
    return y, n, q, parts


def exception_in_hand(x: Any) -> Any:
    try:
        raise KeyError("a")
    except KeyError:
        note()
        return sys.exc_info()[0].__name__, x + 1


def chained_exceptions(x: Any) -> Any:
    try:
        try:
            x / None
        except TypeError as error:
            note()
            raise ValueError("b") from error
    except ValueError as error:
        note()
        return type(error.__cause__), type(error.__context__), error.args, x


class Custom(Exception):
    made = 0

    def __init__(self, what: str) -> None:
        super().__init__(what.upper())
        self.what = what
        Custom.made += 1


def exception_with_state(x: Any) -> Any:
    before = Custom.made
    try:
        raise Custom("word")
    except Custom as error:
        note()
        return error.args, error.what, Custom.made - before, x


def leaving_through_finally(x: Any) -> Any:
    for i in range(3):
        try:
            note()
            if i == 1:
                continue
            if i == 2:
                break
            x = x + 1
        finally:
            note()
            x = x * 2
    try:
        note()
        return x + 1
    finally:
        note()
        x = x * 100


def global_made_and_deleted(x: Any) -> Any:
    global MADE
    MADE = x + 1
    note()
    r = MADE * 2
    del MADE
    note()
    return r, "MADE" in globals()


def views_written(x: Any) -> Any:
    y = x.clone()
    v = y[0]
    note()
    v.add_(1)
    note()
    y[1] = v
    return y, v


def sets(x: Any) -> Any:
    s = {1, 2}
    note()
    s.add(3)
    s |= {4}
    note()
    s.discard(1)
    return x + len(s), s


def assertion(x: Any) -> Any:
    try:
        if not x.sum() < 0:  # pytest rewrites assert statements
            raise AssertionError(f"sum {note()}")
    except AssertionError as error:
        return str(error), x


def deep(x: Any, n: int = 40) -> Any:
    if n == 0:
        note()
        return x
    return deep(x + 1, n - 1)


def generator_argument(x: Any) -> Any:
    return sum((note() or i) * 1 for i in range(3)) + x


def lambdas_with_defaults(x: Any) -> Any:
    fs = [lambda v, i=i: v + i for i in range(3)]
    note()
    return [f(x) for f in fs]


CASES = [
    calls_with_keywords,
    deleted_names,
    local_names,
    on_the_stack,
    pattern,
    decorator,
    special_methods,
    exception_in_hand,
    chained_exceptions,
    exception_with_state,
    leaving_through_finally,
    global_made_and_deleted,
    views_written,
    sets,
    pytest.param(assertion, marks=pytest.mark.provokes("BZ6013")),
    deep,
    generator_argument,
    lambdas_with_defaults,
]


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_answers_stay_eagers(case: Callable[..., Any]) -> None:
    expected = case(X)
    compiled = braze.compile(case, backend="eager")
    for _ in range(3):
        found = compiled(X)
        assert equal(found, expected), (found, expected)


def test_what_the_frame_drops_is_freed_while_it_goes_on() -> None:
    dropped: list[Any] = []
    alive: list[bool] = []
    keep = braze.disable(lambda y: dropped.append(weakref.ref(y)))
    look = braze.disable(lambda: alive.append(dropped[-1]() is not None))

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        keep(y)
        z = y.sum()
        y = None
        note()
        look()
        return z

    compiled = braze.compile(f, backend="eager")
    for _ in range(3):
        compiled(X)
    assert alive[1:] == [False, False]
