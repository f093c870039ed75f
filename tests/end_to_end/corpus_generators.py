"""Generators and iterators."""

from __future__ import annotations

import functools
import itertools

import torch

import braze
from tests.end_to_end.conformance import attempt, case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
whole = functools.partial(case, whole=True)


@whole((X,))
def generators_with_send_and_return(x):
    def averages():
        total, count = 0, 0
        while True:
            value = yield total / count if count else None
            if value is None:
                return total
            total, count = total + value, count + 1

    g = averages()
    first = next(g)
    second = g.send(x)
    third = g.send(x + 2)
    try:
        g.send(None)
    except StopIteration as e:
        total = e.value
    return first, second, third, total, next(g, "end")


@whole((X,))
def generators_with_throw_and_close(x):
    log = []

    def g():
        while True:
            try:
                yield x
            except ValueError as e:
                log.append(str(e))
                yield "caught"
            except GeneratorExit:
                log.append("closed")
                raise
            finally:
                log.append("finally")

    a = g()
    next(a)
    got = a.throw(ValueError("v"))
    next(a)
    a.close()
    a.close()
    b = g()
    b.close()
    c = g()
    next(c)
    outcome = said(lambda: c.throw(KeyError("k")))
    return x + 1, got, log, outcome


@whole((X,))
def yield_from_of_every_kind(x):
    def inner(k):
        got = yield k
        while got:
            got = yield got * 2
        return "inner done"

    def outer():
        result = yield from inner(x)
        yield result
        yield from [1, 2]
        yield from range(2)
        yield from "ab"
        return "outer done"

    g = outer()
    seen = [next(g), g.send(3), g.send(0)]
    seen += list(g)
    return seen


@case((X,))
def yield_from_with_throw(x):
    log = []

    def inner():
        try:
            yield 1
            yield 2
        except ValueError:
            log.append("inner")
            yield 3
        finally:
            log.append("left")

    def outer():
        yield from inner()
        yield 4

    g = outer()
    return x + next(g), g.throw(ValueError()), list(g), log


@whole((X,))
def generators_as_pipelines(x):
    def rows(t):
        yield from t

    def scaled(items, k):
        for item in items:
            yield item * k

    def pairs(items):
        items = iter(items)
        for a in items:
            yield a, next(items, None)

    return (
        list(pairs(scaled(rows(x), 2))),
        sum(scaled(rows(x), 3)),
        [a for a, _ in pairs(range(5))],
        dict(enumerate(rows(x))),
    )


@whole((X,))
def infinite_and_early(x):
    def count():
        n = 0
        while True:
            yield n
            n += 1

    for n in count():
        if n == 3:
            break
        x = x + n
    first = next(n for n in count() if n > 5)
    return (
        x,
        first,
        list(zip(count(), "ab")),
        list(itertools.islice(count(), 2, 4)),
        any(n > 3 for n in count()),
    )


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Rows:
    def __init__(self, t):
        self.t = t

    def __iter__(self):
        for row in self.t:
            yield row

    def __reversed__(self):
        return iter([2, 1])

    def __len__(self):
        return 2

    def __contains__(self, item):
        return item == 5


@whole((X,))
def iterator_protocols(x):
    it = iter([1, 2, 3])
    return (
        [n for n in Countdown(3)],
        list(Countdown(2)),
        [r * 2 for r in Rows(x)],
        list(reversed(Rows(x))),
        5 in Rows(x),
        2 in Countdown(3),
        next(it),
        list(it),
        next(it, "end"),
        max(Countdown(4)),
        sum(Countdown(4)),
        tuple(Countdown(2)),
        [*Countdown(2)],
        dict(zip(Countdown(2), "ab")),
        sorted(Countdown(3)),
        list(iter([1, 2, 3].__iter__())),
    )


@case((X,))
def iter_with_a_sentinel(x):
    items = [3, 2, 1, 0]
    return x + 1, list(iter(items.pop, 3)), items


@scenario
def iterators_from_outside(c):
    it, gen = iter([1, 2, 3]), (n for n in range(5))
    f = c(lambda x: x + next(it))
    yield f(X), f(X), next(it), attempt(f, X)
    g = c(lambda x: [x + n for n in itertools.islice(gen, 2)])
    yield g(X), g(X), list(gen)
    z = zip([1, 2], [3, 4])
    h = c(lambda x: (x, list(z)))
    yield h(X), h(X)
    e = enumerate("ab")
    k = c(lambda x: x + next(e)[0])
    yield k(X), k(X), list(e)


@scenario
def generators_end_wrongly(c):
    @c
    def f(x):
        def g():
            yield 1
            raise StopIteration("inside")

        it = g()
        next(it)
        return x, said(lambda: next(it))

    @c
    def h(x):
        def g():
            yield 1

        it = g()
        return x, said(lambda: it.send(5)), list(it)

    yield attempt(f, X), attempt(h, X)


def closing(log, x, n):
    try:
        for i in range(n):
            yield x + i
    finally:
        log.append("closed")


