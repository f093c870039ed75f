"""What a trace has touched lives no longer than it does uncompiled, and its end is met once; builtins that a program takes away are missed by it alone."""

from __future__ import annotations

import array
import builtins
import collections
import gc
import logging
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from braze.capture.facts.stand_ins import stand_in
from braze.inspect.explain import observe
from braze.support.errors import Origin

CASES: list[Callable[[], Any]] = []


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES.append(function)
    return function


class Plain:
    """An object that weak references can see."""


@case
def an_object_in_an_exception_dies_with_it() -> Any:
    told: list[Any] = []

    class Told:
        def __del__(self) -> None:
            told.append(sys.exc_info())

    try:
        raise ValueError(Told())
    except ValueError:
        pass
    gc.collect()
    return told


@case
def variables_of_a_frame_that_failed_die_with_the_error() -> Any:
    seen: Any = None

    def inner() -> None:
        nonlocal seen
        kept = Plain()
        seen = weakref.ref(kept)
        braze.graph_break()
        raise MemoryError

    alive = None
    try:
        inner()
    except MemoryError:
        alive = seen() is not None
    gc.collect()
    return alive, seen() is None


def nested(base: Any) -> Any:
    ended: list[int] = []

    class Ending(base):  # type: ignore[misc]
        def __del__(self) -> None:
            ended.append(self.i)

    last = None
    for i in range(10):
        last = Ending([(None, last)]) if issubclass(base, dict) else Ending([last])
        last.i = i
    del last
    gc.collect()
    return ended


@case
def dicts_that_tell_their_end() -> Any:
    return nested(collections.OrderedDict), nested(dict)


@case
def sequences_that_tell_their_end() -> Any:
    return nested(list), nested(collections.deque)


class Longer(list[int]):
    """A list that says something else of its length and elements."""

    def __len__(self) -> int:
        SAID.append("len")
        return 7

    def __iter__(self) -> Iterator[int]:
        SAID.append("iter")
        return iter([0])


class Fuller(set[int]):
    """The same of a set."""

    __iter__ = Longer.__iter__


SAID: list[str] = []
LONGER, FULLER = Longer([1, 2]), Fuller([1, 2])


@case
def containers_with_lengths_of_their_own_are_not_asked() -> Any:
    SAID.clear()
    return LONGER[0], 2 in FULLER, list(SAID), len(LONGER), list(SAID)


@case
def equal_texts_stay_two_objects() -> Any:
    a = "xyzpdq"
    b = a[:3] + a[3:]
    braze.graph_break()
    return a is b, a == b


def rest(items: Any) -> Any:
    at = iter_of(items)
    braze.graph_break()
    return [*at], len(items), isinstance(items, str)


iter_of = iter


@case
def a_builtin_is_gone_for_a_while() -> Any:
    def without(items: Any) -> Any:
        kept = builtins.iter
        del builtins.iter
        braze.graph_break()
        try:
            return rest(items)
        finally:
            builtins.iter = kept

    return without("xyz"), without([1, 2]), without((1,))


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_a_compiled_function_does_as_it_does_uncompiled(function: Callable[[], Any]) -> None:
    expected = function()
    assert braze.compile(function, backend="eager")() == expected


def called(how: Callable[[], Any]) -> Any:
    braze.graph_break()
    return how()


def named(cls: type) -> Any:
    braze.graph_break()
    return cls.__name__, cls().number  # type: ignore[attr-defined]


def a_function(number: int) -> Callable[[], Any]:
    kept = Plain()
    return lambda: (number, type(kept))


def a_loss(number: int) -> Callable[[], Any]:
    scale = torch.full((), float(number))
    return lambda: (torch.ones(3) * scale).sum().item()


def a_class(number: int) -> type:
    return type("Made", (), {"number": number, "__qualname__": "a_class.<locals>.Made"})


