"""Residual functions from hand-made captures: graph, effects, rebuilt values, breaks."""

from __future__ import annotations

import collections
import os
import types
from typing import Any, NamedTuple

import pytest
import torch
import torch.fx

from braze.capture.dispatch import session as session_module
from braze.capture.dispatch.session import Session
from braze.capture.facts import replay
from braze.capture.facts.records import (
    BreakKind,
    Build,
    Capture,
    Constant,
    Effect,
    EffectKind,
    FrameState,
    FromSource,
    GraphBreak,
    GraphOutput,
    Source,
    Step,
)
from braze.capture.residual import residual as residual_module
from braze.capture.residual.residual import build_residual
from braze.options import Options


def local(index: int) -> Source:
    return Source(Step.LOCAL, index)


def capture_of(function: Any, recipes: list[Any], result: int | None = None, **fields: Any) -> Capture:
    """A capture with one input, the first argument, and a graph that is not None."""
    fields.setdefault("graph", torch.fx.symbolic_trace(lambda x: (x + 1, x * 2)))
    fields.setdefault("inputs", (local(0),))
    return Capture(
        code=function.__code__,
        name=function.__name__,
        specs=(),
        guards=(),
        recipes=tuple(recipes),
        effects=fields.pop("effects", ()),
        result=result,
        **fields,
    )


#: what a backend makes of it: code that is not the program's
graph = torch.fx.symbolic_trace(lambda x: (x + 1, x * 2)).forward


def run(capture: Capture, function: Any, *locals: Any, inputs: tuple[Any, ...] | None = None) -> Any:
    session = Session(lambda g, e: g, Options())
    made = build_residual(capture, graph, function, len(locals), session)
    return made(inputs if inputs is not None else (locals[0],), *locals)


def user(x: Any, y: Any = None) -> Any:
    return x, y


def test_the_simplest_case_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    monkeypatch.setattr(residual_module.linecache, "cache", Recording(texts))
    assert run(capture_of(user, [GraphOutput(0)], 0), user, 5) == 6
    lines = ["try:", "    return graph(*inputs)[0]", "except Exception as error:"]
    lines.append("    return run_again(error, run_uncaptured, l0, l1)")
    assert texts == ["def residual(inputs, l0):\n" + "".join(f"    {line}\n" for line in lines)]


class Recording(dict):
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __setitem__(self, key: Any, value: Any) -> None:
        self.texts.append("".join(value[2]))


def test_a_boxed_graph_gets_one_sequence() -> None:
    def boxed(args: Any) -> Any:
        return [args[0] + 1]

    boxed.boxed = True
    session = Session(lambda g, e: g, Options())
    made = build_residual(capture_of(user, [GraphOutput(0)], 0), boxed, user, 1, session)
    assert made((4,), 4) == 5


class Point(NamedTuple):
    x: Any
    y: Any


class Odd(collections.OrderedDict):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("residual code must not call this")

    def __setattr__(self, key: Any, value: Any) -> None:
        raise AssertionError("residual code must not call this")


class Slotted:
    __slots__ = ("a", "b")


def test_values_are_rebuilt_once_each() -> None:
    recipes = [
        GraphOutput(0),
        Build("list", (0,)),
        Build("tuple", (1, 1)),
        Constant("k"),
        Build("dict", (3, 1)),
        Build("namedtuple", (0, 4), cls=Point),
        Build("dict", (3, 0, 3, 1), cls=Odd, names=("note",)[:0]),
        Build("object", (1, 0), cls=Slotted, names=("a", "b")),
        Build("slice", (0, 3, 8)),
        Constant(None),
        Constant(-1.5),
        Build("tuple", (2, 5, 6, 7, 8, 9)),
        Build("set", (0, 3)),
        Build("tuple", (10, 11)),
    ]
    recipes[8] = Build("slice", (0, 3, 9))
    recipes[11] = Build("tuple", (2, 5, 6, 7, 8, 12))
    pair, point, odd, slotted, cut, both = run(capture_of(user, recipes, 11), user, 5)
    assert pair == ([6], [6]) and pair[0] is pair[1]
    assert type(point) is Point and point.x == 6 and point.y["k"] is pair[0]
    assert type(odd) is Odd and list(odd.items()) == [("k", pair[0])]
    assert slotted.a is pair[0] and slotted.b == 6
    assert cut == slice(6, "k", None) and both == {6, "k"}


