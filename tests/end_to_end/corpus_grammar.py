"""Every construct of Python's grammar, in functions that compute with tensors."""

from __future__ import annotations

import functools

import torch

from tests.end_to_end.conformance import attempt, case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
LEVEL = 1
HELD: list = []
whole = functools.partial(case, whole=True)


@whole((X,))
def literals_of_every_kind(x):
    return (
        x + 0xFF + 0o17 + 0b11 + 1_000,
        x * 1e-3 + 0.5,
        (
            1j * 2,
            "ab",
            b"\x00c",
            r"\n",
            """two
lines""",
            ...,
            None,
            True,
            -0.0,
            (),
        ),
    )


@whole((X, 3))
def arithmetic_operators(x, n):
    return (
        +x,
        -x,
        x + n,
        x - n,
        x * n,
        x / n,
        x // n,
        x % n,
        x**2,
        n**3,
        -n,
        ~n,
        n // 2,
        n % 2,
        n << 2,
        n >> 1,
    )


@whole((X.int(), 6))
def bit_operators(x, n):
    return x & n, x | n, x ^ n, ~x, x << 1, x >> 1, n & 3, n | 9, n ^ 5


@whole((X,))
def augmented_assignments_of_every_kind(x):
    a = b = c = d = e = x * 1
    a += 1
    b = b * 1
    b -= 2
    c = c.clone()
    c *= 3
    d = d.clone()
    d /= 4
    e = e.clone()
    e //= 2
    f = x.clone()
    f %= 2
    g = x.clone()
    g **= 2
    n = 5
    n += 1
    n -= 2
    n *= 3
    n //= 2
    n %= 4
    n **= 2
    n <<= 2
    n >>= 1
    n |= 8
    n &= 12
    n ^= 5
    q = 7
    q /= 2
    return a, b, c, d, e, f, g, n, q


@whole((X, X @ X.t()))
def matrix_products(x, w):
    w = w.clone()
    y = w @ x
    w @= w
    return y, w


@whole((X, 1), (X, 2), (X, 3))
def comparisons_chained(x, n):
    return (
        x * (0 < n < 3),
        1 <= n <= 2 != 3,
        n == 1 == True,
        not n > 2,
        n is not None,
        n in (1, 2),
        n not in [3],
    )  # noqa: E712, SIM300


@whole((X, 0, None), (X, 1, "s"), (X, 2, []))
def boolean_operators(x, n, o):
    return (
        n and x,
        n or x,
        o or n or x,
        (n and o) or x,
        not (n or o),
        x if n else o,
        (n and 5) + 1 if n else 0,
    )


@whole((X, 3), (X, 1))
def conditional_expressions(x, n):
    return x + (1 if n > 2 else 2 if n > 1 else 3), (lambda: 5 if n else 6)()


@whole((X, 4), (X, 1))
def if_elif_else(x, n):
    if n > 5:
        y = x
    elif n > 3:
        y = x + 1
    elif n == 2:
        y = x + 2
    else:
        y = x + 3
    if n:
        y = y * 2
    return y


@whole((X, 5))
def while_and_else(x, n):
    done = 0
    while n:
        n -= 1
        if n == 3:
            continue
        if n == 1:
            break
        x = x + n
    else:
        done = 1
    while n > 5:
        pass
    else:
        done += 2
    return x, n, done


@whole((X,))
def for_loops_of_every_kind(x):
    seen = []
    for i in range(3):
        seen.append(i)
    else:
        seen.append("else")
    for i, (a, *b) in enumerate([(1, 2, 3), "xyz"]):
        seen.append((i, a, b))
    for _ in ():
        seen.append("never")
    for seen[0] in (7, 8):
        x = x + seen[0]
    for row in x:
        x = x + row
    for k in {"p": 1, "q": 2}:
        seen.append(k)
    return x, seen, i, k


@whole((X,))
def deleting(x):
    a, b, c = 1, [1, 2, 3, 4], {"k": 1, "l": 2}
    del a
    del b[0], b[-1:]
    del c["k"]
    (d, e) = x, 2
    del d
    try:
        a  # noqa: B018, F821
    except UnboundLocalError as error:
        e = str(error)
    return x, b, c, e


@whole((X,))
def unpacking_of_every_kind(x):
    a, b = x
    (c, (d, e)), [f] = (1, (2, 3)), [4]
    *g, h = range(3)
    i, *j, k = "abcd"
    [l, *m] = [1]
    *n, o = (x,)
    p = q, r = 5, 6
    s = [*g, *j, 9]
    t = {*g, 9}
    u = {**{"a": 1}, "b": 2, **{"a": 3}}
    v = *g, *m
    return a + b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v


