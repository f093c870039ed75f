"""What CPython's own tests found: a compiled function does, raises and keeps alive what it does uncompiled, in the same words."""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import gc
import pickle
import random
import sys
import traceback
import types
import typing
import unittest.mock
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze

CASES: list[Callable[[], Any]] = []


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES.append(function)
    return function


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_a_compiled_function_does_as_it_does_uncompiled(function: Callable[[], Any]) -> None:
    expected = function()
    assert braze.compile(function, backend="eager")() == expected


def errors(*functions: Callable[[], Any]) -> list[tuple[Any, ...]]:
    """What functions raise: kind, words, and what is behind it."""
    found: list[tuple[Any, ...]] = []
    for function in functions:
        try:
            found.append(("no error", function()))
        except BaseException as e:
            links = repr(e.__context__), repr(e.__cause__), e.__suppress_context__
            found.append((type(e).__name__, str(e), *links, getattr(e, "name", None)))
    return found


class Bare:
    """An object hashed by its address."""


class Reduced:
    """An object whose copies are given its namespace."""

    def __reduce__(self) -> Any:
        return Reduced, (), self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state


class UpTo:
    """A sequence by ``__getitem__`` alone, whose end is an error."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.asked: list[int] = []

    def __getitem__(self, i: int) -> int:
        self.asked.append(i)
        if i >= self.end:
            raise ValueError(f"item {i}")
        return i


@case
def what_a_failing_sequence_gave_is_kept() -> Any:
    items, given = UpTo(3), []
    try:
        for value in items:
            given.append(value)
    except ValueError as e:
        given.append(str(e))
    return given, items.asked


@case
def an_iterator_by_index_goes_on_after_a_break() -> Any:
    items = UpTo(3)
    at = iter(items)
    first = next(at)
    braze.graph_break()
    return first, next(at), items.asked, type(at).__name__


@case
def no_more_is_unpacked_than_is_needed() -> Any:
    given = []

    def numbers() -> Iterator[int]:
        for i in range(10):
            given.append(i)
            yield i

    with contextlib.suppress(ValueError):
        _a, _b = numbers()
    return given


class Plain:
    def __add__(self, other: Any) -> Any:
        return "Plain"

    def __lt__(self, other: Any) -> Any:
        return "Plain"

    def __eq__(self, other: object) -> Any:
        return "Plain"


class Derived(Plain):
    def __radd__(self, other: Any) -> Any:
        return "Derived"

    def __gt__(self, other: Any) -> Any:
        return "Derived"

    def __eq__(self, other: object) -> Any:
        return "Derived"


@case
def an_operator_asks_the_derived_class_first() -> Any:
    return Plain() + Derived(), Plain() < Derived(), Plain() == Derived(), Derived() == Plain()


@case
def an_operator_asks_each_operand_once() -> Any:
    asked = []

    class Refusing:
        def __add__(self, other: Any) -> Any:
            asked.append("add")
            return NotImplemented

        def __eq__(self, other: object) -> Any:
            asked.append("eq")
            return NotImplemented

    return errors(lambda: Refusing() + 3, lambda: Refusing() == 3), asked


class OnlyEnter:
    def __enter__(self) -> None:
        pass


class OnlyExit:
    def __exit__(self, *error: Any) -> None:
        pass


@case
def what_is_no_context_manager_is_told_what_it_lacks() -> Any:
    def use(cls: Any) -> None:
        with cls():
            pass

    return errors(lambda: use(OnlyEnter), lambda: use(OnlyExit), lambda: use(object))


class NoError(Exception):
    def __new__(cls) -> Any:
        return 5


@case
def raise_and_except_refuse_in_pythons_words() -> Any:
    def from_a_number() -> None:
        raise ValueError from 3  # type: ignore[misc]

    def caught_by_a_tuple() -> None:
        try:
            raise KeyError(1)
        except (3,):  # type: ignore[misc]
            pass

    def of_a_number() -> None:
        raise NoError

    return errors(from_a_number, caught_by_a_tuple, of_a_number)


@case
def the_context_of_an_error_is_what_was_handled() -> Any:
    def with_an_old_one() -> None:
        error = ValueError(1)
        error.__context__ = KeyError("old")
        try:
            1 / 0
        except ZeroDivisionError:
            raise error

    def in_a_circle() -> None:
        try:
            raise ValueError(1)
        except ValueError as first:
            try:
                raise KeyError(2)
            except KeyError:
                raise first

    def after_from_none() -> None:
        try:
            raise KeyError(1)
        except KeyError:
            raise ValueError(2) from None

    return errors(with_an_old_one, in_a_circle, after_from_none)


@case
def a_hook_for_missing_attributes_has_no_context() -> Any:
    class Hook:
        def __getattribute__(self, name: str) -> Any:
            raise AttributeError(name)

        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    return errors(lambda: Hook().x, lambda: getattr(Hook(), "x", 3))


@case
def a_generator_handles_its_own_exceptions() -> Any:
    def numbers() -> Iterator[Any]:
        try:
            raise KeyError(1)
        except KeyError:
            yield repr(sys.exc_info()[1])
            yield repr(sys.exc_info()[1])
        yield repr(sys.exc_info()[1])

    at = numbers()
    seen = [next(at), repr(sys.exc_info()[1])]
    try:
        raise ValueError(2)
    except ValueError:
        seen += [next(at), repr(sys.exc_info()[1]), next(at)]
    return seen


def told(words: str) -> Any:
    """What a function sees of the exception that its caller handles."""
    braze.graph_break()
    return words, repr(sys.exc_info()[1])


def raised_again() -> None:
    braze.graph_break()
    raise


@case
def what_an_except_block_calls_knows_what_is_handled() -> Any:
    seen = []
    try:
        raise KeyError(1)
    except KeyError:
        braze.graph_break()
        seen += [told("inner"), traceback.format_exc(0)]
        try:
            raise ValueError(2)
        except ValueError:
            seen.append(told("two"))
        seen += [told("one"), errors(raised_again)]
    return seen, told("none"), repr(sys.exc_info()[1])


@case
def a_class_refuses_arguments_that_nobody_takes() -> Any:
    class Empty:
        pass

    class Returning:
        def __init__(self) -> None:
            return 3  # type: ignore[return-value]

    class Handing:
        def __new__(cls) -> Any:
            return object.__new__(cls, 1)  # type: ignore[call-arg]

    return errors(lambda: Empty(1), lambda: Empty(x=1), Returning, Handing)  # type: ignore[call-arg]


@case
def a_missing_attribute_is_told_with_its_name_and_object() -> Any:
    class Slotted:
        __slots__ = ("q",)

        @property
        def fixed(self) -> int:
            return 1

    def write(obj: Any) -> None:
        obj.fixed = 3

    one = Slotted()
    caught = []
    for name in ("foo", "q"):
        try:
            getattr(one, name)
        except AttributeError as e:
            caught.append((str(e), e.name, e.obj is one))
    return caught, errors(lambda: write(one), lambda: undefined_name, lambda: super(Slotted, one).gone)  # type: ignore[name-defined]  # noqa: F821


@case
def an_attribute_without_a_place_is_told_by_who_sets_and_deletes() -> Any:
    class Plain:
        __slots__ = ()

    class Setting(Plain):
        __slots__ = ()

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

    class Deleting(Plain):
        __slots__ = ()

        def __delattr__(self, name: str) -> None:
            object.__delattr__(self, name)

    def write(obj: Any) -> None:
        obj.gone = 3

    def delete(obj: Any) -> None:
        del obj.gone

    made = Plain(), Setting(), Deleting()
    told = errors(*(functools.partial(f, obj) for f in (write, delete) for obj in made))
    try:
        write(made[0])
    except AttributeError as error:
        return told, error.obj is made[0]


class Held(list):
    """An object whose namespace is a dict."""


class Beside:
    """An object whose attributes lie beside it."""


OUTSIDE = Held(), types.ModuleType("outside"), types.SimpleNamespace(), Beside()


@case
def an_attribute_that_is_not_there_to_be_deleted_is_told_as_the_namespace_does() -> Any:
    def delete(obj: Any) -> tuple[Any, ...]:
        try:
            del obj.gone
        except AttributeError as error:
            return str(error), error.name, error.obj is obj
        return ()

    return [delete(obj) for obj in OUTSIDE]


@case
def the_fields_of_an_error_outlive_a_break() -> Any:
    try:
        object().gone  # type: ignore[attr-defined]
    except AttributeError as e:
        e.add_note("a note")
        braze.graph_break()
        return e.name, type(e.obj), e.__notes__, traceback.format_exception_only(e)


@case
def iterators_are_copied_where_they_stand() -> Any:
    back = reversed([1, 2, 3])
    ordered = iter(collections.OrderedDict(a=1, b=2, c=3))
    next(back), next(ordered)
    braze.graph_break()
    copies = copy.copy(back), pickle.loads(pickle.dumps(back)), copy.copy(ordered)
    return [list(at) for at in (*copies, back, ordered)]


@case
def what_is_made_of_a_name_belongs_to_its_caller() -> Any:
    made = (
        collections.namedtuple("Made", "a b"),
        enum.Enum("Made", "x y"),
        typing.NamedTuple("Made", [("a", int)]),
    )  # type: ignore[misc]
    return [cls.__module__ for cls in made]


@case
def a_container_that_is_emptied_while_it_is_compared_says_so() -> Any:
    class Emptying:
        def __eq__(self, other: object) -> bool:
            items.clear()
            return True

    items: collections.deque[Any] = collections.deque([Emptying(), Emptying()])
    braze.graph_break()
    return errors(lambda: items.count(3))


@case
def a_queue_may_hold_itself() -> Any:
    items: collections.deque[Any] = collections.deque("ab", 7)
    items.append(items)
    braze.graph_break()
    return len(items), items[-1] is items, items.maxlen


class WithMore(BaseExceptionGroup):
    extra: int

    def __new__(cls, message: str, errors: Any, extra: int) -> Any:
        made = super().__new__(cls, message, errors)
        made.extra = extra
        return made

    def derive(self, errors: Any) -> Any:
        return WithMore(self.message, errors, self.extra)


@case
def a_group_of_errors_with_a_new_of_its_own() -> Any:
    group = WithMore("m", [ValueError(1), KeyError(2)], 7)
    braze.graph_break()
    match, rest = group.split(ValueError)
    return repr(match), repr(rest), match.extra, group.message, repr(group.args)


class Counted:
    alive = 0
    hashed = 0

    def __init__(self) -> None:
        Counted.alive += 1

    def __del__(self) -> None:
        Counted.alive -= 1


class Key:
    def __hash__(self) -> int:
        Counted.hashed += 1
        return 3


@case
def finalizers_and_hashes_run_as_often_as_they_do() -> Any:
    Counted.alive = Counted.hashed = 0
    for _ in range(3):
        Counted()
    keys = {Key(): 1, Key(): 2}
    braze.graph_break()
    return Counted.alive, Counted.hashed, list(keys.values())


class Asked(type):
    asked: list[str] = []

    def __instancecheck__(cls, value: Any) -> bool:
        Asked.asked.append("instance")
        return True

    def __getitem__(cls, key: Any) -> Any:
        Asked.asked.append("item")
        return key


@case
def a_metaclass_is_asked_as_often_as_it_is() -> Any:
    class Made(metaclass=Asked):
        pass

    Asked.asked = []
    return isinstance(3, Made), isinstance(3, (str, Made)), Made[4], list(Asked.asked)


@case
def what_is_dropped_is_gone() -> Any:
    class Node:
        me: Any

    node = Node()
    node.me = node
    alive = weakref.ref(node)
    braze.graph_break()
    before = alive() is not None
    del node
    gc.collect()
    return before, alive() is None


class Numbered:
    """An object hashed by a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)


