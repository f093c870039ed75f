"""What the interpreter cannot carry breaks the graph with its reason, and the answer stays eager's."""

from __future__ import annotations

import collections
import copy
import functools
import importlib
import io
import os
import random
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from captured import Run, check, same
from torch.utils._python_dispatch import TorchDispatchMode

import braze
from braze.capture.facts.frame import bind
from braze.capture.trace.tracer import trace_frame
from braze.options import Options
from braze.support.errors import BrazeError
from tests.helpers import logged

X = torch.arange(6.0).reshape(2, 3)


def capture(fn, *args):
    """The Capture of one call."""
    return trace_frame(fn, tuple(bind(fn, args, None, lambda f: (f.__defaults__ or (), {}))), Options())


def reason(fn, *args):
    """The code of the first graph break."""
    found = capture(fn, *args).graph_break
    return found.code if found is not None else None


def printing(x):
    y = x + 1
    print("hello", file=sys.stdout)
    return y * 2


def item(x):
    return x * x.sum().item()


def branch(x):
    if x.sum() > 3:
        return x + 1
    return x - 1


def loop(x):
    while x.sum() < 100:
        x = x * 2
    return x


def clock(x):
    time.time()
    return x + 1


def chance(x):
    random.choice(("a", "b"))
    return x + 1


def formatted(x):
    return f"{x}", x + 1


def marked(x):
    y = x * 2
    braze.graph_break()
    return y + 1


@braze.disable
def left_alone(x):
    return x * 3


def disabled(x):
    return left_alone(x + 1) + 1


def inner(x):
    y = x + 1
    print(end="", file=sys.stdout)
    return y * 2


def inlined(x):
    z = inner(x * 3)
    return z - inner(z)


def in_try(x):
    try:
        y = x + 1
        print(end="", file=sys.stdout)
        raise ValueError
    except ValueError:
        print(end="", file=sys.stdout)
        return y * 2
    finally:
        print(end="", file=sys.stdout)


def in_with(x):
    with torch.no_grad():
        y = x + 1
        print(end="", file=sys.stdout)
        return y * 2, torch.is_grad_enabled()


def in_loop(x):
    out = []
    for i, part in enumerate([x, x + 1]):
        print(end="", file=sys.stdout)
        out.append(part * i)
    return out


def in_comprehension(x):
    return [print(end="", file=sys.stdout) or x * i for i in range(2)]


def in_callback(x):
    return sorted([x, x + 1], key=lambda v: v.sum().item())


def generator_with_print(x):
    def parts():
        for i in range(2):
            print(end="", file=sys.stdout)
            yield x * i

    return list(parts())


def evaluated(x):
    return x * eval("2")


def nonzero(x):
    return x.nonzero() + 1


def with_closure(x):
    total = x

    def add(v):
        nonlocal total
        total = total + v

    add(1)
    print(end="", file=sys.stdout)
    add(2)
    return total


CASES = {
    printing: "BZ1007",
    item: "BZ1004",
    branch: "BZ1003",
    loop: "BZ1003",
    clock: "BZ1017",
    chance: "BZ1017",
    formatted: "BZ1007",
    marked: "BZ1001",
    disabled: "BZ1005",
    inlined: "BZ1007",
    in_try: "BZ1007",
    in_with: "BZ1007",
    in_loop: "BZ1007",
    in_comprehension: "BZ1007",
    in_callback: "BZ1004",
    generator_with_print: "BZ1007",
    evaluated: "BZ1006",
    nonzero: "BZ1013",
    with_closure: "BZ1007",
}


@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_breaks_name_their_reason(fn):
    assert reason(fn, X) == CASES[fn]


@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_answers_stay_eagers(fn):
    with redirect_stdout(io.StringIO()):
        check(fn, X, graphs=None)


def test_output_is_printed_once_per_call():
    run = Run(printing)
    heard = io.StringIO()
    with redirect_stdout(heard):
        run(X)
        run(X)
    assert heard.getvalue() == "hello\n" * 2


def test_a_break_knows_its_line():
    found = capture(printing, X).graph_break
    assert found.origin.line == printing.__code__.co_firstlineno + 2
    assert found.hints


def test_a_break_in_an_inlined_call_has_a_trail_of_frames():
    found = capture(inlined, X).graph_break
    assert [o.function for o in found.trail] == ["inlined", "inner"]
    assert [f.code.co_name for f in found.frames] == ["inner", "inlined"]


