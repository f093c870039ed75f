"""Lists and deques from outside that each call makes longer: no guard on their length unless the program looks at them, and then as in eager."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.support import trace

X = torch.arange(3.0)
HISTORY: list[Any] = []


class Log:
    def __init__(self) -> None:
        self.losses: list[Any] = []
        self.parts: list[list[Any]] = [[], []]
        self.named: dict[str, list[Any]] = {"loss": []}
        self.last: collections.deque[Any] = collections.deque(maxlen=5)

    @property
    def seen(self) -> list[Any]:
        return self.losses

    def note(self, value: Any) -> None:
        self.losses.append(value)


def to_a_global(x: Any, log: Log) -> Any:
    HISTORY.append(x.sum())


def to_an_attribute(x: Any, log: Log) -> Any:
    log.losses.append(x.sum())


def to_an_item_of_a_dict(x: Any, log: Log) -> Any:
    log.named["loss"].append(x.sum())


def to_an_item_that_is_asked_for(x: Any, log: Log) -> Any:
    if "loss" in log.named:
        log.named.get("loss").append(x.sum())  # type: ignore[union-attr]
    log.named.setdefault("loss", []).append(x.mean())


def to_a_deque_that_lets_go(x: Any, log: Log) -> Any:
    log.last.append(x.sum())


def to_one_that_is_returned(x: Any, log: Log) -> Any:
    log.losses.append(x.sum())
    return log.losses


def to_lists_in_a_list(x: Any, log: Log) -> Any:
    log.parts[0].append(x.sum())
    for part in log.parts:
        part.append(x.mean())


def many_at_once(x: Any, log: Log) -> Any:
    log.losses.extend([x.sum(), x.mean()])


def with_the_last(x: Any, log: Log) -> Any:
    before = log.losses[-1] if log.losses else torch.zeros(())
    log.losses.append(before * 0.9 + x.sum())
    log.parts[1].append(log.losses[-1] - before)
    return before


def with_the_first(x: Any, log: Log) -> Any:
    if not log.losses:
        log.losses.append(x)
    log.losses.append(x - log.losses[0])


def in_place(x: Any, log: Log) -> Any:
    log.losses += [x.sum()]


def by_a_variable(x: Any, log: Log) -> Any:
    losses = log.losses
    if losses is not None and isinstance(losses, list):
        losses.append(x.sum())
        add = losses.append
        add(x.mean())


def by_a_method_and_a_property(x: Any, log: Log) -> Any:
    log.note(x.sum())
    log.seen.append(x.mean())
    getattr(log, "losses" if hasattr(log, "losses") else "").append(1)


def around_a_break(x: Any, log: Log) -> Any:
    losses = log.losses
    losses.append(x.sum())
    braze.graph_break()
    losses.append(x.mean())
    log.losses.append(x.sum().item())


ADDING = (
    to_a_global, to_an_attribute, to_an_item_of_a_dict, to_an_item_that_is_asked_for, to_a_deque_that_lets_go, to_lists_in_a_list, many_at_once, with_the_last, with_the_first,
    in_place, by_a_variable, by_a_method_and_a_property, around_a_break, to_one_that_is_returned,
)  # fmt: skip


def by_its_length(x: Any, log: Log) -> Any:
    n = len(log.losses)
    log.losses.append(x.sum())
    return x * n, n, -n, n / 2, len(log.losses), f"{n} losses"


def kept_short(x: Any, log: Log) -> Any:
    log.losses.append(x.sum())
    if len(log.losses) > 2:
        log.losses.pop(0)
    return x / len(log.losses)


def emptied_in_between(x: Any, log: Log) -> Any:
    log.losses += [x.sum(), x]
    if len(log.losses) >= 6:
        log.losses.clear()
    return x * (len(log.losses) - 1)


def by_its_length_around_a_break(x: Any, log: Log) -> Any:
    n = len(log.losses)
    log.losses.append(x.sum())
    braze.graph_break()
    log.losses.append(n)
    return x + n, len(log.losses) - n


def with_its_length_kept(x: Any, log: Log) -> Any:
    log.named["n"] = len(log.losses)  # type: ignore[assignment]
    log.losses.append(x.sum())
    return x[: len(log.losses) % 4], torch.zeros(len(log.losses))


#: those that look at nothing but how long the list is
COUNTING = (by_its_length, kept_short, emptied_in_between, by_its_length_around_a_break, with_its_length_kept)


def plain(value: Any, depth: int = 5) -> Any:
    """A value as one that compares; lists may hold themselves."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.tolist()
    if isinstance(value, Log):
        return plain(vars(value))
    if isinstance(value, dict):
        return {key: plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | collections.deque):
        return type(value).__name__, [plain(v, depth - 1) for v in value] if depth else len(value)
    return value