@case
def a_weak_reference_keeps_the_hash_that_it_was_asked_for() -> Any:
    first, second, third = Numbered(1), Numbered(2), Bare()
    asked, unasked, other = weakref.ref(first), weakref.ref(second), weakref.ref(third)
    number = hash(asked), hash(other) == hash(third)
    del first, second
    braze.graph_break()
    del third
    return number, hash(asked), errors(lambda: hash(unasked)), isinstance(hash(other), int)


@case
def a_variable_that_nobody_reads_holds_what_a_weak_reference_is_made_to() -> Any:
    known = {}

    def hold() -> int:
        only_here = lambda: ()
        known[weakref.ref(only_here, known.pop)] = None
        return len(known)

    return hold(), len(known)


@case
def a_class_made_in_a_call_ends_with_its_instances() -> Any:
    class Made:
        me: Any

        def named(self) -> str:
            return type(self).__name__

    one = Made()
    one.me = one
    seen = weakref.ref(Made)
    braze.graph_break()
    text = one.named() + one.me.named()
    braze.graph_break()
    del one, Made
    gc.collect()
    return text, seen() is None


@case
def arrays_are_written_once() -> Any:
    numbers = array.array("b", range(5))
    same = numbers
    del numbers[0]
    numbers += array.array("b", [7])
    numbers *= 2
    numbers[1:2] = array.array("b", [8, 9])
    braze.graph_break()
    del numbers[:2]
    return numbers, numbers is same


