"""Containers that a program fills step by step are looked at in time that grows with them, not with their square."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import braze
from braze.capture.outside import held, looked_into

X = torch.arange(3.0)
ENDS: list[int] = []


class Key:
    """What only code of the program's compares."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __hash__(self) -> int:
        return hash(self.n)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.n == other.n


class Ending:
    """What says that it ends."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __del__(self) -> None:
        ENDS.append(self.n)


def filled(x: Any, n: int) -> Any:
    table: dict[Any, Any] = {}
    for i in range(n):
        table[Key(i)] = i
    return x + len(table), table[Key(3)]


def objects(x: Any, n: int) -> Any:
    table: dict[Any, Any] = {}
    for i in range(n):
        table[Key(i)] = Key(-i)
    return x + len(table), table[Key(3)].n


def emptied(x: Any, n: int) -> Any:
    table = {Key(i): i for i in range(n)}
    for i in range(n):
        del table[Key(i)]
    return x + len(table)


@pytest.mark.parametrize("function", [filled, objects, emptied])
def test_a_dict_by_keys_of_the_programs_is_not_looked_through_at_each_item(monkeypatch, function):
    asked = [0]

    def counted(of: Any) -> Any:
        def call(*args: Any) -> Any:
            asked[0] += 1
            return of(*args)

        return call

    monkeypatch.setattr(held, "may_end_with_code", counted(held.may_end_with_code))
    monkeypatch.setattr(looked_into, "is_looked_into", counted(looked_into.is_looked_into))
    compiled = braze.compile(function, backend="eager", fullgraph=True)
    have, want = compiled(X, 150), function(X, 150)
    assert repr(have) == repr(want)
    assert asked[0] < 40 * 150  # for each of all: 150 * 150 and more


@pytest.mark.parametrize("many", [0, 40])
def test_what_a_key_of_the_programs_lets_go_of_ends_where_it_does_uncompiled(many):
    def replaced(x: Any, table: dict[Any, Any]) -> Any:
        mine = dict(table)
        table.clear()
        mine[Key(0)] = None
        seen = tuple(ENDS)
        return x + len(mine), seen

    def deleted(x: Any, table: dict[Any, Any]) -> Any:
        mine = dict(table)
        table.clear()
        del mine[Key(0)]
        return x + len(mine), tuple(ENDS)

    for function in (replaced, deleted):
        said = []
        compiled = braze.compile(function, backend="eager")
        for call in (function, compiled, compiled):
            ENDS.clear()
            table = {Key(i): (Ending(i) if i == 0 else i) for i in range(many + 2)}
            result = call(X, table)
            del table
            gc.collect()
            said.append(repr((result, ENDS)))
        assert said[0] == said[1] == said[2]


def test_text_and_dicts_in_a_long_list_are_written_for_c_code():
    """They stand among things that C code does not look into."""

    def texts(x: Any, n: int, more: dict[str, Any]) -> Any:
        held = [*range(40), f"n is {n}", {"text": f"{n + 1}", "more": more}]
        return x + n, repr(held), str({"a": held, "b": 1})

    compiled = braze.compile(texts, backend="eager")
    for n in (3, 4, 5, 6):
        more = {"k": n, "l": [n, str(n)]}
        assert repr(compiled(X, n, more)) == repr(texts(X, n, more))
