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


class Layer(torch.nn.Module):
    def forward(self, x):
        return x


@scenario
def what_is_found_by_identity_is_looked_up_in_a_dict_in_each_call(c):
    @c
    def found(x, d, key):
        return x + 1, key in d, key not in d, dict.get(d, key)

    @c
    def taken(x, d, key):
        try:
            return x + d[key]
        except KeyError:
            return x - 1

    @c
    def lost(x, d, key):
        try:
            del d[key]
        except KeyError:
            return x - 1
        return x + 1

    for make in (
        Thing,
        Layer,
        lambda: X + 1,
        lambda: (X + 1, 2),
        lambda: (Thing(), 2),
        lambda: iter([1]),
        lambda: [].append,
    ):
        known, other = make(), make()
        for key in (known, other, known, make()):
            d = {known: 3, "name": 4}
            yield found(X, d, key)[1:]
            yield taken(X, d, key)
            yield lost(X, d, key), list(d.values())


@scenario
def methods_of_different_objects_are_looked_up_in_a_dict(c):
    class Counter:
        def count(self):
            return 1

    one, other = Counter(), Counter()
    d = {one.count: 5}

    @c
    def made(x, counter):
        return x + (1 if counter.count in d else 2)

    @c
    def given(x, method):
        return x + (1 if method in d else 2)

    for counter in (one, other, one):
        yield made(X, counter)
        yield given(X, counter.count)


@scenario
def what_an_object_stands_for_is_kept_in_a_dict(c):
    places = {}

    @c
    def f(x, key):
        places[key] = x.sum()
        return places[key] + 1, key in places

    for key in (Thing(), Layer(), X, Thing(), Layer()):
        yield f(X, key)[1], len(places)
