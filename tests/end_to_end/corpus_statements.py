"""Python's grammar: statements, scopes and ``match``."""

from __future__ import annotations

import functools

import torch

from tests.end_to_end.conformance import attempt, case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
LEVEL = 1
whole = functools.partial(case, whole=True)


@whole((X,))
def assertions(x):
    assert True
    assert x.shape[0] == 2, "never"
    try:
        assert x.shape[0] == 3, f"wrong {x.shape[0]}"
    except AssertionError as e:
        a = str(e)
    try:
        raise AssertionError
    except AssertionError as e:
        b = e.args
    return x + 1, a, b


def global_and_nested_global(x):
    global LEVEL, ADDED

    def deeper():
        global LEVEL
        LEVEL += 1
        return LEVEL

    LEVEL = LEVEL + 1
    ADDED = x * LEVEL
    return x + LEVEL, deeper(), LEVEL


@scenario
def global_statements(c):
    globals()["LEVEL"] = 1
    globals().pop("ADDED", None)
    f = c(global_and_nested_global)
    yield f(X), LEVEL, ADDED
    yield f(X), LEVEL, ADDED


@whole((X,))
def nonlocal_statements(x):
    n, log = 0, []

    def up():
        nonlocal n, x
        n += 1
        x = x + n

        def further():
            nonlocal n
            n *= 10
            log.append(n)

        further()
        return n

    def forget():
        nonlocal n
        del n

    first, second = up(), up()
    forget()
    return x, first, second, log, said(lambda: n)


@whole((X,))
def scopes_of_classes_and_comprehensions(x):
    k = 2
    a = [[k + i + j for j in range(i)] for i in range(3)]
    b = [(lambda: i)() for i in range(3)]
    c = [f() for f in [lambda: i for i in range(3)]]
    d = {i: [k for k in range(i)] for i in range(3)}
    e = [k for k in (k, k + 1)]
    return x + k, a, b, c, d, e, k


@whole((X, 2))
def comprehensions_of_every_kind(x, n):
    return (
        [i for i in range(n)],
        [i * j for i in range(3) for j in range(i) if i > j if j],
        {i % 2 for i in range(5)},
        {str(k): v for k, v in zip("ab", x)},
        tuple(i for i in range(n)),
        [row.sum() for row in x],
        [*(i for i in range(n))],
        sum([t * 2 for t in x], x[0]),
        [i for (i,) in [(1,), (2,)]],
    )


@whole(
    (X, (1, 2)),
    (X, [1, 2, 3]),
    (X, {"k": 1, "l": 2}),
    (X, "s"),
    (X, 5),
    (X, 5.0),
    (X, None),
    (X, (1, (2, 3))),
    (X, [X]),
)
def match_of_every_pattern(x, v):
    match v:
        case [torch.Tensor() as t]:
            return x + t, "tensor"
        case None | True | False:
            return x, "constant"
        case "s" | b"s" as w:
            return x, "text", w
        case int(n) if n > 7:
            return x, "large", n
        case int() | float() as n:
            return x + n, "number"
        case (1, (a, *b)):
            return x, "nested", a, b
        case (1, b):
            return x * b, "pair"
        case [1, *rest]:
            return x, "list", rest
        case {"k": k, **rest}:
            return x * k, "mapping", rest
        case _:
            return x, "other"


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


@whole((X, 0), (X, 1), (X, 2), (X, 3))
def match_of_classes(x, how):
    p = [Point(1, 2), Point(x, 3), {"p": Point(0, 0)}, (Point(1, 1), Point(2, 2))][how]
    match p:
        case Point(x=torch.Tensor() as t, y=k) if k:
            return t * k
        case Point(1, y):
            return x + y
        case {"p": Point(x=0) as q}:
            return x - q.y
        case (Point(a, b), Point(c)):
            return x * a + b + c


