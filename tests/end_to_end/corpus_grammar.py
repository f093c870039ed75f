"""Python's grammar: expressions, calls and simple statements."""

from __future__ import annotations

import functools

import torch

from tests.end_to_end.conformance import case, said

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
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


@case((X,), whole=True)
def what_is_no_mapping_is_spread(x):
    def f(*args, **named):
        return named

    outcomes = [
        said(lambda: f(**1)),
        said(lambda: f(a=1, **[2])),
        said(lambda: {**1}),
        said(lambda: {"a": 1, **X}),
    ]
    return x + 1, [(kind.__name__, text) for kind, text in outcomes]


@case((X,))
def names_that_a_class_is_matched_by_are_text(x):
    class Odd:
        __match_args__ = (1,)

    match Odd():
        case Odd(2):
            return x


@case((X,), whole=True)
def a_generator_has_the_name_of_its_function(x):
    def counting():
        yield 1

    return x + 1, counting().__name__, counting().__qualname__, (y for y in ()).__name__
