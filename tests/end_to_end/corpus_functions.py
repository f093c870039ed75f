"""Functions, closures, decorators and functools."""

from __future__ import annotations

import functools
import inspect
import operator
import sys

import torch

import braze
from tests.end_to_end.conformance import attempt, case, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
whole = functools.partial(case, whole=True)


def times(k):
    def decorate(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            return fn(*args, **kwargs) * k

        inner.times = k
        return inner

    return decorate


@times(2)
@times(3)
def shifted(x, by=1):
    """Shift."""
    return x + by


@whole((X,), (Y,))
def stacked_decorators(x):
    return (
        shifted(x),
        shifted(x, by=2),
        shifted.times,
        shifted.__name__,
        shifted.__doc__,
        shifted.__wrapped__.times,
    )


@whole((X,))
def decorators_inside(x):
    def add(k):
        return lambda fn: lambda y: fn(y) + k

    @add(1)
    @add(2)
    def f(y):
        return y * 10

    @times(2)
    def g(y):
        return y

    return f(x), g(x), g.__name__


@whole((X, 2), (X, 3))
def partials_of_every_kind(x, n):
    p = functools.partial(torch.add, x)
    q = functools.partial(lambda a, b, *, c: (a, b, c), 1, c=n)
    r = functools.partial(q, 2, c=5)
    s = functools.partial(functools.partial(operator.mul, n))
    return p(1), q(7), q(7, c=8), r(), s(x), p.func is torch.add, q.args, q.keywords, r.args


@scenario
def partials_from_outside(c):
    def scale(x, k, *, bias=0):
        return x * k + bias

    p = functools.partial(scale, k=2)
    f = c(lambda x: p(x) + p(x, bias=1))
    yield f(X)
    p.keywords["k"] = 3
    yield f(X)
    f = c(functools.partial(scale, k=5).func)
    yield f(X, 4)


class Partly:
    def method(self, x, k):
        return x * k

    doubled = functools.partialmethod(method, k=2)


@whole((X,))
def partial_methods(x):
    return Partly().doubled(x), Partly().method(x, 3)


@functools.singledispatch
def shown(value):
    return "object", value


@shown.register
def _(value: int):
    return "int", value + 1


@shown.register(list)
@shown.register(tuple)
def _sequence(value):
    return "sequence", len(value)


@shown.register(torch.Tensor)
def _tensor(value):
    return "tensor", value * 2


@case((X,))
def single_dispatch(x):
    return shown(x), shown(1), shown([1, 2]), shown((1,)), shown("s"), shown(True)


@functools.lru_cache(maxsize=None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.cache
def mask_size(n, *, twice=False):
    return n * 2 if twice else n


@case((X, 5), (X, 10))
def cached_functions(x, n):
    return x + fibonacci(n), mask_size(n), mask_size(n, twice=True)


@whole((X,))
def reduce_map_filter(x):
    return (
        functools.reduce(lambda a, b: a * b, [x, x, 2]),
        functools.reduce(operator.add, list(x)),
        functools.reduce(lambda a, b: a + b, [1, 2, 3], 10),
        list(map(lambda a, b: a + b, x, [1, 2])),
        [t for t in filter(None, [0, 1, 2])],
        [t.sum() for t in filter(lambda t: t.dim() == 1, [x, x[0]])],
        sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)),
    )


@whole((X,))
def signatures(x):
    def f(a, b: int = 2, *c, d, e=5, **g):
        return a

    s = inspect.signature(f)
    return (
        x + len(s.parameters),
        list(s.parameters),
        s.parameters["b"].default,
        s.parameters["d"].kind is inspect.Parameter.KEYWORD_ONLY,
        s.parameters["a"].default is inspect.Parameter.empty,
        "e" in s.parameters,
        inspect.isfunction(f),
        inspect.ismethod(f),
        inspect.isclass(int),
        callable(f),
    )


def declared(a, b=3, *, c=4):
    return a