@whole((X,))
def match_without_a_case(x):
    match x.shape:
        case (3, *_):
            x = x + 1
        case []:
            x = x + 2
    match 5:
        case y:
            x = x * y
    match {"a": {"b": [1, {"c": 2}]}}:
        case {"a": {"b": [1, {"c": deep}]}}:
            x = x - deep
    return x


@whole((X,))
def annotations_in_functions(x):
    n: int = 3
    m: "not evaluated"  # noqa: F722, F821, F842, UP037
    (k): float = 2.0

    def f(a: int, *b: "str", c: float = 1.0) -> "list":  # noqa: UP037
        return [a, b, c]

    return x * n + k, f(1), sorted(f.__annotations__)


@whole((X,))
def pass_and_docstrings(x):
    """A docstring."""
    pass
    ...
    "an expression"  # noqa: B018
    1 + 1  # noqa: B018

    def f():
        """Documented."""

    return x + 1, f(), f.__doc__


@whole((X,))
def imports_inside(x):
    import math
    import os.path as path
    from collections import OrderedDict as Ordered
    from math import pi, sqrt

    import torch.nn.functional as F

    return F.relu(x) * sqrt(4), pi, math.floor(2.5), path.basename("a/b"), Ordered(a=1)


@case((X,))
def imports_that_fail(x):
    try:
        import no_such_module_here
    except ImportError as e:
        no_such_module_here = type(e).__name__
    try:
        from math import no_such_name
    except ImportError as e:
        no_such_name = type(e).__name__
    return x + 1, no_such_module_here, no_such_name


@whole((X,))
def evaluation_order(x):
    log = []

    def n(k):
        log.append(k)
        return k

    d = {n(1): n(2), n(3): n(4)}
    (n(5), n(6))[n(0)]
    d[n(7)] = n(8)
    n(9) + n(10) * n(11)
    (lambda *a, **k: None)(n(12), *[n(13)], k=n(14), **{"l": n(15)})
    n(16) < n(17) < n(16) < n(99)
    [n(18), n(19)][n(0) : n(1)]
    n(20) if n(21) else n(22)
    return x + len(log), log, d


@whole((X,))
def a_long_function(x):
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9 = range(10)
    b = (a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9)
    c = [a9, a8, a7, a6, a5, a4, a3, a2, a1, a0, *b, *b]
    d = {"a": a0, "b": a1, "c": a2, "d": a3, "e": a4}
    for i in range(300):
        if i == 299:
            x = x + i
    return x, b, c, d


@scenario
def what_cannot_be_captured_runs_all_the_same(c):
    async def later(x):
        return x + 1

    @c
    def f(x):
        k = later(x)
        kind = type(k).__name__
        k.close()
        return x * 2, kind

    @c
    def g(x):
        exec("y = 1")
        return x + eval("1 + 1"), sorted(locals())

    yield f(X), f(X), attempt(g, X), attempt(g, X)


@scenario
def recursion_of_closures(c):
    @c
    def f(x, n):
        def go(y, k):
            return y if k == 0 else go(y + k, k - 1)

        def even(k):
            return True if k == 0 else odd(k - 1)

        def odd(k):
            return False if k == 0 else even(k - 1)

        return go(x, n), even(n), odd(n)

    yield f(X, 3), f(X, 4), f(X, 3)


def makes_and_deletes_a_global(x):
    global MADE
    MADE = x + 1
    y = MADE * 2
    del MADE
    try:
        del MADE
    except NameError as error:
        return y, str(error)


@scenario
def deleting_globals(c):
    f = c(makes_and_deletes_a_global)
    yield f(X), f(X), "MADE" in globals()


class Link:
    def __init__(self, value, following=None):
        self.value, self.following = value, following


@whole((X,))
def loops_that_end_at_none(x):
    at, back = Link(1, Link(2, Link(3))), None
    while at is not None:
        x = x + at.value
        at = at.following
    n = 3
    while back is None:
        n -= 1
        back = None if n else "done"
    return x, back