def test_cycles_are_closed() -> None:
    recipes = [
        Build("list", (1, 2)),
        Build("tuple", (0,)),
        Build("object", (0, 3), cls=types.SimpleNamespace, names=("up", "table")),
        Build("dict", (4, 2)),
        Constant("self"),
    ]
    for result in (0, 1, 2, 3):
        found = run(capture_of(user, recipes, result), user, 1)
        items = {0: lambda f: f, 1: lambda f: f[0], 2: lambda f: f.up, 3: lambda f: f["self"].up}[result](
            found
        )
        assert items[0][0] is items
        assert items[1].up is items and items[1].table["self"] is items[1]


def test_functions_share_their_cells() -> None:
    def outer(x: Any) -> Any:
        total = 0

        def add(v: Any) -> Any:
            nonlocal total
            total += v
            return total + x

        def get() -> Any:
            return total, get

        return add, get

    add, get = (c for c in outer.__code__.co_consts if isinstance(c, types.CodeType))
    by_name = {"total": 3, "x": 4, "get": 5}
    recipes = [
        GraphOutput(0),
        Constant(user),
        Constant(None),
        Build("cell", (6,)),
        Build("cell", (0,)),
        Build("cell", (9,)),
        Constant(0),
        Constant("named"),
        Build("function", (1, 7, 2, 2, *(by_name[n] for n in add.co_freevars)), cls=add),
        Build("function", (1, 7, 2, 2, *(by_name[n] for n in get.co_freevars)), cls=get),
        Build("tuple", (8, 9)),
    ]
    made_add, made_get = run(capture_of(outer, recipes, 10), outer, 1)
    assert made_add(5) == 7 and made_get()[0] == 5
    assert made_get()[1] is made_get and made_add.__globals__ is globals()


def test_an_iterator_stands_at_its_position() -> None:
    recipes = [
        FromSource(local(1)),
        Constant(iter),
        Constant(2),
        Build("iterator", (1, 0, 2)),
        GraphOutput(0),
        Build("tuple", (3, 4)),
    ]
    for iterable in ([1, 2, 3, 4], (1, 2, 3, 4), range(1, 5), "1234"):
        found, _ = run(capture_of(user, recipes, 5), user, 1, iterable)
        assert [int(value) for value in found] == [3, 4]
    recipes[1:3] = [Constant(reversed), Constant(1)]
    found, _ = run(capture_of(user, recipes, 5), user, 1, [1, 2, 3, 4])
    assert list(found) == [2, 1]


def test_writes_are_replayed_in_order_after_all_reads() -> None:
    attribute = Source(Step.ATTR, "v", local(1))
    recipes = [
        FromSource(local(1)),
        FromSource(attribute),
        GraphOutput(0),
        FromSource(Source(Step.ATTR, "items", local(1))),
        Build("list", (2, 1)),
        Build("tuple", (1, 2)),
        Constant("k"),
        FromSource(Source(Step.ATTR, "table", local(1))),
    ]
    effects = (
        Effect(EffectKind.SETATTR, (0, 2), "v"),
        Effect(EffectKind.SET_CONTENTS, (3, 4)),
        Effect(EffectKind.SETITEM, (7, 6, 1)),
        Effect(EffectKind.DELATTR, (0,), "gone"),
    )
    target = types.SimpleNamespace(v="old", items=[1, 2, 3], table={}, gone=1)
    items = target.items
    assert run(capture_of(user, recipes, 5, effects=effects), user, 5, target) == ("old", 6)
    assert target.v == 6 and target.items is items == [6, "old"]
    assert target.table == {"k": "old"} and not hasattr(target, "gone")


