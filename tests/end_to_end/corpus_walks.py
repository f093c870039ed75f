"""Containers that change while a loop goes along them, and what is reached by two ways, around graph breaks."""

from __future__ import annotations

import collections
import enum
import types

import torch

import braze
from tests.end_to_end.conformance import attempt, case, said, scenario

NUMBERS = {1: 10, 2: 20, 3: 30}
X = torch.arange(3.0)


@case((NUMBERS,))
def an_item_changes_behind_a_break(d):
    found = []
    for key, value in d.items():
        braze.graph_break()
        found.append((key, value))
        d[3] = 99
    return found


@case((NUMBERS,))
def values_change_behind_a_break(d):
    found = []
    for value in d.values():
        braze.graph_break()
        found.append(value)
        d[2] = 99
    return found


@case((NUMBERS,))
def a_dict_grows_behind_a_break(d):
    for key in d:
        braze.graph_break()
        d[key + 10] = 1


@case(({1, 2, 3},))
def a_set_grows_behind_a_break(s):
    for element in s:
        braze.graph_break()
        s.add(element + 10)


@case((NUMBERS,))
def a_key_takes_the_place_of_another(d):
    found = []
    try:
        for key in d:
            braze.graph_break()
            found.append(key)
            if key == 1:
                del d[1]
                d[99] = 1
    except RuntimeError as error:
        found.append(str(error))
    return found


@case((5,))
def a_dict_of_the_functions_own_is_cleared(n):
    d = {i: -i for i in range(n)}
    del d[0]
    found = []
    try:
        for pair in d.items():
            found.append(pair)
            if pair[0] == 2:
                braze.graph_break()
                d.clear()
    except RuntimeError as error:
        found.append(str(error))
    return found


@case((NUMBERS,))
def what_was_written_before_the_loop_is_met_in_it(d):
    found = []
    d[50] = 500
    del d[1]
    for key, value in d.items():
        braze.graph_break()
        found.append((key, value))
        d[50] = 501
    return found


@case((NUMBERS,))
def loops_within_enumerate_and_zip(d):
    found = []
    for i, (a, (key, value)) in enumerate(zip("abc", d.items(), strict=True)):
        braze.graph_break()
        found.append((i, a, key, value))
        d[3] = 99
    return found


@case((NUMBERS,), (collections.OrderedDict(NUMBERS),))
def loops_that_are_over_and_dicts_that_keep_an_order(d):
    walk = iter(d)
    first = list(walk)
    found = []
    braze.graph_break()
    for key, value in d.items():
        braze.graph_break()
        found.append((key, value, list(walk)))
        d[2] = 99
    return first, found


@case((4,))
def an_iterator_is_in_the_dict_that_it_goes_along(n):
    d = {i: None for i in range(n)}
    walk = iter(d)
    d[1] = walk
    next(walk)
    braze.graph_break()
    return next(walk), next(walk), d[1] is walk, len(d)


class Record:
    def __init__(self, **fields):
        vars(self).update(fields)


@case(())
def the_namespace_of_an_object_that_the_function_makes():
    record = Record(x=1, y=2, z=3)
    space = vars(record)
    found = []
    for name, value in space.items():
        braze.graph_break()
        found.append((name, value))
        record.z = 99
    space["w"] = 4
    return found, record.w, space is vars(record), sorted(space)


@scenario
def an_object_is_given_beside_its_namespace(c):
    def by_the_object(record, space):
        record.x = 99
        return space["x"], space is vars(record)

    def by_the_namespace(space, record):
        space["x"] = 99
        return record.x, space is vars(record)

    record = Record(x=1)
    yield c(by_the_object)(record, vars(record)), vars(record)
    record = Record(x=1)
    yield c(by_the_namespace)(vars(record), record), vars(record)