@whole((X, [1, 2], {"k": 3}))
def calls_with_stars(x, args, named):
    def f(*a, **k):
        return a, k

    def g(a, b, c=0, *, k=0, **rest):
        return a, b, c, k, rest

    return (
        x + args[0],
        f(*args, 3, *args, z=1, **named, y=2),
        g(*args, **named),
        f(*(i for i in args)),
        f(**{}),
        f(),
    )


@case((X,))
def wrong_unpackings(x):
    out = [x + 1]
    for wrong in ([1], [1, 2, 3], 5, None, "ab c"):

        def f(wrong=wrong):
            a, b = wrong
            return a, b

        out.append(said(f))
    return out


@case((X,))
def wrong_calls(x):
    def f(a, b=1, /, c=2, *, d):
        return a, b, c, d

    return (
        x + 1,
        said(lambda: f()),
        said(lambda: f(1)),
        said(lambda: f(1, d=2)),
        said(lambda: f(1, 2, 3, 4, d=5)),
        said(lambda: f(a=1, d=2)),
        said(lambda: f(1, d=2, e=3)),
        said(lambda: f(1, c=1, **{"c": 2}, d=2)),
        said(lambda: f(*5)),
        said(lambda: (lambda v: v())(5)),
        said(lambda: x.nothing),
        said(lambda: {}["k"]),
        said(lambda: [][0]),
        said(lambda: "a" + 1),
        said(lambda: len(5)),
        said(lambda: undefined_name),  # noqa: F821
    )


@whole((X,))
def positional_only_and_keyword_only(x):
    def f(a, b=2, /, c=3, *, d, e=5):
        return a + b + c + d + e

    def g(*, k=1):
        return k

    def h(a, /, **a_too):
        return a, a_too

    return x * f(1, d=4), f(1, 2, 3, d=4, e=6), f(1, c=9, d=0), g(), g(k=2), h(1, a=2)


@whole((X,))
def lambdas_of_every_form(x):
    f = lambda: 1  # noqa: E731
    g = lambda a, /, b=2, *c, d=4, **e: (a, b, c, d, e)  # noqa: E731
    h = lambda *_: lambda y: y + len(_)  # noqa: E731
    return x + f(), g(1), g(1, 3, 5, 6, d=7, z=8), h(1, 2)(x), (lambda x=x: x * 2)()


@whole((X, 5))
def walrus_in_every_place(x, n):
    out = []
    if (y := x + 1) is not None and (m := n - 1) > 2:
        out.append(m)
    while (n := n - 1) > 2:
        out.append(n)
    z = [last := i * 2 for i in range(3)]
    w = (a := 1, b := 2)
    return y, out, z, last, w, a, b, f"{(c := 5)}", c


@whole((X,))
def slices_of_every_kind(x):
    s, t = [0, 1, 2, 3, 4, 5], (1, 2, 3)
    s[1:3] = "ab"
    s[::2] = [9, 8, 7]
    u = s[:]
    u[:] = []
    return (
        x[0],
        x[0, 1],
        x[:, 1:],
        x[..., -1],
        x[None, :, ::2],
        x[1:, None],
        x[(0, 1)],
        s,
        s[-2:],
        s[::-1],
        t[1:],
        "text"[1:3],
        u,
        slice(1, 2).start,
        range(10)[2:5],
    )


@whole((X,))
def strings_and_formats(x):
    n, f, s = 5, 1.25, "it"
    return (
        x + 1,
        f"{n} {n!r} {f:.1f} {f:>8.2f} {s!s:>5} {s!a} {n:#x} {{}} {n=} {n + 1 = } {f'{n}'}",
        "%s %d %5.2f %r %%" % (s, n, f, s),
        "{0} {k} {0!r:>4}".format("a", k=1),
        s * 3 + "x",
        "-".join([s, s]),
        f"{tuple(x.shape)} {x.dtype} {x.dim()}",
        f"{'nested ' + f'{n:{n}}'}",
    )


@whole((X,))
def sets_dicts_and_their_operators(x):
    a, b = {1, 2, 3}, {3, 4}
    p, q = {"a": 1}, {"b": 2}
    c = a & b
    c |= {7}
    p |= q
    return (
        x + len(a | b),
        sorted(a - b),
        sorted(a ^ b),
        sorted(c),
        a >= {1},
        p | {"a": 3},
        p,
        "b" in p,
        p == {"a": 1, "b": 2},
    )


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
        case [torch.Tensor() as t]:
            return x + t, "tensor"
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
        case Point(1, y):
            return x + y
        case Point(x=torch.Tensor() as t, y=k) if k:
            return t * k
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
