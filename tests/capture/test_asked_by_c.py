"""Objects of the program's that C code asks for keys, numbers, elements and text: each is asked as often as in eager, and what it says is not kept."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import operator
import pickle
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.capture.python.from_c import is_dispatcher_code
from braze.graph.fakes.fake_dispatch import Dispatch
from tests import processes

SAID: list[str] = []


class Number:
    """A number by Python code; two are equal if they are the same number."""

    def __init__(self, n: int) -> None:
        self.n = n

    def say(self, what: str, answer: Any) -> Any:
        SAID.append(f"{what} of {self.n}")
        return answer

    def __hash__(self) -> int:
        return self.say("hash", 7)

    def __eq__(self, other: object) -> bool:
        return self.say("eq", isinstance(other, Number) and self.n == other.n)

    def __index__(self) -> int:
        return self.say("index", self.n)

    def __float__(self) -> float:
        return self.say("float", float(self.n))

    def __floor__(self) -> int:
        return self.say("floor", self.n)

    def __str__(self) -> str:
        return self.say("str", f"<{self.n}>")

    def __format__(self, spec: str) -> str:
        return self.say("format", f"[{self.n}]")


class Name(str):
    """Text that tells when it is compared."""

    def __eq__(self, other: object) -> bool:
        SAID.append(f"eq of {str.__str__(self)}")
        return str.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = str.__hash__


class Given:
    """What a call is given, made anew for each."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.x = torch.arange(4.0)
        self.number = Number(n)
        self.known: dict[Any, Any] = {"a": 1, 7: 2}
        self.table: dict[Any, Any] = {Number(1): "one", Number(2): "two"}
        self.names: dict[Any, Any] = {Name("a"): 1}


@functools.lru_cache
def cached(number: Any) -> str:
    return "cached"


def removed(g: Given) -> Any:
    try:
        del g.table[g.number]
    except KeyError:
        return "missed"
    return len(g.table)


def written(g: Given) -> Any:
    g.table[g.number] = g.known[g.number] = 5
    return len(g.table), len(g.known)


def missed(g: Given) -> Any:
    try:
        return g.known[g.number]
    except KeyError:
        return "missed"


KEYS: dict[str, Callable[[Given], Any]] = {
    "an item": lambda g: g.table.get(g.number) and g.table[g.number],
    "membership": lambda g: (g.number in g.table, g.number in g.known),
    "an item that is missing": missed,
    "an item is written": written,
    "an item is removed": removed,
    "a key of C that has the hash of another": lambda g: (7 in g.table, g.table.get(7), 7 in g.known),
    "text that is compared by Python code": lambda g: (g.names["a"], "a" in g.names),
    "a tuple": lambda g: ((g.number, 1) in g.known, {(g.number, 1): 2}[g.number, 1]),
    "a counter": lambda g: collections.Counter([g.number, g.number])[g.number],
    "a dict of its own": lambda g: {g.number: 3}[g.number],
    "a cached function": lambda g: (cached.cache_clear(), cached(g.number), cached(g.number)),
}
NUMBERS: dict[str, Callable[[Given], Any]] = {
    "a row": lambda g: g.x[g.number],
    "rows": lambda g: (g.x[g.number :], g.x[..., g.number]),
    "a part of a list": lambda g: [1, 2, 3, 4][g.number :],
    "a size": lambda g: (torch.zeros(g.number), torch.full((g.number, 2), 1.0)),
    "an argument of a method": lambda g: g.x.narrow(0, g.number, 1),
    "an argument of a function in Python": lambda g: torch.nn.functional.pad(g.x, (0, g.number)),
    "functions of math": lambda g: (math.sqrt(g.number), math.log(g.number), math.gcd(6, g.number)),
    "a list of numbers": lambda g: math.fsum([g.number, g.number]),
    "rounding": lambda g: math.floor(g.number),
    "packed bytes": lambda g: struct.pack("i", g.number),
    "bytes": lambda g: bytearray(g.number),
    "an index": lambda g: operator.index(g.number),
    "the indices of a slice": lambda g: slice(g.number).indices(9),
    "a count": lambda g: re.sub("a", "b", "aaaa", count=g.number),
}
TEXTS: dict[str, Callable[[Given], Any]] = {
    "percent": lambda g: "%s and %s" % (g.number, g.n),  # noqa: UP031
    "fields": lambda g: "{} and {}".format(g.number, g.n),  # noqa: UP032
    "joined from a generator": lambda g: ",".join(f"{n}" for n in [g.n, 3]),
    "joined from a map": lambda g: ",".join(map(lambda n: f"{n}", [g.n, 3])),
    "a function for each match": lambda g: re.sub("a", lambda m: SAID.append("match") or f"{g.n}", "aa"),
}


