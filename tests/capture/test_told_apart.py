"""Objects that C code compares, hashes or writes into text by what they are: each call is told by its own."""

from __future__ import annotations

import collections
import functools
import operator
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


class Kind:
    """Objects that are equal to themselves alone."""

    def method(self) -> int:
        return 1


class Layer(torch.nn.Module):
    """The same of a module."""

    def method(self) -> int:
        return 1


def without(k: Any, known: list[Any]) -> list[int]:
    """Which objects are left."""
    all_of_them = list(known)
    known.remove(k)
    return [i for i, each in enumerate(all_of_them) if any(each is other for other in known)]


Asks = Callable[[Any, list[Any]], Any]
ASKED: dict[str, Asks] = {
    "equality": lambda k, known: (k == known[0], k != known[1], k.__eq__(known[2])),
    "membership": lambda k, known: (k in known, k not in tuple(known), k in collections.deque(known)),
    "a count": lambda k, known: (known.count(k), [k, known[0]].count(known[1]), operator.countOf(known, k)),
    "a place": lambda k, known: [*known, k].index(k),
    "lists": lambda k, known: ([k] == [known[1]], (k, 1) == (known[0], 1), {"a": k} == {"a": known[2]}),
    "keys": lambda k, known: ({k: 1}.get(known[0]), {known[1]: 2}.get(k), len({k, known[0], known[1]})),
    "counters": lambda k, known: collections.Counter([k, *known])[known[0]],
    "the operator": lambda k, known: (operator.is_(k, known[1]), operator.is_not(k, known[0])),
    "removal": lambda k, known: without(k, [*known, k]),
    "methods": lambda k, known: (k.method == known[0].method, k.method in [known[1].method]),
    "what holds it": lambda k, known: functools.partial(max, k).args == (known[0],),
    "instance dicts": lambda k, known: k.__dict__ is known[0].__dict__,
    "weak references": lambda k, known: (
        weakref.ref(k) == weakref.ref(known[0]),
        weakref.ref(k)() is known[1],
    ),
    "the hash of a weak reference": lambda k, known: hash(weakref.ref(k)) == hash(weakref.ref(known[0])),
    "text": lambda k, known: (str(k) == str(known[0]), f"{k!r}", "%s" % [k], f"{known[0]}" in f"{(k,)}"),
    "text of an error": lambda k, known: str(ValueError(k)),
}


@pytest.mark.parametrize("kind", [Kind, Layer])
@pytest.mark.parametrize("asks", [pytest.param(asks, id=name) for name, asks in ASKED.items()])
@pytest.mark.parametrize("order", [(3, 1, 2, 0, 3), (0, 1, 0, 2, 3)], ids=["a stranger first", "in order"])
def test_another_object_in_a_later_call_is_told_apart(asks: Asks, kind: type, order: tuple[int, ...]) -> None:
    objects = [kind() for _ in range(4)]
    known = objects[:3]

    def f(x: torch.Tensor, k: Any) -> Any:
        return x + 1, asks(k, known)

    compiled = braze.compile(f, backend="eager")
    for i in order:
        assert compiled(torch.ones(2), objects[i])[1] == f(torch.ones(2), objects[i])[1]


def test_a_weak_dict_is_asked_for_the_object_of_each_call() -> None:
    objects = [Kind() for _ in range(3)]
    weights: weakref.WeakKeyDictionary[Kind, int] = weakref.WeakKeyDictionary()

    def f(x: torch.Tensor, k: Kind) -> Any:
        return x * weights[k], weights.get(k), k in weights

    compiled = braze.compile(f, backend="eager")
    for i in (0, 1, 2, 0, 1, 2):
        for j, each in enumerate(objects):
            weights[each] = 10 * i + j
        assert compiled(torch.ones(1), objects[i])[1:] == f(torch.ones(1), objects[i])[1:]
        assert compiled(torch.ones(1), objects[i])[0].item() == 11 * i


def test_the_object_of_a_weak_reference_is_told_from_others() -> None:
    objects = [Kind() for _ in range(3)]
    first = weakref.ref(objects[0])

    def f(x: torch.Tensor, k: Kind) -> Any:
        return x + 1, first() is k, first() in [k]

    compiled = braze.compile(f, backend="eager")
    for i in (0, 1, 0, 2):
        assert compiled(torch.ones(1), objects[i])[1:] == f(torch.ones(1), objects[i])[1:]


def test_what_is_printed_of_an_object_is_that_of_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    objects = [Kind() for _ in range(3)]

    def f(x: torch.Tensor, k: Kind) -> torch.Tensor:
        print(k, [k])
        return x + 1

    compiled = braze.compile(f, backend="eager")
    for each in objects:
        f(torch.ones(1), each)
        expected = capsys.readouterr().out
        compiled(torch.ones(1), each)
        assert capsys.readouterr().out == expected


def test_objects_that_only_python_compares_need_not_be_different() -> None:
    @braze.compile(backend="eager")
    def f(x: torch.Tensor, a: Kind, b: Kind) -> torch.Tensor:
        return x + a.method() + b.method()

    a, b = Kind(), Kind()
    f(torch.ones(1), a, b)
    f(torch.ones(1), b, a)
    assert f.misses == 1