@pytest.mark.parametrize(("use", "make"), [(called, a_function), (called, a_loss), (named, a_class)])
def test_what_a_call_made_ends_though_compiled_code_knows_it(use: Any, make: Any) -> None:
    """Guards compare it by identity; whichever object has its address next is another one."""
    compiled = braze.compile(use, backend="eager")
    for number in range(4):
        made = make(number)
        seen = weakref.ref(made)
        assert use(made) == compiled(made) == compiled(made)
        del made
        gc.collect()
        assert seen() is None


class Broken(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        braze.graph_break()
        return super().forward(x)


def test_that_modules_behind_breaks_are_counted_by_weak_references_is_no_end_of_the_programs() -> None:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(Broken(3, 3) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    model, x = Layers(), torch.ones(2, 3)
    compiled = braze.compile(model, backend="eager")
    found = observe(lambda: compiled(x), "layers")
    assert {b.code for b in found.breaks} == {"BZ1001"}


def test_that_dynamo_refers_to_modules_is_no_end_of_the_programs() -> None:
    """Once it has compiled, each module that is made has a weak reference of its own with a callback."""
    from torch._dynamo.utils import ExactWeakKeyDictionary

    table, other = ExactWeakKeyDictionary(), torch.nn.Linear(2, 2)
    table[layers := torch.nn.Sequential(torch.nn.Linear(2, 2))] = 1
    known = {
        id(module): weakref.ref(module, table.refs[id(layers)].__callback__) for module in (layers[0], other)
    }

    def program(x: torch.Tensor) -> torch.Tensor:
        for layer in [layers[0], other]:
            x = layer(x)
            braze.graph_break()
        return x

    compiled = braze.compile(program, backend="eager")
    found = observe(lambda: compiled(torch.ones(1, 2)), "layers")
    assert {b.code for b in found.breaks} == {"BZ1001"} and len(known) == 2


@pytest.mark.parametrize("method", ["forward", "extra"])
def test_a_model_whose_method_is_replaced_by_the_compiled_one_ends(method: str) -> None:
    class Model(torch.nn.Linear):
        def extra(self, x: torch.Tensor) -> torch.Tensor:
            return self(x) + 1

    model, x = Model(3, 3), torch.ones(2, 3)
    setattr(model, method, braze.compile(getattr(model, method), backend="eager"))
    getattr(model, method)(x)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


def test_a_function_that_lives_on_has_one_variant() -> None:
    compiled, made = braze.compile(called, backend="eager"), a_function(1)
    assert [compiled(made) for _ in range(4)] == [made()] * 4
    assert len(compiled.variants) == 1


def test_a_stand_in_for_a_frame_keeps_no_other_frame() -> None:
    frame = stand_in(Origin("file.py", 3, function="name"))
    assert frame.f_back is None
    assert (frame.f_code.co_filename, frame.f_code.co_name) == ("file.py", "name")


def test_nothing_is_compiled_while_a_builtin_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def f(x: int) -> Any:
        return [str(x), len("abc")]

    compiled = braze.compile(f, backend="eager")
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr(builtins, "len", lambda value: 5)
        assert compiled(1) == ["1", 5]
        assert not compiled.variants
    assert compiled(1) == ["1", 3]
    assert len(compiled.variants) == 1


class Slotted:
    __slots__ = ("a",)


def slots_have_no_namespace(o: Any) -> Any:
    try:
        vars(Slotted())
    except TypeError as e:
        return str(e), e.__context__ is None
    return None


def test_vars_of_what_has_none_is_an_error_of_its_kind() -> None:
    assert braze.compile(slots_have_no_namespace, backend="eager")(0) == slots_have_no_namespace(0)


class Shown(dict[int, int]):
    def __repr__(self) -> str:
        return "*" * len(dict.__repr__(self))


def test_text_of_a_dict_of_changing_numbers_is_of_numbers() -> None:
    compiled = braze.compile(lambda d: (repr(d), dict.__repr__(d)), backend="eager", dynamic=True)
    for n in (6, 1234, 77, 8):
        assert compiled(Shown({5: n})) == ("*" * len(f"{{5: {n}}}"), f"{{5: {n}}}")


def cleared(held: list[Any]) -> Any:
    seen = weakref.ref(held[0])
    alive = seen() is not None
    held.clear()
    return alive, seen() is None


def popped(held: list[Any]) -> Any:
    taken = held.pop()
    seen = weakref.ref(taken)
    alive = seen() is not None
    del taken
    return alive, seen() is None


def resumed(held: list[Any]) -> Any:
    made = Plain()
    braze.graph_break()
    seen = weakref.ref(made)
    alive = seen() is not None
    del made
    return alive, seen() is None


def kept(held: list[Any]) -> Any:
    seen = weakref.ref(held[0])
    return seen() is held[0], seen() is None


@pytest.mark.parametrize("function", [cleared, popped, resumed, kept], ids=lambda f: f.__name__)
def test_a_weak_reference_tells_that_the_function_has_let_go(function: Callable[[Any], Any]) -> None:
    compiled = braze.compile(function, backend="eager")
    for _ in range(2):
        assert compiled([Plain()]) == function([Plain()])


def let_go_of(x: torch.Tensor) -> Any:
    y = x * 2
    seen = weakref.ref(y)
    alive = seen() is y
    del y
    return x + 1, alive, seen() is None


def never_held(x: torch.Tensor) -> Any:
    return weakref.ref(x * 2)() is None


def computed_with(x: torch.Tensor) -> Any:
    y = x.exp()
    seen = weakref.ref(y)
    y = y * 2
    return y, seen() is None


def given(x: torch.Tensor) -> Any:
    y = x * 2
    return y, weakref.ref(y)() is y, weakref.ref(x)() is x


@pytest.mark.parametrize("function", [let_go_of, never_held, computed_with, given], ids=lambda f: f.__name__)
def test_a_weak_reference_to_a_tensor_ends_with_it(function: Callable[[Any], Any]) -> None:
    compiled = braze.compile(function, backend="eager")
    for n in (3, 3, 4):
        x = torch.randn(n, requires_grad=True)
        torch.testing.assert_close(compiled(x), function(x))


class Refusing(logging.Handler):
    """A handler that raises."""

    def emit(self, record: logging.LogRecord) -> None:
        SAID.append(record.getMessage())
        raise ValueError("refused")


def test_an_error_of_a_handler_of_messages_is_met_where_the_message_is_given() -> None:
    teller = logging.getLogger("tests.capture.refusing")
    teller.propagate = False
    teller.addHandler(Refusing())

    def tells() -> Any:
        SAID.clear()
        try:
            teller.warning("a %s", 1)
        except ValueError as e:
            SAID.append(str(e))
        SAID.append("after")
        return list(SAID)

    compiled = braze.compile(tells, backend="eager")
    assert tells() == compiled() == compiled() == ["a 1", "refused", "after"]


RAW = bytes(range(20))


def counted(value: Any) -> list[int]:
    lent: list[Any] = []
    first = sys.getrefcount(value)
    braze.graph_break()
    lent.append(value)
    second = sys.getrefcount(value)
    del lent
    return [first, second, sys.getrefcount(value)]


def counts_of_its_own() -> list[int]:
    return counted(array.array("i", [1, 2]))


def counts_of_bytes_from_outside() -> list[int]:
    return counted(RAW)


def counts_in_a_frame_that_goes_on() -> list[int]:
    made = array.array("i", [1, 2])
    found = counted(made)
    return [*found, sys.getrefcount(made)]


@pytest.mark.parametrize(
    "function",
    [counts_of_its_own, counts_of_bytes_from_outside, counts_in_a_frame_that_goes_on],
    ids=lambda f: f.__name__,
)
def test_around_a_break_objects_are_held_as_often_as_by_python(function: Callable[[], list[int]]) -> None:
    compiled = braze.compile(function, backend="eager")
    assert function() == compiled()
    assert function() == compiled()


def test_a_frame_that_goes_on_lets_go_of_what_it_was_given() -> None:
    found: list[Any] = []

    def inner(value: Any) -> None:
        braze.graph_break()
        seen = weakref.ref(value)
        value = None
        found.append(seen())

    def outer() -> int:
        inner(Plain())
        return 1

    compiled = braze.compile(outer, backend="eager")
    for function in (outer, compiled, compiled):
        function()
    assert found == [None] * 3


ENDS: list[str] = []


class Ending:
    """An object that says its end."""

    def __del__(self) -> None:
        ENDS.append("end")

    def method(self) -> None:
        pass


def ending() -> Ending:
    braze.graph_break()
    return Ending()


def a_variable_is_deleted() -> None:
    o = ending()
    braze.graph_break()
    ENDS.append("before")
    del o
    ENDS.append("after")


def a_variable_gets_another_value() -> None:
    o: Any = ending()
    braze.graph_break()
    ENDS.append("before")
    o = None
    ENDS.append(f"after, {o}")


def a_pair_gets_another_value() -> None:
    of, end = {1: ending()}, None
    braze.graph_break()
    for pair in of.items():
        of[1] = end
        ENDS.append("before")
    pair = end
    ENDS.append(f"after, {pair}")


def a_variable_of_a_closure_gets_another_value() -> None:
    o: Any = ending()
    braze.graph_break()
    ENDS.append("before")
    o = None
    ENDS.append((lambda: f"after, {o}")())


def an_attribute_gets_another_value() -> None:
    holder = Plain()
    holder.o = ending()  # type: ignore[attr-defined]
    braze.graph_break()
    ENDS.append("before")
    holder.o = None  # type: ignore[attr-defined]
    ENDS.append("after")


def what_another_variable_holds_does_not_end() -> None:
    o = other = ending()
    braze.graph_break()
    ENDS.append("before")
    del o
    ENDS.append("after")
    del other
    ENDS.append("last")


def a_callback_is_called() -> None:
    o, seen = Plain(), None
    braze.graph_break()
    seen = weakref.ref(o, lambda ref: ENDS.append("called"))
    ENDS.append("before")
    del o
    ENDS.append(f"after, {seen()}")


def a_callback_of_a_method_is_called() -> None:
    held = Plain()
    o = Teller(held).tell
    braze.graph_break()
    seen = weakref.ref(o, lambda ref: ENDS.append("called"))
    ENDS.append("before")
    del o
    ENDS.append(f"after, {seen()}")


class Teller:
    def __init__(self, held: Any) -> None:
        self.held = held

    def tell(self) -> Any:
        return self.held


def in_container(make: Callable[[], Any], change: Callable[[Any], Any]) -> Callable[[], None]:
    def function() -> None:
        o = make()
        braze.graph_break()
        ENDS.append("before")
        change(o)
        ENDS.append(f"after, {len(o)}")

    return function


def made_list() -> list[Any]:
    return [Ending(), Plain()]


def made_dict() -> dict[Any, Any]:
    return {"a": Ending(), "b": 2}


def made_deque() -> Any:
    return collections.deque([Ending(), 2], maxlen=2)


def item_deleted(o: Any) -> None:
    del o[0]


def part_replaced(o: Any) -> None:
    o[:] = []


def item_replaced(o: Any) -> None:
    o["a"] = 1


def popped(o: Any) -> None:
    o.pop(0)


def key_popped(o: Any) -> None:
    o.pop("a")


def popped_for_its_truth(o: Any) -> Any:
    return o.pop("a") and None


def popped_in_a_condition(o: Any) -> None:
    if o.pop("a"):
        ENDS.append("true")


def popped_in_a_negated_condition(o: Any) -> None:
    if not o.pop("a"):
        ENDS.append("false")


def popped_beside_none(o: Any) -> None:
    if o.pop("a") is None:
        ENDS.append("none")


CONTAINERS = {
    "a list is cleared": in_container(made_list, lambda o: o.clear()),
    "a list is cleared by its class": in_container(made_list, lambda o: list.clear(o)),
    "an item is deleted": in_container(made_list, item_deleted),
    "a part is replaced": in_container(made_list, part_replaced),
    "an item is popped": in_container(made_list, popped),
    "a dict is cleared": in_container(made_dict, lambda o: o.clear()),
    "a dict is updated": in_container(made_dict, lambda o: o.update(a=3)),
    "a key is replaced": in_container(made_dict, item_replaced),
    "a key is popped": in_container(made_dict, key_popped),
    "a key is popped for its truth": in_container(made_dict, popped_for_its_truth),
    "a key is popped in a condition": in_container(made_dict, popped_in_a_condition),
    "a key is popped in a negated condition": in_container(made_dict, popped_in_a_negated_condition),
    "a key is popped beside None": in_container(made_dict, popped_beside_none),
    "a set is cleared": in_container(lambda: {Ending()}, lambda o: o.clear()),
    "a deque is cleared": in_container(made_deque, lambda o: o.clear()),
    "a deque is full": in_container(made_deque, lambda o: o.append(3)),
}


@pytest.mark.parametrize(
    "function",
    [
        *(pytest.param(function, id=name) for name, function in CONTAINERS.items()),
        a_variable_is_deleted,
        a_variable_gets_another_value,
        a_pair_gets_another_value,
        a_variable_of_a_closure_gets_another_value,
        an_attribute_gets_another_value,
        what_another_variable_holds_does_not_end,
        a_callback_is_called,
        a_callback_of_a_method_is_called,
    ],
    ids=lambda f: f.__name__,
)
def test_code_that_runs_when_an_object_dies_runs_in_its_place(function: Callable[[], None]) -> None:
    compiled, said = braze.compile(function, backend="eager"), []
    for call in (function, compiled, compiled):
        ENDS.clear()
        call()
        gc.collect()
        said.append(list(ENDS))
    assert said[0] == said[1] == said[2]


def suspended(name: str) -> Iterator[int]:
    try:
        yield 1
    finally:
        ENDS.append(f"{name} is closed")


def left_from_a_finally() -> None:
    try:
        raise KeyError("a")
    finally:
        held = suspended("held")
        next(held)
        braze.graph_break()


def left_from_a_handler_by_another_error() -> None:
    held = suspended("held")
    next(held)
    try:
        [].pop()
    except IndexError as error:
        braze.graph_break()
        inner = suspended("inner")
        next(inner)
        raise ValueError("b") from error


def left_after_two_breaks() -> None:
    held = suspended("held")
    next(held)
    try:
        raise KeyError("c")
    except KeyError:
        braze.graph_break()
        ENDS.append("between")
        braze.graph_break()
        raise


def left_through_another() -> None:
    outer = suspended("outer")
    next(outer)
    try:
        left_from_a_finally()
    finally:
        braze.graph_break()
        ENDS.append("outer goes on")


def swallowed() -> None:
    held = suspended("held")
    next(held)
    try:
        raise KeyError("d")
    except KeyError:
        braze.graph_break()
    ENDS.append("after")


def met(function: Callable[[], None]) -> list[str]:
    """What a call says, and what ends when its error is dropped; the text of the error with its traceback."""
    ENDS.clear()
    try:
        function()
    except Exception as error:
        shown = traceback.TracebackException.from_exception(error)
        shown.stack = traceback.StackSummary.from_list(
            [row for row in shown.stack if row.filename == __file__ and row.name != "met"]
        )
        text = list(shown.format())
        ENDS.append("caught")
        del error
        ENDS.append("dropped")
    else:
        text = ["none"]
    return [*ENDS, *text]


@pytest.mark.parametrize(
    "function",
    [
        left_from_a_finally,
        left_from_a_handler_by_another_error,
        left_after_two_breaks,
        left_through_another,
        swallowed,
    ],
    ids=lambda f: f.__name__,
)
def test_a_traceback_holds_what_frames_hold_that_went_on_in_a_handler(function: Callable[[], None]) -> None:
    compiled = braze.compile(function, backend="eager")
    expected = met(function)
    for _ in range(2):
        assert met(compiled) == expected