@pytest.mark.parametrize(
    "asks", [pytest.param(f, id=name) for name, f in {**KEYS, **NUMBERS, **TEXTS}.items()]
)
def test_objects_are_asked_as_often_as_in_eager_and_for_what_they_say_now(
    asks: Callable[[Given], Any],
) -> None:
    def f(x: torch.Tensor, g: Given) -> Any:
        return x + 1, asks(g)

    def told(call: Callable[..., Any]) -> list[str]:
        found = []
        for n in (1, 2, 2, 3):
            SAID.clear()
            found.append(f"{call(torch.ones(2), Given(n))} {SAID}")
        return found

    compiled = braze.compile(f, backend="eager")
    assert told(compiled) == told(f)


@pytest.mark.parametrize("asks", [pytest.param(f, id=name) for name, f in KEYS.items()])
def test_a_look_up_that_raises_raises_in_its_place(asks: Callable[[Given], Any], monkeypatch: Any) -> None:
    left = [0]

    def fails(self: Number, what: str, answer: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise ZeroDivisionError(what)
        return answer

    def f(g: Given) -> Any:
        try:
            return asks(g)
        except ZeroDivisionError as error:
            return str(error)

    compiled = braze.compile(f, backend="eager")
    given = [Given(n) for n in (1, 2, 3)]
    for at in range(4):
        for number in range(3):
            results = []
            for call in (f, compiled):
                g = Given(given[number].n)
                with monkeypatch.context() as patch:
                    left[0] = at
                    patch.setattr(Number, "say", fails)
                    results.append((str(call(g)), left[0]))
            assert results[0] == results[1]


def test_what_fakes_do_for_pytorchs_dispatcher_is_not_interpreted_as_the_programs():
    """C++ of autograd's that makes a node for a leaf takes no exception of a trace, and would end the process."""
    assert is_dispatcher_code(Dispatch.__torch_dispatch__.__code__)
    assert is_dispatcher_code(torch._library.simple_registry.find_torch_dispatch_rule.__code__)
    assert not is_dispatcher_code(Number.__hash__.__code__)


def test_a_frame_is_captured_without_sympy():
    """From 2.14 on PyTorch's module of attention takes it along: 0.4 s at the first capture of a program that has no attention."""
    code = (
        "import sys, torch, braze\n"
        "print(braze.compile(lambda x: (x + 1).sin(), backend='eager')(torch.zeros(1)).shape, 'sympy' in sys.modules)\n"
    )
    done = processes.run(code)
    assert done.stdout.strip() == "torch.Size([1]) False", done.stderr


@dataclasses.dataclass(order=True)
class Ranked:
    """Ordered by a tuple, which C code compares within code that C code calls."""

    by: Any
    name: str = "k"


class Joined:
    """Added up by C code within code that C code calls."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __add__(self, other: Joined) -> Joined:
        return Joined(functools.reduce(operator.add, [self.value, other.value, 1]))


def ordered(x: torch.Tensor, n: int) -> Any:
    """The greater of two, or why there is none, which a handler sees."""
    try:
        return max((Ranked(x), Ranked(n))).by
    except RuntimeError as error:
        return x + 1, str(error).split("\n")[0]


def joined(x: torch.Tensor, n: int) -> Any:
    """Tensors added up two levels of C code down."""
    return functools.reduce(operator.add, [Joined(x), Joined(x * n), Joined(x)]).value


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("program", [ordered, joined])
def test_tensors_in_c_code_within_code_that_c_code_calls_are_seen(program: Callable, dynamic: bool | None):
    compiled = braze.compile(program, backend="eager", dynamic=dynamic)
    for n in (3, 4, 1, 5):
        for value in (n, 0):
            x = torch.arange(float(n)) + 1
            assert str(compiled(x.clone(), value)) == str(program(x.clone(), value))


HELD: Any = {}


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", ["dicts", "lists", "both in turn", "text"])
def test_what_c_code_is_given_is_read_however_deep_it_lies(depth: int, kind: str) -> None:
    """The program's own value from outside, and text that it makes itself."""

    def around(value: Any) -> Any:
        for k in range(depth):
            in_list = kind == "lists" or (kind == "both in turn" and k % 2)
            value = [value] if in_list else {"k": value}
        return value

    def f(x: torch.Tensor) -> Any:
        if kind == "text":
            return x + 1, json.dumps(around({"n": f"{x.shape[0]}"}))
        return x + 1, json.dumps([HELD["it"]]), str(HELD)

    compiled = braze.compile(f, backend="eager", dynamic=True)
    for n in (2, 3, 4):
        HELD["it"] = around({"n": n})
        assert str(compiled(torch.ones(n))) == str(f(torch.ones(n)))


class Seven:
    """Equal to 7, and says so to a list."""

    def __init__(self, asked):
        self.asked = asked

    def __hash__(self):
        return hash(7)

    def __eq__(self, other):
        self.asked.append(other)
        return other == 7


def looked_up(x, places, asked):
    """In dicts whose keys are compared by code, and by none."""
    mixed, plain = {Seven(asked): 1, "a": 2}, {7: 1, "a": 2}
    for d in (mixed, plain):
        d[7] = len(d)
        d["b"] = 7 in d
        x = x * d[7] + (7.0 in d) + d["a"]
        del d["a"]
    try:
        plain[8]
    except KeyError as error:
        asked.append(error.args[0])
    places.append([*map(str, plain.items())])
    return x


@pytest.mark.parametrize("dynamic", [None, True])
def test_keys_are_compared_by_the_programs_code_in_each_call_where_they_have_any(dynamic):
    compiled = braze.compile(looked_up, backend="eager", dynamic=dynamic)
    for size in (2, 3, 3):
        found, wanted = ([], []), ([], [])
        x = torch.arange(float(size))
        assert torch.equal(compiled(x, *found), looked_up(x, *wanted))
        assert found == wanted


class Part:
    """An object with attributes that change from call to call."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.held = [n]
        self.part: Any = self


FORMAT = "{a.held[0]}"
Ways = dict[str, Callable[[list[Part]], Any]]

#: ways in which C code gets at attributes of what lies outside
ATTRIBUTES: Ways = {
    "a path": lambda parts: functools.reduce(getattr, "part.part.n".split("."), parts[0]),
    "a getter": lambda parts: operator.attrgetter("part.n", "held")(parts[0]),
    "a caller": lambda parts: operator.methodcaller("append", 5)(operator.attrgetter("held")(parts[0])),
    "mapped": lambda parts: list(map(getattr, parts, ["n", "held"])),
    "written": lambda parts: list(map(setattr, parts, ["n", "more"], [3, len(parts[1].held)])),
    "asked": lambda parts: (list(map(hasattr, parts, ["more", "more"])), [v["n"] for v in map(vars, parts)]),
    "sorted in place": lambda parts: parts.sort(key=operator.attrgetter("part.n")),
    "of objects": lambda parts: list(map(object.__getattribute__, parts, ["n", "n"])),
    "set of objects": lambda parts: list(map(object.__setattr__, parts, ["n", "n"], [1, parts[0].n])),
    "a partial": lambda parts: next(map(functools.partial(getattr, parts[1]), ["n"])),
    "until": lambda parts: next(iter(functools.partial(getattr, parts[1], "n"), None)),
    "by default": lambda parts: collections.defaultdict(functools.partial(getattr, parts[0], "n"))["k"],
    "formatted": lambda parts: (
        "{0.n} {1[0].part.n:>{2}}".format(parts[1], parts, 4),
        FORMAT.format(a=parts[0]),
    ),
    "formatted by a dict": lambda parts: "{a.n}".format_map({"a": parts[0]}),
    "called": lambda parts: operator.call(getattr, parts[1], "n"),
    "different": lambda parts: len(set(map(id, parts))),
}


@pytest.mark.parametrize("way", ATTRIBUTES)
def test_attributes_that_c_code_looks_up_are_those_of_the_call(way: str) -> None:
    look = ATTRIBUTES[way]
    seen = []
    for compile_ in (lambda f: f, functools.partial(braze.compile, backend="eager")):
        parts = [Part(2), Part(1)]
        f = compile_(lambda x, parts: (x * parts[0].n, look(parts)))
        seen.append([])
        for n in range(4):
            made, told = f(torch.ones(2), parts)
            seen[-1].append((made.tolist(), str(told), [{**vars(p), "part": p.part is p} for p in parts]))
            seen[-1].append([list(p.held) for p in parts])
            parts[n % 2].n += 3
            if n == 2:
                parts[1] = parts[0]
    assert seen[0] == seen[1]


def test_pickles_of_plain_data_are_those_of_each_call() -> None:
    """By which decorators tell calls apart; of equal texts a pickle says whether they are one object, which a trace does not know."""

    def kept(memo: dict[bytes, Any], method: Any, x: torch.Tensor, **kwargs: Any) -> Any:
        key = pickle.dumps(kwargs)
        if key not in memo:
            memo[key] = method(x, **kwargs)
        return memo[key], key

    def f(x: torch.Tensor, **kwargs: Any) -> Any:
        memo: dict[bytes, Any] = {}
        return [
            kept(memo, torch.sum, x),
            kept(memo, torch.sum, x, **kwargs),
            pickle.dumps([1.5, (b"", ()), {}]),
        ]

    def twice(x: torch.Tensor, name: str) -> Any:
        return x * 2, pickle.dumps([name + "a", name + "a"]), pickle.dumps([name, name])

    compiled = braze.compile(f, backend="eager", fullgraph=True)
    for kwargs in ({}, {"dim": 1}, {"dim": 0, "keepdim": True}, {"dim": (0, 1)}, {"dim": 0}):
        torch.testing.assert_close(compiled(torch.ones(2, 3), **kwargs), f(torch.ones(2, 3), **kwargs))
    compiled = braze.compile(twice, backend="eager")
    for name in ("u", "v", "w"):
        torch.testing.assert_close(compiled(torch.ones(2), name), twice(torch.ones(2), name))


def test_many_texts_are_pickled_without_a_look_at_each_pair() -> None:
    compiled = braze.compile(lambda x, texts: (x * 2, pickle.dumps(texts)), backend="eager")
    x = torch.ones(2)
    for n in (300, 301):
        texts = [str(i) for i in range(n)]
        assert compiled(x, texts)[1] == pickle.dumps(texts)