@case((torch.ones(3), []), whole=True)
def generator_left_by_return(x, log):
    for value in closing(log, x, 2):
        return value


@case((torch.ones(3), []), whole=True)
def generator_left_by_break(x, log):
    for value in closing(log, x, 2):
        break
    log.append("after")
    return value


@case((torch.ones(3), []), whole=True)
def generators_left_by_an_error(x, log):
    try:
        for value in closing(log, x, 2):
            for other in closing(log, value, 3):
                raise ValueError
    except ValueError:
        log.append("caught")
    return other


@case((torch.ones(3), []), whole=True)
def generator_replaced_by_another(x, log):
    g = closing(log, x, 2)
    next(g)
    g = closing(log, x, 3)
    log.append("replaced")
    return next(g)


def printing(log, x):
    try:
        yield x
    finally:
        print("closing")
        log.append("closed")


@case((torch.ones(3), []))
def generator_that_breaks_the_graph_where_it_is_dropped(x, log):
    for value in printing(log, x):
        return value


def delegating(log, x, n):
    try:
        yield from closing(log, x, n)
    finally:
        log.append("outer")


@case((torch.ones(3), []), whole=True)
def generator_closed_through_another(x, log):
    g = delegating(log, x, 3)
    value = next(g)
    g.close()
    log.append("after")
    return value, list(g)


def forgiving(x):
    try:
        yield x
    except ValueError as error:
        yield x * error.args[0]
    return x + 5


def passing_on(x):
    result = yield from forgiving(x)
    yield result


@case((torch.ones(3),))
def error_thrown_through_a_generator(x):
    g = passing_on(x)
    return next(g), g.throw(ValueError(3)), next(g), list(g)


@scenario
def generators_of_frames_that_went_on_after_a_break(c):
    """They are closed when the frame lets go of them, not when whoever holds its traceback does."""

    @c
    def left(x, log):
        for value in closing(log, x, 2):
            braze.graph_break()
            if value.sum() > 3:
                break
        log.append("after")
        return value

    @c
    def failed(x, log):
        for value in closing(log, x, 2):
            braze.graph_break()
            log.add(value)

    log = []
    yield left(X, log), log
    try:
        failed(X, log)
    except AttributeError as error:
        yield log, str(error)


def noting(log, x, name):
    try:
        yield x
        yield x + 1
    finally:
        log.append(name)


class Ending:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("an object")


@case((X, []))
def generators_before_and_after_a_break_end_in_the_order_of_their_variables(x, log):
    first = noting(log, x, "first")
    y = next(first)
    braze.graph_break()
    second = noting(log, x * 2, "second")
    return y + next(second)


@case((X, []))
def a_generator_ends_after_an_object_in_a_variable_before_it(x, log):
    made = Ending(log)
    braze.graph_break()
    second = noting(log, x * 2, "second")
    return made.log is log, next(second)


@case((X, []))
def a_generator_ends_before_one_in_a_variable_behind_it(x, log):
    second = None
    first = noting(log, x, "first")
    y = next(first)
    braze.graph_break()
    second = noting(log, x * 2, "second")
    return y + next(second)


@case((X, []))
def a_generator_ends_where_its_variable_lets_go_of_it_behind_a_break(x, log):
    first, second, third = noting(log, x, "first"), noting(log, x, "second"), noting(log, x, "third")
    y = next(first) + next(second) + next(third)
    same = third
    braze.graph_break()
    del second, third
    log.append("deleted")
    first = 3
    log.append("written over")
    return y + first, next(same)


class Refusing:
    """Its attribute is missing in Python's own words, and it is drawn from in vain."""

    @property
    def missing(self):
        raise AttributeError("missing")

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration


@case((X, []), whole=True)
def a_generator_ends_with_its_frame_after_errors_that_nobody_saw(x, log):
    def left(swallow):
        swallow()
        kept = noting(log, x, "kept")
        return next(noting(log, x, "passed on")) + next(kept)

    for swallow in (
        lambda: any(isinstance(q, torch.Tensor) for q in [x]),
        lambda: getattr(Refusing(), "missing", 0),
        lambda: hasattr(Refusing(), "missing"),
        lambda: list(Refusing()),
        lambda: next(Refusing(), 0),
    ):
        y = left(swallow)
        log.append("after")
    return y


@case((X, []))
def a_generator_shows_the_programs_code_and_frame(x, log):
    left = noting(log, x, "left")
    log.append((left.gi_code.co_name, left.gi_yieldfrom, left.gi_frame is None))
    y = next(left)
    log.append((left.gi_code.co_name, left.gi_frame.f_code.co_name, sorted(left.gi_frame.f_locals)))

    def outer():
        yield from [x, x]

    draws = outer()
    next(draws)
    log.append(
        (
            type(draws.gi_yieldfrom).__name__,
            draws.gi_code.co_name,
            draws.gi_frame.f_lineno - outer.__code__.co_firstlineno,
        )
    )
    for y in draws:
        y = y + 1
    log.append((draws.gi_frame, draws.gi_code.co_name))
    return y
