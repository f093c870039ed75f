"""What the interpreter cannot carry breaks the graph with its reason, and the answer stays eager's."""

from __future__ import annotations

import functools
import io
import random
import sys
import time
from contextlib import redirect_stdout

import pytest
import torch
from captured import Run, check, same

import braze
from braze.capture.facts.frame import bind
from braze.capture.trace.tracer import trace_frame
from braze.options import Options

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
