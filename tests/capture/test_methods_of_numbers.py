"""A number that changes has the methods of Python's numbers, wherever they go, and C code that computes with it refuses what Python refuses."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

#: of a size or number that changes, its distance from 3, a float, and whether it is above 4
KEPT: dict[str, Callable[..., Any]] = {
    "of an integer": lambda n, d, f, b: (n.__add__, n.bit_length, n.to_bytes, n.__rtruediv__, n.real),
    "of a float": lambda n, d, f, b: (f.__add__, f.hex, f.is_integer, (n / 2).__mul__, f.real),
    "of a truth value": lambda n, d, f, b: (b.__and__, b.__add__, b.bit_length, b.real),
    "in containers": lambda n, d, f, b: ([n.__add__], {"a": (f.__sub__, n)}),
    "as the key": lambda n, d, f, b: {n.__add__: 1},
    "bound": lambda n, d, f, b: (functools.partial(n.__mul__, 2), functools.partial(operator.add, n)),
    "of an object": lambda n, d, f, b: type("C", (), {"m": n.__add__})().m,
    "of the class": lambda n, d, f, b: (type(n).__add__, type(f).hex, type(b).__or__),
}

TOLD: dict[str, Callable[..., Any]] = {
    "documentation": lambda n, d, f, b: (n.__doc__, f.__doc__, b.__doc__, n.__add__.__doc__),
    "names": lambda n, d, f, b: (n.__add__.__name__, f.hex.__self__, n.__class__, b.__class__, dir(n)),
    "what it has not": lambda n, d, f, b: (hasattr(n, "node"), hasattr(f, "node"), hasattr(b, "shape")),
    "looked up": lambda n, d, f, b: (
        getattr(n, "__add__")(2),
        n.__getattribute__("bit_length")(),
        operator.attrgetter("__class__", "real")(n),
        operator.methodcaller("__add__", 2.5)(n),
    ),
    "of other kinds": lambda n, d, f, b: (n.__add__(2.5), n.__eq__(5.0), n.__lt__(f), n.__mul__(b), f.__add__(n)),
    "odd arguments": lambda n, d, f, b: (n.__pow__(2, 5), n.__round__(-1), n.__divmod__(3), f.__round__(1)),
    "converted": lambda n, d, f, b: (n.__int__(), f.__int__(), n.__repr__(), f.__bool__(), n.__hash__()),
    "mapped": lambda n, d, f, b: (
        list(map(n.__mul__, [1, 2.5])),
        list(map((5).__add__, [n, d])),
        list(map(int.__add__, [n, 2], [2, n])),
        list(map(operator.attrgetter("__class__"), [n, f, b])),
        list(map(isinstance, [n, f, b], [int, int, int])),
        list(map(type, (n, f, b))),
        list(filter((3).__lt__, [n, d, 1])),
    ),
    "keys": lambda n, d, f, b: (
        sorted([1, 2, 3, 4], key=n.__rmod__),
        max([n, d], key=(3).__sub__),
        [(kind, list(v)) for kind, v in itertools.groupby([n, d, f], type)],
    ),
    "reduced": lambda n, d, f, b: (
        functools.reduce(int.__add__, [n, d, 2]),
        functools.reduce(operator.add, [f, 1e16, -1e16]),
        functools.reduce(operator.truediv, [100, n + 1, 7]),
        list(itertools.accumulate([n, d, 2], int.__add__)),
    ),
    "truth values": lambda n, d, f, b: (
        b is True, b is not False, b in [True], [b].index(n > 4), max(b, n > 6), list(map(operator.and_, [b, b], [True, 3]))
    ),
    "copied": lambda n, d, f, b: copy.deepcopy([n, f, b]),
}  # fmt: skip

REFUSED: dict[str, Callable[..., Any]] = {
    "attribute set": lambda n, d, f, b: setattr(n, "a", 1),
    "attribute deleted": lambda n, d, f, b: delattr(n, "a"),
    "no dict": lambda n, d, f, b: vars(n),
    "reduced": lambda n, d, f, b: functools.reduce(operator.floordiv, [100, n + 1, d]),
    "quotients of quotients": lambda n, d, f, b: (
        n // 3 // -2,
        100 // (n + 1) // d,
        n // -3 // 2,
        n // d % d,
        -n // d // -2,
    ),
    "mapped quotients": lambda n, d, f, b: list(map(operator.truediv, [1, 2], [d, n + 1])),
    "mapped rests": lambda n, d, f, b: list(map(operator.mod, [7, 9], [n + 1, d])),
    "mapped powers": lambda n, d, f, b: list(map(pow, [d], [-1])),
    "mapped shifts": lambda n, d, f, b: list(map(operator.lshift, [1], [d])),
    "methods": lambda n, d, f, b: (n.__truediv__(d), d.__pow__(-1), n.__lshift__(max(d, 0))),
    "shifts": lambda n, d, f, b: (2 << d, n >> d),
    "words": lambda n, d, f, b: 7.5 // d,
    "of a float": lambda n, d, f, b: n // f,
    "power of one below zero": lambda n, d, f, b: ((-3) ** d, (-0.75) ** d),
    "power of a float": lambda n, d, f, b: f**d,
    "digits": lambda n, d, f, b: (math.ldexp(1.0, d), math.comb(n, 2)),
}

CALLS = [(6, 2.5), (8, 1.25), (5, -0.75), (3, 0.0), (2, -3.0), (4, 4.0), (0, 2.0), (9, 3.0), (3, 1.5)]


def written(value: Any) -> Any:
    """All of a value that can be told: of a method what it is, and what it gives when it is called."""
    if type(value) in (list, tuple):
        return [type(value), *map(written, value)]
    if type(value) is dict:
        return [written(v) for pair in value.items() for v in pair]
    if type(value) is functools.partial:
        return written(value.func), value.args
    if not callable(value) or isinstance(value, type):
        return type(value), repr(value)
    found = [type(value), value.__qualname__]
    for args in ((), (2,), (2.5,), (2, "little")):
        try:
            found.append(written(value(*args)))
        except Exception as error:
            found.append((type(error), str(error)))
    return found


def caught(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def check(function: Callable[..., Any], of_size: bool, backend: str = "eager") -> None:
    def program(x: torch.Tensor, k: int, f: float) -> Any:
        n = x.shape[0] if of_size else k
        return x + 1, function(n, n - 3, f, n > 4)

    def unused(x: torch.Tensor, k: int, f: float) -> Any:
        n = x.shape[0] if of_size else k
        y = x * 2
        function(n, n - 3, f, n > 4)
        return y

    for fn in (program, unused):
        braze.reset()
        compiled = braze.compile(fn, backend=backend, dynamic=True)
        for k, f in CALLS:
            x = torch.arange(float(k))
            assert written(caught(compiled, x, k, f)) == written(caught(fn, x, k, f)), (fn.__name__, k, f)


@pytest.mark.parametrize("of_size", [False, True], ids=["number", "size"])
@pytest.mark.parametrize("name", KEPT)
def test_a_method_of_a_number_that_leaves_is_pythons(name: str, of_size: bool) -> None:
    """It left as a method of the symbol's: ``torch.SymInt.__add__``, which knows floats, and has another name."""
    check(KEPT[name], of_size)