def calls(function: Callable[..., Any], times: int) -> tuple[Any, int]:
    """What a function gives and leaves behind, and how often it was captured, behind the first three calls."""
    HISTORY.clear()
    log, captures, given = Log(), 0, []
    for i in range(times):
        before = trace.COUNTERS["captures"] + trace.COUNTERS["calls_as_they_are"]
        given.append(function(X + i, log))
        if i > 2:
            captures += trace.COUNTERS["captures"] + trace.COUNTERS["calls_as_they_are"] - before
    return plain([log, HISTORY, given]), captures


@pytest.mark.parametrize("function", ADDING, ids=lambda f: f.__name__)
def test_what_is_added_to_has_no_variant_for_each_length(function: Any) -> None:
    told, _ = calls(function, 6)
    compiled, captures = calls(braze.compile(function, backend="eager"), 6)
    assert compiled == told
    assert captures == 0


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", COUNTING, ids=lambda f: f.__name__)
def test_how_long_a_list_is_is_a_number_that_changes(function: Any, dynamic: bool | None) -> None:
    told, _ = calls(function, 16)
    compiled, captures = calls(braze.compile(function, backend="eager", dynamic=dynamic), 16)
    assert compiled == told
    assert captures <= 3


def test_a_comprehension_over_breaks_has_no_variant_for_each_length() -> None:
    function = braze.compile(lambda x: [float(v) for v in x], backend="eager")
    trace.reset_counters()
    assert function(torch.arange(20.0)) == list(map(float, range(20)))
    assert trace.COUNTERS["captures"] < 12


