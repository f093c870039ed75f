"""Guard tables: shared prefixes, order, symbols, relations, texts."""

from __future__ import annotations

import collections
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import braze
import braze.capture.guards.guard_text as texts
from braze.capture.dispatch.variants import history_of
from braze.capture.facts.records import Capture, Check, Guard, ShapeRelation, Source, Step
from braze.capture.guards.dynamic import is_data
from braze.capture.guards.guard_text import guard_text, guards_text, source_text
from braze.capture.guards.misses import explain_miss
from braze.capture.guards.tables import build_table, read_source
from braze.graph.nodes.specs import SymbolSpec, TensorSpec
from braze.support import trace


def function(x: Any, model: Any = None) -> Any:
    return x


def local(index: int) -> Source:
    return Source(Step.LOCAL, index)


def capture_of(*guards: Guard, inputs: tuple[Source, ...] = (), specs: tuple[Any, ...] = ()) -> Capture:
    return Capture(function.__code__, "function", None, inputs, specs, guards, (), (), None)


def spec(*sizes: int | str, strides: tuple[int | str, ...] = (1,), **fields: Any) -> TensorSpec:
    return TensorSpec(torch.float32, torch.device("cpu"), sizes, strides, **fields)


def matches(capture: Capture, *locals: Any) -> Any:
    return build_table(capture).program().match(function, locals)


def test_shared_prefixes_are_read_once() -> None:
    a = Source(Step.ATTR, "a", local(1))
    guards = [Guard(Source(Step.ATTR, n, a), Check.EQUAL, 1) for n in "xyz"]
    table = build_table(capture_of(*guards))
    assert [n[1:] for n in table.nodes] == [
        ("local", 1),
        ("attr", "a"),
        ("attr", "x"),
        ("attr", "y"),
        ("attr", "z"),
    ]


def test_state_comes_first_and_relations_last() -> None:
    guards = [
        Guard(None, Check.RANGE, ShapeRelation("s0 > 2", ("s0",))),
        Guard(Source(Step.GLOBAL, "flag"), Check.EQUAL, 1),
        Guard(Source(Step.ITEM, 0, local(1)), Check.EQUAL, 1),
        Guard(local(0), Check.TENSOR, spec("s0")),
        Guard(None, Check.GRAD_MODE, True),
    ]
    table = build_table(capture_of(*guards))
    assert [c[1] for c in table.checks] == ["grad_mode", "tensor", "equal", "equal", "range"]


def test_one_symbol_is_one_size_everywhere() -> None:
    guards = (
        Guard(local(0), Check.TENSOR, spec("s0", "s0", strides=("s0", 1))),
        Guard(None, Check.RANGE, ShapeRelation("s0 % 2 == 0 and s0 > 2", ("s0",))),
    )
    capture = capture_of(*guards, inputs=(local(0),), specs=(guards[0].expected,))
    assert matches(capture, torch.rand(4, 4)) is not None
    assert matches(capture, torch.rand(6, 6)) is not None
    assert matches(capture, torch.rand(4, 6)) is None
    assert matches(capture, torch.rand(5, 5)) is None
    assert matches(capture, torch.rand(2, 2)) is None
    assert matches(capture, torch.rand(4, 4).t()) is None


def test_a_stride_may_be_an_expression() -> None:
    wanted = spec("s0", "s1", "s2", strides=("s1*s2", "s2", 1))
    capture = capture_of(Guard(local(0), Check.TENSOR, wanted))
    assert matches(capture, torch.rand(2, 3, 4)) == ()
    assert matches(capture, torch.rand(2, 3, 5)) == ()
    assert matches(capture, torch.rand(4, 3, 4)[::2]) is None


def test_an_int_input_binds_its_symbol() -> None:
    guards = (
        Guard(local(0), Check.TENSOR, spec("s0")),
        Guard(None, Check.RANGE, ShapeRelation("n <= s0", ("n", "s0"))),
    )
    capture = capture_of(*guards, inputs=(local(1),), specs=(SymbolSpec("n", 3),))
    assert matches(capture, torch.rand(4), 4) == (4,)
    assert matches(capture, torch.rand(4), 5) is None
    assert matches(capture, torch.rand(4), True) is None
    assert matches(capture, torch.rand(4), 3.0) is None


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (range(1, 9, 2), range(1, 9)),
        (slice(None, 3), slice(None, 4)),
        (torch.device("cpu"), torch.device("meta")),
        ((1, torch.device("cpu")), (1, torch.device("meta"))),
        (torch.Size([2, 3]), torch.Size([2, 4])),
        (torch.Size([2, 3]), (2, 3)),
        ((0.0,), (-0.0,)),
        ((1,), (True,)),
    ],
)
def test_values_compare_by_type_and_value(good: Any, bad: Any) -> None:
    capture = capture_of(Guard(local(0), Check.EQUAL, good))
    assert matches(capture, good) == ()
    assert matches(capture, bad) is None