@scenario
def two_arguments_become_one_object(c):
    """In a later call; the first was compiled for two."""

    @c
    def attributes(a, b):
        a.x = 99
        return b.x

    @c
    def items(a, b):
        a["x"] = 99
        return b["x"]

    @c
    def elements(a, b):
        a.append(99)
        return b[-1]

    class Slotted:
        __slots__ = ("x",)

    slotted, other = Slotted(), Slotted()
    slotted.x = other.x = 1
    for function, make in (
        (attributes, lambda: Record(x=1)),
        (attributes, lambda: types.SimpleNamespace(x=1)),
        (items, lambda: {"x": 1}),
        (elements, lambda: [1]),
    ):
        a = make()
        yield function(make(), make()), function(a, a), function(make(), make())
    yield attributes(slotted, other), attributes(other, other)


class Registry:
    record = Record(x=1)
    known: dict[str, int] = {}  # noqa: RUF012


@scenario
def what_a_class_holds_is_reached_by_its_dict(c):
    """It is that very object, written at each call."""

    @c
    def f():
        record, known = Registry.__dict__["record"], vars(Registry).get("known")
        record.x += 1
        known["n"] = known.get("n", 0) + 1
        braze.graph_break()
        name = enum.Enum.__dict__["name"]
        braze.graph_break()
        return record is Registry.record, known is Registry.known, name is vars(enum.Enum)["name"]

    Registry.record.x = 1
    Registry.known.clear()
    for _ in range(3):
        yield f(), Registry.record.x, dict(Registry.known)


@scenario
def look_ups_that_a_descriptor_hands_out(c):
    """What asks an object for its attributes is itself an attribute of its class."""

    class Asked:
        def __init__(self):
            self.names = []

        def __get__(self, obj, cls=None):
            def look(name):
                self.names.append(name)
                raise AttributeError(name)

            return look

    asked = Asked()

    class Always:
        __getattribute__ = asked

    class Missing:
        __getattr__ = asked

    class Both:
        __getattribute__ = asked
        __getattr__ = asked

    for cls in (Always, Missing, Both):
        yield attempt(c(lambda o: o.x), cls()), attempt(c(getattr), cls(), "y"), list(asked.names)


class Asked:
    """Tells what it is asked for while it is walked."""

    def __init__(self, log, answer):
        self.log = log
        self.answer = answer

    def __iter__(self):
        self.log.append("iter")
        return iter((1, 2, 3))

    def __len__(self):
        self.log.append("len")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Hinting:
    """An iterator that guesses how much is left."""

    def __init__(self, log, answer):
        self.log = log
        self.answer = answer
        self.left = 3

    def __iter__(self):
        self.log.append("iter")
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def __length_hint__(self):
        self.log.append("hint")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class ByPlace:
    def __init__(self, log, answer):
        self.log = log
        self.answer = answer

    def __getitem__(self, place):
        return (4, 5)[place]

    def __len__(self):
        self.log.append("len")
        return self.answer


def rest(first, *others):
    return others


WAYS = {
    "list": list,
    "tuple": tuple,
    "star": lambda walked: [*walked],
    "star in a tuple": lambda walked: (0, *walked),
    "arguments": lambda walked: rest(*walked),
    "unpacked": lambda walked: (lambda first, *others: others)(*walked),
    "sorted": sorted,
    "set": set,
    "elements": lambda walked: {*walked},
    "enumerate": lambda walked: list(enumerate(walked)),
    "zip": lambda walked: list(zip(walked, "abc")),
    "map": lambda walked: list(map(str, walked)),
    "extended": lambda walked: (made := [0]).extend(walked) or made,
    "sum": sum,
}


@scenario
def what_is_walked_is_asked_for_its_length_where_python_asks(c):
    def split(walked):
        first, *others = walked
        return first, others

    for name, way in {**WAYS, "split": split}.items():
        for kind, answer in (
            (Asked, 3),
            (Asked, -1),
            (Asked, TypeError("none")),
            (Hinting, 100),
            (ByPlace, 2),
        ):
            f = c(lambda x, walked, way=way: (x + 1, way(walked)))
            inside = c(lambda x, log, kind=kind, answer=answer, way=way: (x + 1, way(kind(log, answer))))
            log = []
            yield name, said(lambda: f(X, kind(log, answer))), log
            log = []
            yield said(lambda: inside(X, log)), log