@pytest.mark.parametrize("of_size", [False, True], ids=["number", "size"])
@pytest.mark.parametrize("name", TOLD)
def test_a_number_that_changes_tells_of_itself_what_a_number_tells(name: str, of_size: bool) -> None:
    check(TOLD[name], of_size)


@pytest.mark.parametrize("of_size", [False, True], ids=["number", "size"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_python_refuses_of_a_number_is_refused_by_whatever_computes(name: str, of_size: bool) -> None:
    """C code that draws from an iterator computes with symbols, whose algebra raises nothing, also where no one reads the result."""
    check(REFUSED[name], of_size)


def test_operators_that_c_code_calls_are_compiled_for_once() -> None:
    graphs = []

    def program(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return x * functools.reduce(operator.truediv, [100, n, 4]) + sum(map(operator.mul, (n, n), (2, 3)))

    compiled = braze.compile(program, dynamic=True, backend=lambda gm, _: graphs.append(gm) or gm.forward)
    for n in (3, 4, 7, 9):
        assert torch.equal(compiled(torch.ones(n)), program(torch.ones(n)))
    assert len(graphs) == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
def test_a_quotient_by_a_difference_of_sizes_that_is_zero_is_an_error_in_kernels(backend: str) -> None:
    programs = [
        lambda x, y: x * (7 / (x.shape[0] - y.shape[0])),
        lambda x, y: x + (x.shape[0] - y.shape[0]) ** -1,
        lambda x, y: x * math.log(x.shape[0] - y.shape[0]) + y.sum(),
        lambda x, y: x + 7 % (x.shape[0] - y.shape[0]),
    ]
    for program in programs:
        braze.reset()
        compiled = braze.compile(program, backend=backend, dynamic=True)
        for n, m in ((9, 5), (12, 3), (5, 5), (20, 3)):
            given = torch.ones(n), torch.ones(m)
            found, expected = caught(compiled, *given), caught(program, *given)
            if type(expected) is tuple:
                assert found == expected
            else:
                torch.testing.assert_close(found, expected)
