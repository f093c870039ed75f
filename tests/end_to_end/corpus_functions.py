"""Functions, closures, decorators and functools; generators and iterators; exceptions and ``with``."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import operator
import traceback

import torch

from tests.end_to_end.conformance import attempt, case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
whole = functools.partial(case, whole=True)


# -- decorators and functools


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


# -- generators and iterators


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


# -- exceptions


@whole((X, 0), (X, 1), (X, 2), (X, 3))
def the_paths_of_try(x, how):
    log = []
    for _ in range(2):
        try:
            log.append("try")
            if how == 1:
                raise KeyError("k")
            if how == 2:
                continue
            if how == 3:
                break
        except (KeyError, ValueError) as e:
            log.append(e.args)
        else:
            log.append("else")
        finally:
            log.append("finally")
        x = x + 1
    else:
        log.append("for else")
    return x, log


@whole((X,))
def errors_of_python(x):
    def error(f):
        try:
            return f()
        except Exception as e:
            return type(e).__name__, str(e)

    return (
        x * 2,
        error(lambda: 1 // 0),
        error(lambda: {}["missing"]),
        error(lambda: [1][5]),
        error(lambda: int("x")),
        error(lambda: None.attribute),
        error(lambda: next(iter([]))),
        error(lambda: (1, 2) + [3]),
        error(lambda: "a" < 1),
        error(lambda: [].remove(1)),
        error(lambda: dict([1])),
        error(lambda: "".join([1])),
        error(lambda: float("y")),
        error(lambda: range(1, 2, 0)),
        error(lambda: hash([])),
        error(lambda: iter(5)),
        error(lambda: 2**-1),
        error(lambda: [1, 2].index(3)),
        error(lambda: max([])),
        error(lambda: object().a),
        error(lambda: setattr(object(), "a", 1)),
    )


@case((X,))
def nested_handlers(x):
    log = []

    def deep(n):
        try:
            if n == 0:
                raise ValueError("deep")
            deep(n - 1)
        except ValueError as e:
            log.append((n, str(e), e.__context__ is None))
            raise RuntimeError(n) from e
        finally:
            log.append(("left", n))

    try:
        deep(1)
    except RuntimeError as e:
        chain = [
            type(e).__name__,
            e.args,
            type(e.__cause__).__name__,
            type(e.__cause__.__cause__).__name__ if e.__cause__.__cause__ else None,
        ]
    return x + 1, log, chain


class Refused(Exception):
    def __init__(self, code, *, why="because"):
        super().__init__(code, why)
        self.code = code
        self.why = why

    def __str__(self):
        return f"{self.code}: {self.why}"


class RefusedAgain(Refused, LookupError):
    pass


@whole((X,))
def exception_classes(x):
    try:
        raise RefusedAgain(5, why="testing")
    except LookupError as e:
        a = (str(e), e.code, e.args, isinstance(e, Refused), repr(e))
    try:
        raise Refused
    except TypeError as e:
        b = "missing" in str(e)
    try:
        raise KeyError
    except KeyError as e:
        c = e.args
    try:
        raise ValueError("a", 1) from None
    except ValueError as e:
        d = (e.args, e.__cause__, e.__suppress_context__)
    return x, a, b, c, d


@case((X,))
def exceptions_that_are_returned(x):
    def fail():
        raise Refused(3)

    try:
        fail()
    except Refused as e:
        kept = e
    return (
        x + 1,
        kept,
        kept.__traceback__ is not None,
        [f.name for f in traceback.extract_tb(kept.__traceback__)],
    )


@whole((X,))
def return_in_finally(x):
    def a():
        try:
            raise ValueError
        finally:
            return 1  # noqa: B012

    def b():
        for i in range(3):
            try:
                continue
            finally:
                if i == 1:
                    break  # noqa: B012
        return i

    def c():
        try:
            return 1
        finally:
            log.append("late")

    log = []
    return x + a(), b(), c(), log


@case((X,))
def exception_groups(x):
    log = []
    try:
        raise ExceptionGroup("several", [ValueError("v"), KeyError("k"), TypeError("t")])
    except* ValueError as g:
        log.append([str(e) for e in g.exceptions])
    except* (KeyError, TypeError) as g:
        log.append([str(e) for e in g.exceptions])
    try:
        try:
            raise OSError("single")
        except* OSError as g:
            log.append(type(g).__name__)
    except ExceptionGroup:
        log.append("never")
    return x + 1, log


# -- with


class Scope:
    def __init__(self, log, name, swallow=False):
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self):
        self.log.append(("enter", self.name))
        return self.name

    def __exit__(self, kind, value, tb):
        self.log.append(("exit", self.name, kind, str(value), tb is None))
        return self.swallow


@whole((X, 0), (X, 1), (X, 2))
def with_of_every_form(x, how):
    log = []
    with Scope(log, "a") as a, Scope(log, "b", swallow=True) as (b):
        x = x + len(a + b)
        if how == 1:
            raise KeyError("inside")
        if how == 2:
            return x, log
    with (
        Scope(log, "c") as log[0],
        Scope(log, "d"),
    ):
        for i in range(2):
            with Scope(log, i):
                if i:
                    break
    return x, log


@case((X,))
def with_that_fails_on_the_way(x):
    log = []

    class Bad:
        def __enter__(self):
            raise ValueError("entering")

        def __exit__(self, *exc):
            log.append("never")

    class Worse:
        def __enter__(self):
            return 1

        def __exit__(self, *exc):
            raise RuntimeError("leaving")

    def use(*managers):
        with Scope(log, "outer"):
            with managers[0]:
                log.append("body")
                raise KeyError("body")

    def none():
        with 5:
            pass

    return x + 1, said(lambda: use(Bad())), said(lambda: use(Worse())), said(none), log


@whole((X, False), (X, True))
def managers_of_contextlib(x, fail):
    log = []

    @contextlib.contextmanager
    def logged(name):
        log.append(name)
        try:
            yield name
        except ValueError as e:
            log.append(str(e))
        finally:
            log.append("left " + name)

    with logged("a") as a, contextlib.nullcontext(5) as n, contextlib.suppress(KeyError):
        x = x + n
        if fail:
            raise ValueError("v")
        raise KeyError
    with contextlib.closing(Countdown2()) as c:
        pass
    return x, a, log, c.closed


class Countdown2:
    closed = False

    def close(self):
        self.closed = True


@whole((X,))
def exit_stacks(x):
    log = []
    with contextlib.ExitStack() as stack:
        for name in "ab":
            stack.enter_context(Scope(log, name))
        stack.callback(log.append, "called back")
        x = x * 2
    return x, log


class Repeated(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False


@whole((X,))
def managers_as_decorators(x):
    @Repeated()
    def f(y):
        return y + 1

    @torch.no_grad()
    def g(y):
        return y * 2, torch.is_grad_enabled()

    return f(x), g(x)


@scenario
def locks_around_a_graph(c):
    import threading

    lock = threading.Lock()

    @c
    def f(x):
        with lock:
            held = lock.locked()
            y = x + 1
        return y, held, lock.locked()

    yield f(X), f(X), lock.locked()