@pytest.mark.parametrize("times", [1, 2])
def test_an_array_from_outside_is_written_once(times: int) -> None:
    kept, added = array.array("b", [1, 2, 3]), array.array("b", [4])

    def write(target: Any) -> Any:
        target += added
        del target[0]
        target *= 2
        return target

    compiled = braze.compile(write, backend="eager")
    for _ in range(times):
        assert compiled(kept) is kept
    plain = array.array("b", [1, 2, 3])
    for _ in range(times):
        write(plain)
    assert kept == plain


@case
def a_huge_number_comes_through_a_break() -> Any:
    number = 10 ** int("5000")
    braze.graph_break()
    return number % 1000003, -number % 1000003, number.bit_length()


@case
def a_weak_proxy_says_that_its_object_is_gone() -> Any:
    def proxy_of_nothing() -> Any:
        return weakref.proxy(UpTo(1))

    proxy = proxy_of_nothing()
    braze.graph_break()
    try:
        return proxy.end
    except ReferenceError:
        return "gone"


@case
def keywords_keep_the_order_of_an_ordered_dict() -> Any:
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.move_to_end("a")

    def take(**words: int) -> list[str]:
        return list(words)

    return take(**ordered), list({**ordered})


@case
def a_hash_made_of_an_address_is_that_of_the_object() -> Any:
    made = Bare()
    number, mixed = hash(made), hash((made, 1))
    braze.graph_break()
    return hash(made) == number, hash((made, 1)) == mixed, {number: 1}[hash(made)]