@pytest.mark.parametrize("inside", [False, True], ids=["argument", "of a module below"])
def test_a_module_adds_to_a_list_that_it_is_given(inside: bool) -> None:
    class Recorded(nn.Module):
        def forward(self, x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
            seen.append(x * 2)
            return x + 1

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.seen = Recorded(), list[Any]()

        def forward(self, x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
            return self.inner(self.inner(x, seen), self.seen)

    model, seen = Outer() if inside else Recorded(), list[Any]()
    compiled = braze.compile(model, backend="eager")
    trace.reset_counters()
    for i in range(5):
        compiled(X + i, seen)
    assert trace.COUNTERS["captures"] == 1
    assert plain(seen) == plain([(X + i) * 2 for i in range(5)])


@pytest.mark.parametrize("hooked", [False, True])
def test_a_hook_sees_how_long_a_list_is_that_a_module_is_given(hooked: bool) -> None:
    class Recorded(nn.Module):
        def forward(self, x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
            seen.append(x)
            return x + 1

    told, model = [], Recorded()
    if hooked:
        model.register_forward_pre_hook(lambda module, args: told.append(list(map(len, args))))
    compiled, seen = braze.compile(model, backend="eager"), list[Any]()
    for _ in range(3):
        compiled(X, seen)
    assert told == ([[3, 0], [3, 1], [3, 2]] if hooked else [])


@pytest.mark.parametrize("kind", [list, collections.deque])
def test_what_holds_code_that_runs_at_its_end_is_let_go_of_in_its_place(kind: Any) -> None:
    told: list[str] = []

    class Ends:
        def __del__(self) -> None:
            told.append("ended")

    def f(x: torch.Tensor, held: Any) -> torch.Tensor:
        held.append(x.sum())
        told.append("added")
        return x * 2

    held = kind([Ends()]) if kind is list else kind([Ends()], maxlen=1)
    braze.compile(f, backend="eager")(X, held)
    assert told == (["added"] if kind is list else ["ended", "added"])


def test_a_deque_keeps_as_many_as_it_may_at_each_call() -> None:
    def f(x: torch.Tensor, last: collections.deque[Any]) -> Any:
        last.append(x.sum())
        return list(last)

    for most in (2, 5, None):
        for function in (f, braze.compile(f, backend="eager")):
            last = collections.deque([1, 2], maxlen=most)
            assert len(function(X, last)) == len(last) == (2 if most == 2 else 3)


def test_a_deque_of_another_length_at_most_is_no_deque_of_a_variant() -> None:
    def f(x: torch.Tensor, last: collections.deque[Any]) -> torch.Tensor:
        last.append(7)
        return x * 2

    compiled = braze.compile(f, backend="eager")
    for most in (2, 5, None):
        last = collections.deque([1, 2], maxlen=most)
        compiled(X, last)
        assert list(last) == ([2, 7] if most == 2 else [1, 2, 7])


def test_what_an_error_leaves_is_eagers() -> None:
    def f(x: torch.Tensor, losses: list[Any], fail: bool) -> torch.Tensor:
        losses.append(x.sum())
        try:
            losses.append(1)
            raise KeyError("a")
        except KeyError:
            losses.append(2)
        if fail:
            raise ValueError("b")
        losses.append(x[5] if x.numel() > 5 else 3)
        return x @ x

    found = []
    for function in (f, braze.compile(f, backend="eager")):
        losses: list[Any] = []
        for fail in (False, True, False):
            try:
                function(X, losses, fail)
            except ValueError:
                losses.append("failed")
        found.append(plain(losses))
    assert found[0] == found[1]


# -- programs of statements drawn by chance, which add to lists that may be one, look at them, and break


#: of a program: ``a`` to ``d`` are lists that may be each other, ``s`` an object, ``q`` a list of lists
STATEMENTS = """{l}.append(x.sum())|{l}.append(i)|{l}.extend([x.mean(), 1])|{l} += [x + 1]|{l}.append(len({l}))|out.append({l}[-1] if {l} else None)
out.append(len({m}))|if {l}: out.append('full')|{l}.insert(0, 2)|del {l}[0:1]|{l}.pop() if {l} else None|{l}.clear()|{l}.extend({m})|{l}.append({m})
keep = {l}; keep.append(x.max()); out.append(len({m}))|keep = {l}.append; keep(x.min())|out.append({l} is {m})|out.append(list({l}))|add({l}, x)|count(out, {l})
out.append({l} == {m})|s.h = {l}|d['k'] = {l}|getattr(s, 'h').append(2)|d.setdefault('z', []).append(x.sum())|d.get('k', out).append(3)|braze.graph_break()
out.append([len(v) for v in d.values()])|out.append(max(map(len, d.values())))|out.append(sum(len(v) for v in vars(s).values()))|{l}.extend(later({l}, 3))
out.append(f'{{len(a)}}')|t = ({l}, x); out.append(len(t[0]))|u, *v = {l} or [1]; out.append(len(v))|out.append({l} + [1])|if {l} is not None: {l}.append(5)
w = [{l}, {m}]; out.append(list(map(len, w)))|(lambda: {l}.append(1))()|(lambda v={l}: out.append(len(v)))()|if len({l}) > 2: raise KeyError('long')
q[0].append(x.sum())|for v in q: v.append(1)|out.append(list(map(len, q)))|q[i % 2].append(i)|q[0], q[1] = q[1], q[0]|it = iter(q); out.append(list(map(len, it)))
q.append({l})|out.append(list(zip(q, [1, 2]))[0][0][:1])|k = q[0]; k.append(1); out.append(len(q[0]))|q[0] += [x.sum()]|m = {l}.pop; out.append(m() if {l} else 0)
m = s.h.__len__; s.h.append(1); out.append(m())|m = {l}.append; m(x.sum()); out.append(len(m.__self__))|out.append(d.pop('q', None))|s.p.append(1); out.append(s.p)
p = {l}[-1] if {l} else 0; {l}.append(x.sum()); out.append(p)|out.append({l}[0] if {l} else 0)|out.append({l}[-2] if {l} else 0)|if not {l}: {l}.append(1)
if {l}: {l}.append({l}[-1])|if {l}: {l}[-1] = 3|out.append({l}[-1] is {m}[-1] if {l} and {m} else 0)|if {l} and torch.is_tensor({l}[-1]): {l}[-1].add_(1); {l}.append({l}[0])
e.append(x.sum())|e.extend([1, i])|out.append(len(e))|e.appendleft(1)|out.append(e[-1] if e else 0)|{l}.append(x.sum().item())|out.append(len(locals()['{p}']) + sum(map(len, (v for v in locals().values() if type(v) is list))))|out.append(sorted(map(str, map(len, filter(lambda v: type(v) is list, locals().values())))))"""
SURROUNDINGS = """
import torch, braze
class S:
    @property
    def p(self): return self.h
def add(v, x): v.append(x.sum())
def count(out, v): out.append(len(v))
def later(v, n):
    for k in range(n): yield k + len(v)
def f(x, a, b, s, d, e, q, i):
    out = []
"""


def program(seed: int) -> str:
    """A function of up to six statements."""
    draw = random.Random(seed)
    rows = STATEMENTS.replace("\n", "|").split("|")
    some = [draw.choice(rows) for _ in range(draw.randint(1, 6))]
    places = [
        {"l": draw.choice(("a", "b", "s.h", 'd["k"]')), "m": draw.choice(("a", "b", 'd["k"]')), "p": "a"}
        for _ in some
    ]
    lines = [row.format(**where) for row, where in zip(some, places, strict=True)]
    return SURROUNDINGS + "".join(f"    {line}\n" for line in lines) + "    return x * 2, out\n"


def played(text: str, seed: int, compiled: bool) -> list[Any]:
    """What each of five calls gives and leaves; between them lists are emptied, replaced, copied and put for each other."""
    draw, space = random.Random(seed), dict[str, Any]()
    exec(compile(text, f"<program {seed}>", "exec"), space)
    f, s = space["f"], space["S"]()
    f = braze.compile(f, backend="eager") if compiled else f
    a: list[Any] = [torch.ones(2)] * draw.randint(0, 2)
    b: list[Any] = [2]
    s.h, d, e = (
        [1],
        {"k": draw.choice((a, [3])), "q": [1]},
        collections.deque([1], maxlen=draw.choice((None, 3))),
    )
    q: list[Any] = [[1], draw.choice((a, [2]))]
    told = []
    for i in range(5):
        try:
            result = f(torch.arange(2.0) + i, a, b, s, d, e, q, i)
        except Exception as error:
            result = type(error).__name__, str(error)
        told.append(repr(plain([result, a, b, s.h, d, e, q, a is b])))
        event = draw.randint(0, 7)
        if event == 0:
            a.clear()
        elif event == 1:
            b = a
        elif event == 2:
            s.h = a
        elif event == 3:
            a = list(a)
        elif event == 4:
            e = collections.deque(e, maxlen=draw.choice((2, None)))
        elif event == 5:
            q, d = [list(v) for v in q if v is not q] + [[]], {**d, "k": b}
    return told


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_programs_that_add_to_lists_are_eagers(first: int) -> None:
    for seed in range(first, first + 20):
        text = program(seed)
        assert played(text, seed, True) == played(text, seed, False), text


def test_the_last_few_elements_are_taken_whatever_the_length() -> None:
    def program(x: Any, history: list[Any], step: int) -> Any:
        history.append(x.sum() + step)
        last = history[-3:]
        last.append(1)
        return sum(history[-5:]), len(last), history[-2:] is history, history[-1:]

    compiled, ours, theirs = braze.compile(program, backend="eager"), list[Any](), list[Any]()
    trace.reset_counters()
    for step in range(3, 33):
        assert plain(compiled(X, ours, step)) == plain(program(X, theirs, step))
        assert plain(ours) == plain(theirs)
    assert trace.COUNTERS["captures"] <= 7
    assert plain(compiled(X, ours := [1], 4)) == plain(program(X, theirs := [1], 4))
    assert plain(ours) == plain(theirs)