def test_dispatch_keys_of_the_real_tensor_are_guarded() -> None:
    x = torch.rand(3, dtype=torch.complex64)
    wanted = TensorSpec(torch.complex64, torch.device("cpu"), (3,), (1,))
    capture = capture_of(Guard(local(0), Check.TENSOR, wanted))
    program = build_table(capture, function, (x,)).program()
    assert program.match(function, (torch.rand(3, dtype=torch.complex64),)) == ()
    assert program.match(function, (x.conj(),)) is None
    with torch.inference_mode():
        assert program.match(function, (torch.rand(3, dtype=torch.complex64),)) is None


def test_a_parameter_is_not_a_tensor() -> None:
    wanted = spec(3, requires_grad=True, is_parameter=True)
    capture = capture_of(Guard(local(0), Check.TENSOR, wanted))
    assert matches(capture, torch.nn.Parameter(torch.rand(3))) == ()
    assert matches(capture, torch.rand(3, requires_grad=True)) is None


def test_sources_read_as_the_user_wrote_them() -> None:
    modules = Source(Step.DICT, "_modules", local(1))
    weight = Source(Step.ITEM, "weight", Source(Step.DICT, "_parameters", Source(Step.ITEM, "fc", modules)))
    assert source_text(weight, function.__code__) == "model.fc.weight"
    assert source_text(Source(Step.ITEM, 3, local(0)), function.__code__) == "x[3]"


def test_each_step_of_a_deep_source_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module within modules: twice as many at each level would be minutes for thirty of them."""
    source, written = local(1), []

    def counted(*args: Any) -> str:
        written.append(args)
        return source_text(*args)

    monkeypatch.setattr(texts, "source_text", counted)
    for _ in range(30):
        source = Source(Step.ITEM, "inner", Source(Step.DICT, "_modules", source))
    assert source_text(source, function.__code__) == "model" + ".inner" * 30
    assert len(written) == 30


def test_a_miss_tells_expected_and_met() -> None:
    capture = capture_of(
        Guard(Source(Step.ITEM, "n", local(0)), Check.EQUAL, 3), Guard(local(1), Check.LENGTH, 2)
    )
    table = build_table(capture)
    program = table.program()
    assert explain_miss(capture, table, program, function, ({"n": 3}, [1, 2])) is None
    miss = explain_miss(capture, table, program, function, ({"n": 4}, [1, 2]))
    assert miss is not None and miss.text.startswith("x['n'] == 3; now 4 (read at ")
    miss = explain_miss(capture, table, program, function, ({"n": 3}, [1]))
    assert miss is not None and miss.text.startswith("len(model) == 2; now length 1")
    miss = explain_miss(capture, table, program, function, ({}, [1, 2]))
    assert miss is not None and "missing" in miss.text


def test_a_miss_never_runs_the_users_repr() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise AssertionError("must not run")

    capture = capture_of(Guard(local(0), Check.TYPE, int))
    table = build_table(capture)
    miss = explain_miss(capture, table, table.program(), function, (Rude(), None))
    assert miss is not None and "Rude" in miss.text


def test_every_check_has_a_text() -> None:
    examples = {
        Check.TYPE: int,
        Check.IS: int,
        Check.REFERENT: weakref.ref(spec),
        Check.EQUAL: 1,
        Check.LENGTH: 1,
        Check.KEYS: ("a",),
        Check.HAS_KEY: ("a", True),
        Check.ABSENT: ("b",),
        Check.TENSOR: spec(3),
        Check.ALIAS: local(1),
        Check.DISTINCT: (local(0), local(1)),
        Check.RANGE: ShapeRelation("s0 > 2", ("s0",)),
        Check.SETTING: (torch.get_num_threads, (), 1),
    }
    guards = tuple(Guard(None if c is Check.RANGE else local(0), c, examples.get(c, True)) for c in Check)
    text = guards_text(capture_of(*guards)).splitlines()
    assert len(text) == len(Check) == len(set(text))
    assert guard_text(guards[0], function.__code__) == "type(x) is int"


def test_sources_read_without_running_python() -> None:
    class Sly:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("must not run")

    sly = Sly()
    object.__setattr__(sly, "v", 7)
    assert read_source(Source(Step.DICT, "v", local(0)), function, (sly,)) == 7
    ordered = collections.OrderedDict(a=1, b=2)
    assert read_source(Source(Step.KEY, 1, local(0)), function, (ordered,)) == "b"
    assert read_source(Source(Step.ATTR, "v", local(0)), function, (SimpleNamespace(v=3),)) == 3


@pytest.mark.parametrize("make", [set, frozenset])
def test_a_set_from_outside_is_known_by_its_elements(make: Any) -> None:
    def f(x: torch.Tensor, found: Any) -> torch.Tensor:
        return x * 2 if 1 in found else x - 1

    x, compiled = torch.ones(2), braze.compile(f, backend="eager")
    for found in ({1, 2}, {3, 2}, {1, 2}, {1, 2, 3}, {2}):
        assert torch.equal(compiled(x, make(found)), f(x, make(found)))


def test_a_tuple_from_outside_is_known_by_its_type() -> None:
    def f(x: torch.Tensor, pair: Any) -> Any:
        return type(pair)([pair[0] * 2, pair[1]]) if type(pair) in (tuple, list) else pair.first + x

    class Pair(tuple):
        first = 3

    x, compiled = torch.ones(2), braze.compile(f, backend="eager")
    for kind in (tuple, list, Pair):
        ours, theirs = compiled(x, kind((x, 1))), f(x, kind((x, 1)))
        assert type(ours) is type(theirs) and torch.equal(ours[0], theirs[0])


def test_a_key_asked_of_a_dict_from_outside_says_nothing_of_its_other_keys() -> None:
    """``d.get(cls)``, as `copy.copy` does it: what a library registers there later is nobody's concern."""
    table: dict[Any, Any] = {int: 2}

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * table.get(int, 1) + table.get(float, 1) + table.get("name", 3)

    compiled, x = braze.compile(f, backend="eager"), torch.ones(3)
    assert compiled(x).tolist() == [6.0] * 3
    table[str] = 5
    assert compiled(x).tolist() == [6.0] * 3
    assert not history_of(f)
    table["name"] = 7
    assert compiled(x).tolist() == [10.0] * 3
    table[float] = 4
    assert compiled(x).tolist() == [13.0] * 3