def test_a_hash_of_what_comes_in_is_not_that_of_another() -> None:
    compiled = braze.compile(lambda value: hash(value), backend="eager")
    values = (Bare(), Bare(), (1, "a"), frozenset({2}), len, Bare, (Bare(), 1))
    for value in (*values, *values):
        assert compiled(value) == hash(value)


@case
def a_partial_keeps_the_attributes_put_on_it() -> Any:
    part = functools.partial(int, base=2)
    part.note, part.itself = [1], part  # type: ignore[attr-defined]
    braze.graph_break()
    return part.note, part.itself is part, part("11")  # type: ignore[attr-defined]


@case
def errors_may_be_each_others_context() -> Any:
    one, two = ValueError(1), KeyError(2)
    one.__context__, two.__context__ = two, one
    braze.graph_break()
    return one.__context__ is two, two.__context__ is one, one.args, two.args


@case
def an_error_may_be_its_own_argument() -> Any:
    error = ValueError()
    error.args = (error,)
    braze.graph_break()
    return error.args[0] is error


@case
def objects_share_the_namespace_that_they_were_given() -> Any:
    one, two = Bare(), Bare()
    one.__dict__ = two.__dict__ = {"a": 1}
    braze.graph_break()
    one.b = 2  # type: ignore[attr-defined]
    return vars(two), sorted(vars(one))


@case
def a_copy_takes_over_the_namespace_of_the_original() -> Any:
    one = Reduced()
    one.a = [1]  # type: ignore[attr-defined]
    other = copy.copy(one)
    return other.a, other.a is one.a, vars(other)  # type: ignore[attr-defined]


@case
def a_class_is_named_after_the_module_that_asks_for_it() -> Any:
    made = dataclasses.make_dataclass("made", [("a", int)])
    return made.__module__ == "types" or made.__module__ == __name__, made(1).a


