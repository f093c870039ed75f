"""Text that is another one at each call: a request's name has no variant for each, unless the program looks at it, and then as in eager."""

from __future__ import annotations

import collections
import dataclasses
import json
import logging
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.support import trace

LOGGER = logging.getLogger("tests.texts_from_outside")


@dataclasses.dataclass
class Request:
    name: str
    tokens: int = 0


class Server:
    def __init__(self) -> None:
        self.last = "none"
        self.log: list[Any] = []
        self.seen: dict[str, Any] = {}

    def note(self, name: str, *more: Any, **named: Any) -> Any:
        return name, more, named


def given_back(x: Any, name: str, server: Server) -> Any:
    return {"name": name, "y": x + 1}


def written_into_text(x: Any, name: str, server: Server) -> Any:
    server.log.append(f"{name}: {x.shape[0]} done")
    return x + 1, "%s!" % name, name + "?", "{:>9}".format(name), ",".join([name, "b"])  # noqa: UP031, UP032


def kept(x: Any, name: str, server: Server) -> Any:
    before, server.last = server.last, name
    server.log.append(name)
    return before, server.last, x


def in_an_object(x: Any, name: str, server: Server) -> Any:
    made = Request(name, 3)
    return made.name, server.note(name, x, k=name), made


def over_a_break(x: Any, name: str, server: Server) -> Any:
    text = f"<{name}>"
    y = x + 1
    braze.graph_break()
    return y, name, text


def as_a_loss_is_told(x: Any, name: str, server: Server) -> Any:
    return x, f"{name}: loss {x.sum().item():.3f}"


def asked_for_nothing(x: Any, name: str, server: Server) -> Any:
    return (name if name is not None else "none"), isinstance(name, str), type(name) is str, x


HANDED_ON = (
    given_back,
    written_into_text,
    kept,
    in_an_object,
    over_a_break,
    as_a_loss_is_told,
    asked_for_nothing,
)


def compared(x: Any, name: str, server: Server) -> Any:
    return x * 2 if name == "b" else x - len(name), name in ("a", "c"), name < "b", "a" in name, not name


def by_methods(x: Any, name: str, server: Server) -> Any:
    return name.upper(), name[::-1], list(name), name * 2, sorted([name, "b"]), str((name,)), x


def as_a_key(x: Any, name: str, server: Server) -> Any:
    server.seen[name] = x
    return {name: 1}, {"a": 2}.get(name), name in server.seen, sorted(server.seen), {name, "a"} == {"a"}


def as_a_name(x: Any, name: str, server: Server) -> Any:
    setattr(server, "v" + name, x)
    return getattr(server, name, "missing"), sorted(vars(server))


def in_containers_of_c(x: Any, name: str, server: Server) -> Any:
    last = collections.deque([name, "z"], maxlen=2)
    return json.dumps({"name": [name]}), ("b", name).index("b"), [name].count("b"), last.count(name), x


def raised(x: Any, name: str, server: Server) -> Any:
    try:
        assert name != "b", name
        return dict[str, int]()[name]
    except (AssertionError, KeyError) as error:
        return error.args, int(name)


def taken_apart(x: Any, name: str, server: Server) -> Any:
    first, *rest = iter(name)
    return first, rest, {**{"k": name}}, [*name], dict([(name, 1)]), x


def of_a_choice(x: Any, name: str, server: Server) -> Any:
    mode = {"a": "constant"}.get(name, "reflect")
    return torch.nn.functional.pad(x[None, None], (1, 1), mode=mode)


LOOKED_AT = (
    compared,
    by_methods,
    as_a_key,
    as_a_name,
    in_containers_of_c,
    raised,
    taken_apart,
    of_a_choice,
)


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return type(value), list(map(plain, value))
    if isinstance(value, dict):
        return [(plain(k), plain(v)) for k, v in value.items()]
    return plain(vars(value)) if hasattr(value, "__dict__") else (type(value), value)


def outcome(program: Callable[..., Any], *args: Any) -> Any:
    try:
        return plain(program(*args))
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        return type(error), str(error)