def test_exceptions_surface_as_eagers():
    def f(x):
        return x @ torch.ones(7, 7)

    run = Run(f)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run(X)

    def g(x):
        return {}["missing"]

    with pytest.raises(KeyError, match="missing"):
        Run(g)(X)


def test_the_outside_is_unchanged_by_a_broken_trace():
    seen = []

    def f(x, log):
        log.append(1)
        print(end="", file=sys.stdout)
        return x + len(log)

    run = Run(f)
    assert same(run(X, seen), X + 1)
    assert seen == [1]


class InitByPart:
    def _init(self, factor, x):
        self.value = x * factor

    __init__ = functools.partialmethod(_init, 3)


class InitWithoutSelf:
    seen: list[torch.Tensor] = []

    @staticmethod
    def __init__(x):
        InitWithoutSelf.seen.append(x)


@pytest.mark.parametrize("cls", [InitByPart, InitWithoutSelf])
def test_an_init_that_gives_a_function_is_called_as_python_calls_it(cls):
    def f(x):
        try:
            made = cls(x)
        except TypeError:
            return x - 100
        return made.value if cls is InitByPart else x * len(cls.seen)

    def g(x):
        InitWithoutSelf.seen.clear()
        return f(x)

    assert same(Run(g)(X), g(X))
    assert reason(f, X) == "BZ1002"


class Holder:
    """An object that holds a tensor twice, and a number that changes."""

    def __init__(self, x, n):
        self.x, self.n, self.all = x, n, [x, {"x": x}]


class Own:
    """An object that copies itself."""

    def __init__(self, x):
        self.x = x

    def __deepcopy__(self, memo):
        return Own(copy.deepcopy(self.x, memo))


def shared_copies(x):
    memo = {}
    a, b = copy.deepcopy(x, memo), copy.deepcopy([x, x], memo)
    a.add_(1)
    return a, b[0] is a, b[1] is a, x * 2


@pytest.mark.parametrize(
    ("f", "make"),
    [
        (lambda v: copy.deepcopy(v)[0] * 2, lambda x, n: [x, x, n]),
        (lambda v: copy.deepcopy(v)["b"][0].add_(1) + v["b"][0], lambda x, n: {"n": n, "b": [x]}),
        (lambda v: (copy.deepcopy(v).all[1]["x"].mul_(2), v.x * 2, v.n), Holder),
        (lambda v: copy.deepcopy(v).x.mul_(2) + v.x, lambda x, n: Own(x)),
        (shared_copies, lambda x, n: x),
    ],
    ids=["list", "dict", "object", "object that copies itself", "memo"],
)
def test_a_deep_copy_of_what_holds_tensors_runs_whole_and_compiles_once(f, make):
    """Frames in the middle of a copy differ by what lies where in memory: going on in them compiled at each call."""
    braze.reset()
    compiled, events = braze.compile(f, backend="eager"), []
    with logged() as heard:
        for n in range(14):
            ours, theirs = compiled(make(X * n, n)), f(make(X * n, n))
            assert same(ours, theirs)
            events.append(compiled.misses)
    assert not heard
    assert events[-1] == events[3]


def test_an_error_in_a_deep_copy_comes_where_it_does_in_eager():
    def f(x):
        y = x * 2
        try:
            return copy.deepcopy([y, y])
        except RuntimeError as error:
            return x * 3, str(error)

    x = X.clone().requires_grad_()
    ours, theirs = braze.compile(f, backend="eager")(x), f(x)
    assert torch.equal(ours[0], theirs[0])
    assert ours[1] == theirs[1]


class Shelf:
    """What Python code does is written down, in what the trace may not write."""

    def __init__(self):
        self.done = []

    def note(self, *what, **words):
        with open(os.devnull, mode="w"):
            self.done.append((what, words))

    def __getitem__(self, key):
        self.note("taken", key)
        return 2.0

    def __setitem__(self, key, value):
        self.note("put", key)

    def __pos__(self):
        self.note("raised")
        return 3.0


def calls_with_words(x, shelf):
    y = x.sin()
    shelf.note(1, by=2)
    return y.cos() + 1


def takes_a_slice(x, shelf):
    y = x.sin()
    z = shelf[1:]
    return y.cos() + z


def puts_a_slice(x, shelf):
    y = x.sin()
    shelf[:2] = 4
    return y.cos() + 1


def raises_an_object(x, shelf):
    y = x.sin()
    z = +shelf
    return y.cos() + z