@case
def a_classmethod_of_a_descriptor() -> Any:
    class Asked:
        def __call__(self, *args: Any) -> Any:
            return "called", len(args)

        def __get__(self, owner: Any, cls: Any = None) -> Any:
            return lambda *args: ("bound", len(args), owner is cls)

    class Holder:
        method = classmethod(Asked())  # type: ignore[arg-type]

    return Holder.method(3), Holder().method(4)


class Loud:
    """A stream that refuses to be written to."""

    def write(self, text: str) -> None:
        raise RuntimeError(text)


@case
def what_printing_raises_is_handled_where_it_is_printed() -> Any:
    with contextlib.redirect_stdout(Loud()):  # type: ignore[type-var]
        try:
            print("a")
            return "printed"
        except RuntimeError as error:
            return str(error)


def yielding(value: int) -> Iterator[int]:
    kept = value

    def inner() -> int:
        return kept

    yield inner()


@case
def an_error_thrown_into_a_generator_that_has_not_begun_shows_it() -> Any:
    try:
        yielding(1).throw(KeyError("a"))
    except KeyError as error:
        rows = traceback.extract_tb(error.__traceback__)
        return [(row.name, row.lineno, row.line) for row in rows]


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_is_handled_where_it_is_given() -> None:
    def warned() -> str:
        try:
            warnings.warn("a", stacklevel=1)
            return "said"
        except UserWarning as error:
            return str(error)

    assert braze.compile(warned, backend="eager")() == warned() == "a"


class Always(contextlib.AbstractContextManager[list[tuple[Any, ...]]]):
    """Every warning, with its place."""

    def __enter__(self) -> list[tuple[Any, ...]]:
        self.found: list[tuple[Any, ...]] = []
        self.caught = warnings.catch_warnings(record=True)
        self.given = self.caught.__enter__()
        warnings.simplefilter("always")
        return self.found

    def __exit__(self, *error: Any) -> None:
        self.caught.__exit__(*error)
        self.found += [(w.filename, w.lineno, w.category, str(w.message)) for w in self.given or ()]


def told_by_c_code() -> list[bool]:
    first = bool(NotImplemented)
    warnings.warn("between")
    return [first, not NotImplemented, bool(NotImplemented)]


def test_a_warning_of_c_code_names_the_programs_line_at_each_call() -> None:
    compiled = braze.compile(told_by_c_code, backend="eager")
    with Always() as expected:
        told_by_c_code()
    assert len(expected) == 4
    for _ in range(2):
        with Always() as found:
            compiled()
        assert found == expected


def test_a_warning_of_pytorch_about_what_is_traced_names_the_programs_line() -> None:
    def copied(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(x)

    with Always() as expected:
        copied(torch.ones(2))
    with Always() as found:
        braze.compile(copied, backend="eager")(torch.ones(2))
    assert expected[0][0] == __file__ and found[0] == expected[0]


def test_a_warning_that_the_program_makes_an_error_is_raised_where_c_code_gives_it() -> None:
    def tells() -> str:
        try:
            return str(bool(NotImplemented))
        except DeprecationWarning as e:
            return type(e).__name__

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert braze.compile(tells, backend="eager")() == tells() == "DeprecationWarning"


@unittest.mock.patch("random.Random.random")
def drawn_from_a_mock(mock: Any) -> float:
    mock.side_effect = [0.45]
    return random.gammavariate(1.0, 3.14)


def test_what_is_put_in_place_of_a_generators_method_is_called_once() -> None:
    assert braze.compile(drawn_from_a_mock, backend="eager")() == drawn_from_a_mock() > 1.8


def test_what_a_long_jump_raises_is_told_at_its_line() -> None:
    """A jump over much code has its distance in two instructions; what follows it, ``if True:``, in one that does nothing."""
    body = "".join(f"        y = y * x.dim() + {i}\n" for i in range(60))
    text = f"def f(x, y):\n    if x > 0:\n        if True:\n            pass\n{body}    return y\n"
    space: dict[str, Any] = {}
    exec(compile(text, "<long>", "exec"), space)

    def line(f: Callable[..., Any]) -> list[int | None]:
        with pytest.raises(RuntimeError) as caught:
            f(torch.ones(3), 1)
        rows = traceback.extract_tb(caught.value.__traceback__)
        return [row.lineno for row in rows if row.filename == "<long>"]

    assert line(braze.compile(space["f"], backend="eager")) == line(space["f"]) == [2]