@whole((X,))
def signatures_of_outside_functions(x):
    names = inspect.signature(declared).parameters
    kwargs = {k: v for k, v in {"b": 5, "z": 6}.items() if k in names}
    return (
        declared(x, **kwargs),
        kwargs,
        inspect.getfullargspec(declared).args,
        declared.__defaults__,
        declared.__kwdefaults__,
    )


@whole((X,))
def attributes_of_functions(x):
    def f():
        """Text."""

    f.note = 5
    f.__name__ = "renamed"
    g = lambda a=1: a  # noqa: E731
    return (
        x + f.note,
        f.__name__,
        f.__doc__,
        g.__name__,
        g.__defaults__,
        g.__code__.co_argcount,
        f.__qualname__,
        hasattr(f, "none"),
        g.__closure__,
        f.__module__,
    )


@whole((X,))
def methods_as_values(x):
    add, items = x.add, [].append
    items(1)
    up = "abc".upper
    f = torch.Tensor.mul
    return add(1), f(x, 2), up(), items.__self__, list(map(str.title, ["a", "b"])), torch.add.__name__


@scenario
def closures_shared_by_functions(c):
    def counter():
        n = 0

        def up(k=1):
            nonlocal n
            n += k
            return n

        def value():
            return n

        return up, value

    up, value = counter()
    f = c(lambda x: (x + up(), value(), up(2)))
    yield f(X), value()
    yield f(X), value()

    @c
    def made(x):
        up, value = counter()
        up()
        return x + up(), up, value

    y, mine, seen = made(X)
    yield y, mine(), seen(), mine(5), seen()


@scenario
def a_decorated_function_is_compiled(c):
    f = c(times(4)(lambda x: x + 1))
    yield f(X), f(X)
    g = times(5)(c(lambda x: x + 1))
    yield g(X), g(X)


def counter():
    count = 0

    def step(by=1):
        nonlocal count
        count += by
        return count

    return step


@scenario
def contents_of_a_cell_that_changes(c):
    step = counter()

    @c
    def fn(x):
        before = step.__closure__[0].cell_contents
        step(2)
        return x + before * 10 + step.__closure__[0].cell_contents

    for _ in range(3):
        yield fn(torch.ones(2)), step(1)


@scenario
def contents_put_into_a_cell(c):
    step = counter()

    @c
    def fn(x, n):
        step.__closure__[0].cell_contents = n
        step()
        return x + getattr(step.__closure__[0], "cell_contents")

    for n in (5, 6, 6):
        yield fn(torch.ones(2), n), step(0)


@scenario
def a_variable_of_a_closure_is_deleted_and_read_after_a_break(c):
    @c
    def deleted(x):
        def held():
            return x  # noqa: F821

        braze.graph_break()
        del x
        braze.graph_break()
        try:
            return x
        except NameError as error:
            own = type(error), str(error), error.name
        try:
            del x  # noqa: F821
        except UnboundLocalError as error:
            again = str(error)
        try:
            return held()
        except NameError as error:
            return own, again, type(error), str(error), error.name

    def around(x):
        def drop():
            nonlocal x
            y = x + 1
            del x
            return y

        return drop, lambda: x

    yield deleted(X)
    for _ in range(3):
        drop, read = around(X)
        yield c(drop)(), attempt(read)


@whole((X,))
def builtins_refuse_arguments_that_they_do_not_take(x):
    said = []
    for function in (
        getattr,
        isinstance,
        issubclass,
        iter,
        next,
        len,
        bool,
        id,
        operator.index,
        sys.exc_info,
    ):
        for args, kwargs in (((), {"x": 1}), ((1, 2, 3, 4), {}), ((1,), {"x": 1})):
            try:
                said.append(function(*args, **kwargs))
            except TypeError as error:
                said.append(str(error))
    for function in (getattr, isinstance, issubclass, iter, next, len, id, operator.index):
        try:
            said.append(function())
        except TypeError as error:
            said.append(str(error))
    return x + 1, said