class Loud(str):
    """Text that compares otherwise."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


@pytest.mark.parametrize("program", [*HANDED_ON, *LOOKED_AT], ids=lambda f: f.__name__)
def test_text_that_changes_is_that_of_the_call(program: Any) -> None:
    names = ("a", "b", "ab", "", "é%s{}", "b", "last", "a", Loud("b"), None, 3, 4, "c" * 50, "a")
    ours, theirs, compiled = Server(), Server(), braze.compile(program, backend="eager")
    for i, name in enumerate(names):
        x = torch.arange(3.0) + i
        assert outcome(compiled, x, name, ours) == outcome(program, x, name, theirs), name
        assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("program", HANDED_ON, ids=lambda f: f.__name__)
def test_text_that_is_handed_on_has_no_variant_for_each(program: Any) -> None:
    compiled, server = braze.compile(program, backend="eager"), Server()
    trace.reset_counters()
    for i in range(20):
        compiled(torch.arange(3.0), f"request-{i}", server)
    assert trace.COUNTERS["captures"] <= 5
    assert trace.COUNTERS["calls_as_they_are"] == 0


def test_messages_of_text_that_changes_are_given_in_one_graph(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    @braze.compile(backend="eager", fullgraph=True)
    def program(x: Any, name: str) -> Any:
        LOGGER.info("of %s", name)
        print(name, f"{name}!")
        return x + 1

    trace.reset_counters()
    with caplog.at_level(logging.INFO, LOGGER.name):
        for i in range(12):
            program(torch.ones(2), f"n{i}")
    assert [r.getMessage() for r in caplog.records if r.name == LOGGER.name] == [
        f"of n{i}" for i in range(12)
    ]
    assert capsys.readouterr().out.splitlines() == [f"n{i} n{i}!" for i in range(12)]
    assert trace.COUNTERS["captures"] == 2


def test_a_number_where_text_was_is_no_symbol_for_it() -> None:
    """What changed there was a text: the integers that come after are numbers of which none has changed."""
    compiled = braze.compile(lambda x, n: (x, n), backend="eager", dynamic=False)
    for n in ("a", "b", 3, 3, "c", None):
        assert compiled(torch.ones(1), n)[1] == n


def counted_in_a_list(x: Any, text: str, kept: list[Any]) -> Any:
    kept.append(text)
    return kept.count("3")


def sorted_in_a_list(x: Any, text: str, kept: list[Any]) -> Any:
    both = [text, "3"]
    both.sort()
    return both


def found_in_a_tuple(x: Any, text: str, kept: list[Any]) -> Any:
    return (text, "3").index("3"), [[text]].count(["3"])


def counted_by_a_view(x: Any, text: str, kept: list[Any]) -> Any:
    return operator.countOf({"a": text, "b": "3"}.values(), "3")


def looked_at_by_an_iterator(x: Any, text: str, kept: list[Any]) -> Any:
    by_name = {"a": text, "b": "3"}
    gone_over = (
        min(iter([text, "3"])),
        ",".join(iter((text,))),
        set(iter([text, "3"])) == {"3"},
        "3" in iter([text]),
    )
    return (
        *gone_over,
        operator.countOf(by_name.values(), "3"),
        ("a", "3") in by_name.items(),
        sorted(zip([text])),
    )


def handed_on_by_an_iterator(x: Any, text: str, kept: list[Any]) -> Any:
    kept.extend(iter([text]))
    return list(zip([text], "z", strict=True)), dict(enumerate([text])), tuple(reversed([text])), kept[-1]


@pytest.mark.parametrize(
    "program",
    [
        counted_in_a_list, sorted_in_a_list, found_in_a_tuple, counted_by_a_view,
        looked_at_by_an_iterator, handed_on_by_an_iterator,
    ],
)  # fmt: skip
@pytest.mark.parametrize("written", [False, True])
def test_text_in_what_c_code_compares_is_that_of_the_call(program: Any, written: bool) -> None:
    """Text from outside, and text of an integer that changes, stand for themselves in a list: a method in C would compare what stands there."""

    def run(x: torch.Tensor, given: Any, kept: list[Any]) -> Any:
        return x + 1, program(x, f"{given}" if written else given, kept)

    compiled = braze.compile(run, backend="eager")
    ours, theirs = ["1"], ["1"]
    for number in (1, 2, 3, 4, 3, 7):
        given = number if written else str(number)
        found, wanted = compiled(torch.ones(2), given, ours), run(torch.ones(2), given, theirs)
        assert (found[1], ours) == (wanted[1], theirs)