def below(source: Source, *steps: tuple[Step, Any]) -> Source:
    for step, key in steps:
        source = Source(step, key, source)
    return source


HELD = {
    Step.ATTR: "n",
    Step.DICT: "n",
    Step.ITEM: 0,
    Step.CLOSURE: 0,
    Step.CLASS_ATTR: "n",
    Step.GLOBALS_OF: "n",
}
#: to what holds numbers
WAYS = {Step.TYPE: None, Step.FUNC: "self"}
ASIDE = {Step.DEFAULTS: 0, Step.KWDEFAULTS: "n", Step.KEY: 0}


@pytest.mark.parametrize("root", [local(0), Source(Step.GLOBAL, "g"), Source(Step.CELL, 0)], ids=str)
@pytest.mark.parametrize("aside", ASIDE, ids=lambda step: step.value)
def test_a_number_may_become_a_symbol_where_the_program_holds_it_and_nowhere_aside(root, aside):
    """Defaults and keys are the program's text more than its data, and so is all that lies behind them."""
    for held, key in HELD.items():
        assert is_data(below(root, (held, key)))
        assert is_data(below(root, (Step.ITEM, 1), (held, key)))
        assert not is_data(below(root, (aside, ASIDE[aside])))
        assert not is_data(below(root, (held, key), (aside, ASIDE[aside])))
        assert not is_data(below(root, (aside, ASIDE[aside]), (held, key)))
        assert not is_data(below(root, (aside, ASIDE[aside]), (Step.DICT, "d"), (held, key)))
        for way, to in WAYS.items():
            assert is_data(below(root, (way, to), (held, key)))


class Slots:
    __slots__ = ("one", "other")


class Holder:
    pass


def test_a_guard_tells_the_line_that_first_read_its_place():
    """Also of one that is another name of an object, and that the program reads again."""
    shared = SimpleNamespace(n=torch.ones(2))
    slots, Holder.one, Holder.other = Slots(), [shared], None
    slots.one, slots.other, Holder.other, cell = shared, shared, Holder.one, shared

    def f(x: Any) -> Any:
        y = x + slots.one.n + len(Holder.one)
        first = slots.other, Holder.other, cell
        return y, first, slots.other, Holder.other, cell, [slots.other, Holder.other, cell]

    with trace.collect() as events:
        braze.compile(f, backend="eager")(torch.ones(2))
    (found,) = (payload for kind, payload in events if kind == "capture")
    lines = [g.origin.line for g in found.guards if g.check is Check.ALIAS and g.origin is not None]
    assert len(lines) >= 3 and set(lines) <= {f.__code__.co_firstlineno + k for k in (1, 2)}