@pytest.mark.provokes("BZ6013")
def test_python_runs_the_function_if_the_graph_fails() -> None:
    recipes = [FromSource(local(1)), Constant(1)]
    target = types.SimpleNamespace(v=0)
    effects = (Effect(EffectKind.SETATTR, (0, 1), "v"),)
    assert run(capture_of(user, recipes, 1, effects=effects), user, None, target) == (None, target)
    assert target.v == 0


def test_a_graph_that_writes_is_not_run_again() -> None:
    def writing(x: Any) -> Any:
        return x.add_(1), x * 2

    made = capture_of(user, [FromSource(local(1))], 0, graph=torch.fx.symbolic_trace(writing))
    with pytest.raises(TypeError):
        run(made, user, None, 1)


# -- breaks


def broken(x: Any, log: list[Any]) -> Any:
    y = x + 1
    try:
        r = log.append(y)
    except AttributeError as error:
        return "handled", str(error), y
    return r, y, log


def after_call(function: Any, method: str) -> int:
    """The offset after the call of ``method``."""
    import dis

    from braze.capture.facts import bytecode

    found = False
    for instruction in dis.get_instructions(function):
        found = found or instruction.argval == method
        if found and instruction.opname == "CALL":
            starts = bytecode.instruction_starts(function.__code__)
            return starts[starts.index(instruction.offset) + 1]
    raise AssertionError("no call")


def broken_capture(operand: Any, kind: BreakKind = BreakKind.CALL) -> Capture:
    names = broken.__code__.co_varnames
    recipes = [GraphOutput(0), FromSource(local(0)), FromSource(local(1)), operand, Constant(broken)]
    locals = tuple({"x": 1, "log": 2, "y": 0}.get(name, -1) for name in names)
    frame = FrameState(broken.__code__, after_call(broken, "append"), (), locals, 4)
    at = GraphBreak(
        kind, (3, 0) if kind is BreakKind.CALL else (3,), (), "BZ1000", "test", (), None, (), (frame,)
    )
    return capture_of(broken, recipes, None, graph_break=at)


@pytest.fixture
def uncaptured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let resume functions run without being captured in turn."""

    def entry(self: Any, function: Any, name: str, *, hooked: bool = False, point: Any = None) -> Any:
        return None if hooked else function

    monkeypatch.setattr(Session, "entry", entry)


@pytest.mark.usefixtures("uncaptured")
def test_a_broken_call_runs_and_the_frame_goes_on() -> None:
    log: list[Any] = []
    capture = broken_capture(FromSource(Source(Step.ATTR, "append", local(1))))
    assert run(capture, broken, 5, log) == (None, 6, log)
    assert log == [6]


@pytest.mark.usefixtures("uncaptured")
def test_an_exception_of_a_broken_call_reaches_the_users_handler() -> None:
    def fail(value: Any) -> None:
        raise AttributeError(f"no {value}")

    assert run(broken_capture(Constant(fail)), broken, 5, []) == ("handled", "no 6", 6)


@pytest.mark.usefixtures("uncaptured")
def test_an_unhandled_exception_shows_the_users_line() -> None:
    def fail(value: Any) -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk") as caught:
        run(broken_capture(Constant(fail)), broken, 5, [])
    lines = {str(e.name): str(e.statement) for e in caught.traceback}
    assert "r = log.append(y)" in lines["broken"], lines
    assert lines["fail"].strip() == 'raise OSError("disk")'


@pytest.mark.usefixtures("uncaptured")
def test_a_raise_break_raises_in_the_frame() -> None:
    capture = broken_capture(Constant(AttributeError("raised")), BreakKind.RAISE)
    assert run(capture, broken, 5, []) == ("handled", "raised", 6)


def test_the_machinery_that_tracebacks_leave_out_is_where_it_is_said_to_be() -> None:
    assert all(map(os.path.exists, replay.MACHINERY))
    assert {module.__file__ for module in (replay, session_module)} <= replay.MACHINERY
