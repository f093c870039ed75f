"""Which object a thing is: ``is``, ``id``, and functions of one code that close over different variables."""

from __future__ import annotations

import torch

from tests.end_to_end.conformance import scenario

X = torch.arange(6.0).reshape(2, 3)


class Thing:
    pass


@scenario
def identity_of_objects_that_are_no_tensors(c):
    thing, other, items = Thing(), Thing(), [1]

    @c
    def f(x, a, b):
        return x + (1 if a is b else 2) + (10 if a is not b else 20) + (100 if a == b else 200)

    for a, b in (([1], [1]), (items, items), (thing, other), (thing, thing), (thing, other), ({}, {})):
        yield f(X, a, b)
        yield f(X, b, a)


@scenario
def lambdas_of_one_code_called_by_broken_calls(c):
    @c
    def f(x, numbers):
        it = iter(numbers)
        for k in iter(lambda: next(it), 0):
            x = x + k
        return x

    for _ in range(3):
        yield f(X, [1, 2, 0, 4])
    yield f(X, [3, 0])


@scenario
def callbacks_that_write_into_their_closures(c):
    def collector(found):
        def note(value):
            found.append(value * 2)
            return len(found)

        return note

    def counter():
        count = 0

        def note(value):
            nonlocal count
            count += 1
            return count

        return note

    @c
    def f(x, note):
        print(note(x.shape[0]), note(x.shape[1]))
        return x + 1

    one, two = [], []
    yield f(X, collector(one)), one
    yield f(X, collector(two)), one, two
    yield f(X, counter())
    yield f(X, counter())


@scenario
def ids_of_many_things(c):
    @c
    def f(x, things):
        seen = set()
        for thing in things:
            if id(thing) not in seen:
                seen.add(id(thing))
                x = x + thing.k
        return x, len(seen)

    def thing(k):
        made = Thing()
        made.k = k
        return made

    one, two, three = thing(1), thing(1), thing(1)
    for things in ([one, two, three], [one, two, one], [one, one, one], [three, two, one]):
        yield f(X, things)