@pytest.mark.parametrize("fn", [calls_with_words, takes_a_slice, puts_a_slice, raises_an_object])
def test_what_follows_an_instruction_that_runs_code_outside_is_captured(fn):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled, found = braze.compile(fn, backend=backend), []
    for call in (fn, compiled, compiled):
        shelf = Shelf()
        result = call(torch.ones(3), shelf)
        found.append((result.tolist(), [(what[0], str(what[1:]), words) for what, words in shelf.done]))
    assert found[1] == found[2] == found[0]
    assert any("cos" in graph.code for graph in graphs)


def test_a_module_of_a_package_is_imported_where_a_function_asks_for_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the package makes names when asked. One that is not there is an error, which the program may catch."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, lazy in (
        ("plainpackage", ""),
        ("lazypackage", "def __getattr__(name):\n    raise AttributeError(name)\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(lazy)
        for part in ("first", "second"):
            (tmp_path / name / f"{part}.py").write_text("FACTOR = 3\n")
        importlib.import_module(name)
        source = f"""
def scaled(x):
    try:
        from {name} import first
    except ImportError:
        return x
    try:
        from {name} import missing
    except ImportError:
        x = x + 1
    from {name} import second as other
    return x * first.FACTOR * other.FACTOR
"""
        space: dict[str, Any] = {}
        exec(source, space)
        fn = braze.compile(space["scaled"])
        for _ in range(2):
            assert torch.equal(fn(torch.ones(2)), torch.full((2,), 18.0))


class Seeing(TorchDispatchMode):
    """Notes the operators that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def in_a_mode(x: torch.Tensor) -> Any:
    y = x * 2
    with Seeing() as mode:
        y = y.sin()
    return y + 1, mode.seen


def in_two_modes(x: torch.Tensor) -> Any:
    with Seeing() as outer, Seeing() as inner:
        y = x.exp() * 2
    return y, outer.seen, inner.seen


def fails_in_a_mode(x: torch.Tensor) -> Any:
    mode = Seeing()
    try:
        with mode:
            raise ValueError(x.cos())
    except ValueError:
        return x.sin(), mode.seen


@pytest.mark.parametrize("f", [in_a_mode, in_two_modes, fails_in_a_mode])
def test_a_dispatch_mode_that_the_function_enters_sees_its_operators_and_is_no_fault(f):
    """PyTorch keeps flags of modes, which say while tracing that one is at work."""
    compiled = braze.compile(f)
    with logged() as said:
        for _ in range(2):
            value, *seen = compiled(X)
            wanted, *expected = f(X)
            torch.testing.assert_close(value, wanted)
            assert seen == expected
    assert not [message for message in said if "BZ9" in message]
    with pytest.raises(BrazeError, match="BZ1026"):
        braze.compile(f, fullgraph=True)(X)


# -- objects of classes below C classes that come out of a graph


class Tagged(tuple):
    def __init__(self, *given: Any) -> None:
        self.tag = [len(self)]
        self.itself = self


class Pair(collections.namedtuple("Pair", "a b")):
    pass


class Marked(frozenset):
    __slots__ = ("__dict__", "slot")


class Table(collections.defaultdict):
    def __init__(self, n: int) -> None:
        super().__init__(list, {"n": n})
        self.made = [n]


def test_objects_below_c_classes_keep_their_attributes_and_are_not_made_twice() -> None:
    """Of tuples and frozensets nothing but the items came out; ``__init__`` of a class below ``defaultdict`` ran again, with other arguments."""

    def program(x: torch.Tensor, n: int) -> Any:
        tagged, pair, marked, table = Tagged((x, n)), Pair(x, n), Marked([n]), Table(n)
        pair.extra, marked.slot, marked.other = tagged, n, n + 1
        table["x"].append(x + n)
        return tagged, pair, marked, table

    def broken(x: torch.Tensor, n: int) -> Any:
        made = program(x, n)
        braze.graph_break()
        made[0].tag.append(made[3]["new"])
        return made

    def told(found: Any) -> str:
        tagged, pair, marked, table = found
        own = tagged.tag, tagged.itself is tagged, pair.extra is tagged, vars(table), table.default_factory
        return repr((*found, *map(type, found), *own, marked.slot, marked.other))

    for function in (program, broken):
        compiled = braze.compile(function, backend="eager")
        for n in (1, 2, 3):
            assert told(compiled(torch.ones(2), n)) == told(function(torch.ones(2), n))
