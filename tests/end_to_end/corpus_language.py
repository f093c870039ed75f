"""Python the language, as model code uses it."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import torch

from tests.end_to_end.conformance import attempt, case, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
SCALE = 2.0
TABLE: dict[str, Any] = {"k": 3}
SEEN: list[Any] = []


@case((X, 2), (X, 3), (X, 2.5), (X, True))
def defaults_and_keywords(x, a, b=3, *rest, k=1, **kw):
    return x * a + b * k, rest, kw, type(a)


@scenario
def calls_of_every_form(c):
    @c
    def f(x, /, a, b=3, *rest, k=1, **kw):
        return x * a + b * k, rest, kw

    yield f(X, 1), f(X, 1, 2), f(X, a=1), f(X, 1, 2, 3, 4, k=5, z=X), f(X, b=1, a=2, x=3)
    yield attempt(f), attempt(f, X), attempt(f, X, 1, a=1), attempt(f, a=2)


@scenario
def keyword_only_without_default(c):
    @c
    def f(x, *, k):
        return x + k

    yield f(X, k=1), f(X, k=2), attempt(f, X), attempt(f, X, 1), attempt(f, X, q=1)


@scenario
def defaults_replaced_between_calls(c):
    def f(x, k=1, *, j=2):
        return x * k + j

    g = c(f)
    yield g(X)
    f.__defaults__ = (5,)
    yield g(X)
    f.__kwdefaults__["j"] = 7
    yield g(X)


@scenario
def a_mutable_default(c):
    @c
    def f(x, seen=[]):
        seen.append(x.shape[0])
        return x, seen

    yield f(X)
    yield f(X)
    yield f(X, [1])


@scenario
def closures_and_nonlocal(c):
    count, scale = 0, 2.0

    @c
    def f(x):
        nonlocal count
        count += 1
        return x * scale + count

    yield f(X), count
    yield f(X), count
    scale = 3.0
    yield f(X), count


@scenario
def closures_made_inside(c):
    @c
    def f(x):
        total = []

        def add(y):
            nonlocal x
            x = x + y
            total.append(y)
            return x

        fns = [lambda v, i=i: add(v * i) for i in range(3)]
        late = [lambda v: v + i for i in range(3)]
        return [g(x) for g in fns], [g(x) for g in late], total

    yield f(X)
    yield f(X)


@scenario
def a_returned_closure(c):
    @c
    def f(x, k):
        def later(y):
            return y + x * k

        return later

    g = f(X, 2)
    yield g(Y), g.__name__, len(g.__closure__), f(X, 2)(X), f(X, 3)(X)


@scenario
def an_empty_closure_cell(c):
    @c
    def f(x):
        if x.shape[0] > 5:
            y = x

        def g():
            return y

        return g()

    yield attempt(f, X)
    yield attempt(f, X)


@scenario
def unbound_names(c):
    @c
    def f(x, k):
        if k:
            z = x
        return z + 1

    yield f(X, 1), attempt(f, X, 0), attempt(c(lambda x: x + NOT_THERE), X)  # noqa: F821


def doubled(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) * 2

    return wrapper


@doubled
def _inner(x, k=1):
    return x + k


@case((X,), (Y,))
def decorators(x):
    return _inner(x), _inner(x, k=2), _inner.__name__


@scenario
def partials(c):
    def f(a, b, c=1):
        return a * b + c

    p = functools.partial(f, X, c=5)
    yield c(p)(Y), c(p)(Y, c=2), c(lambda y: functools.partial(f, y, c=2)(y))(X)
    yield c(functools.partial(p, Y))()


@case((X,), kernels=True)
def comprehensions(x):
    squares = [x[i] * j for i in range(2) for j in range(3) if j != 1]
    named = {f"r{i}": row for i, row in enumerate(x)}
    return squares, named, {i % 2 for i in range(5)}, [[j for j in range(i)] for i in range(3)]


@case((X,), (Y,))
def generators(x):
    def rows(t):
        for row in t:
            got = yield row * 2
            if got:
                yield got

    g = rows(x)
    first = next(g)
    sent = g.send(x.sum())
    g.close()

    def both():
        done = yield from rows(x)
        return done

    return (
        first,
        sent,
        list(both()),
        sum(r.sum() for r in rows(x)),
        tuple(t for t in x),
        any(i > 1 for i in range(3)),
    )


@scenario
def a_generator_is_returned(c):
    @c
    def f(x):
        return (row + 1 for row in x)

    yield list(f(X))
    yield list(f(X))


@scenario
def a_generator_function_is_compiled(c):
    @c
    def f(x):
        for row in x:
            yield row + 1

    yield list(f(X)), list(f(X))


@case((X, "n"), (X, "m"))
def strings(x, name):
    label = f"{name!r:>5}|{x.shape[0]:03d}|{x.dtype}|{list(x.shape)}|{3.14159:.2f}"
    pieces = "a,b,c".split(",") + ["%s-%d" % (name, 3), "{}:{k}".format(1, k=2), name.upper() * 2]
    return label, pieces, name.join(["x", "y"]), label.startswith("'"), "b" in pieces, x + len(label)


@case((X, 4), (X, 5), (X, 4))
def walrus(x, n):
    if (m := n * 2) > 8:
        x = x + m
    return x, m, [y for i in range(4) if (y := i * n) % 2 == 0]


@case((X, [1, 2, 3]), (X, {"op": "add", "by": 2}), (X, (1,)), (X, "s"), (X, 3.0), (X, None), (X, []))
def match_statement(x, what):
    match what:
        case [a, b, *rest]:
            return x * a + b, rest
        case {"op": "add", "by": by, **others}:
            return x + by, others
        case (one,):
            return x - one
        case str() as s:
            return x, s
        case float(v) if v > 2:
            return x * v
        case None:
            return None
        case _:
            return "other"


@case((X, 0), (X, 1), (X, 2), (X, 3))
def try_in_all_its_parts(x, k):
    order = []
    try:
        order.append("try")
        if k == 1:
            raise ValueError("one")
        if k == 2:
            x[10]
        if k == 3:
            return order, "early"
    except ValueError as e:
        order.append(("except", str(e), type(e)))
    except IndexError as e:
        order.append("index")
        x = x + len(e.args)
    else:
        order.append("else")
        x = x * 2
    finally:
        order.append("finally")
    return x, order


@case((X, 0), (X, 1))
def raise_from_and_context(x, k):
    try:
        {}["missing"]
    except KeyError as e:
        if k:
            raise RuntimeError("from") from e
        raise RuntimeError("context")


@case((X, 0), (X, 1))
def finally_overrides(x, k):
    for i in range(3):
        try:
            if k:
                raise ValueError
            return x
        finally:
            if i < 2:
                continue
            break
    return x + i


@case((X,))
def nested_exceptions_reraise(x):
    def g(y):
        try:
            return y.view(4, 4)
        except RuntimeError:
            raise

    try:
        g(x)
    except RuntimeError as e:
        message = str(e)
    try:
        try:
            raise KeyError("a")
        finally:
            x = x + 1
    except LookupError as e:
        kind = (type(e), e.args, e.__context__)
    return x, message, kind


@case((X, 1), (X, 2), (X, 5))
def loops_with_break_continue_else(x, n):
    out = []
    for i in range(4):
        if i == 1:
            continue
        if i == n:
            break
        x = x + i
        out.append(i)
    else:
        out.append("else")
    while n > 0:
        n -= 1
        if n == 3:
            break
    else:
        x = x * 2
    return x, out, n


@case((X, [1, 2, 3, 4]), (X, [1, 2]))
def star_unpacking(x, items):
    first, *middle, last = items
    (a, b), *_ = x.shape, 0
    merged = [*items, *middle, *range(2)]
    table = {"a": 1, **{"b": 2, "a": 3}}
    return max(*items), first, middle, last, a, b, merged, table, torch.cat([*x]), (*x,)


@case((X,), kernels=True)
def list_methods(x):
    xs = [x, x + 1]
    xs.append(x * 2)
    xs.extend([x, x])
    xs.insert(1, x - 1)
    popped = xs.pop()
    xs.reverse()
    xs[1:3] = [x.sum()]
    del xs[0]
    ints = [3, 1, 2]
    ints.sort(reverse=True)
    ints *= 2
    ints.remove(1)
    return xs, popped, ints, ints.index(2), ints.count(3), ints[::-1], ints + [1], 3 in ints, xs[0] is xs[-1]


@case((X, {"a": 1, "b": X}), (X, {"b": 2, "a": Y}), (X, {"a": 1}))
def dict_methods(x, d):
    d["new"] = x + 1
    d.setdefault("a", 5)
    d.setdefault("c", []).append(3)
    d.update(z=1, a=2)
    gone = d.pop("b", None)
    last = d.popitem()
    del d["c"]
    merged = d | {"q": 1}
    return (
        gone,
        last,
        list(d),
        list(merged.items())[0][0],
        d.get("nope", 7),
        "a" in d,
        len(d),
        {**d},
        d.copy() is d,
    )


@case((X, {1, 2}), (X, {2, 3, 4}))
def set_methods(x, s):
    s.add(9)
    s.discard(2)
    s |= {4, 5}
    return x + len(s), sorted(s), s & {4}, s - {5}, s ^ {1}, s <= {1, 4, 5, 9}, frozenset(s), {1} == {1}


@case((X, [3, 1, 2]), (X, [1]))
def sorting(x, items):
    pairs = [(2, "b"), (1, "c"), (1, "a")]
    by = sorted(pairs, key=lambda p: (p[0], -ord(p[1])))
    rows = sorted(x, key=lambda r: -r.shape[0])
    items.sort(key=lambda v: -v)
    return by, rows, items, sorted(items), min(pairs), max(pairs, key=operator.itemgetter(1)), sum(items, 10)


@case((X,))
def iterators(x):
    zipped = [a + b for a, b in zip(x, x.flip(0))]
    numbered = [r * i for i, r in enumerate(x, start=1)]
    mapped = list(map(lambda r, k: r * k, x, (1, 2)))
    kept = list(filter(None, [0, 1, 2])) + list(filter(lambda v: v > 1, range(4)))
    back = list(reversed([1, 2, 3])) + list(reversed(range(3)))
    chained = list(itertools.chain([1], (2, 3), *[[4]]))
    it = iter(x)
    first = next(it)
    rest = list(it)
    end = next(it, "end")
    return zipped, numbered, mapped, kept, back, chained, first, rest, end, all([1, x.shape]), divmod(7, 2)


@case((X,))
def itertools_and_functools(x):
    pairs = list(itertools.product([1, 2], "ab")) + list(itertools.combinations(range(3), 2))
    acc = list(itertools.accumulate([1, 2, 3], operator.mul))
    islice = list(itertools.islice(itertools.count(3), 3))
    groups = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])]
    both = list(itertools.zip_longest([1, 2], [3], fillvalue=0)) + list(itertools.starmap(pow, [(2, 3)]))
    return functools.reduce(operator.add, [x, x, x]), pairs, acc, islice, groups, both


@case((X,))
def collections_types(x):
    d = defaultdict(list)
    d["a"].append(x)
    q = deque([1, 2, 3], maxlen=3)
    q.append(4)
    q.appendleft(0)
    counts = Counter("hello")
    od = OrderedDict(a=1, b=x)
    od.move_to_end("a")
    return d, q, counts.most_common(1), od, x + q[0]


@case((X, 3), (X, 4))
def recursion(x, n):
    def fact(k):
        return 1 if k < 2 else k * fact(k - 1)

    def tree(t, k):
        return t if k == 0 else tree(t, k - 1) + tree(t * 2, k - 1)

    return tree(x, n), fact(n)


@scenario
def a_compiled_function_that_calls_itself(c):
    @c
    def f(x, n):
        return x if n == 0 else f(x + n, n - 1)

    yield f(X, 3), f(X, 5)


@case((X, 2), (X, 3), (X, 2.5), (X, float("nan")), (X, float("inf")), (X, -0.0), (X, True), (X, 10**20))
def arithmetic_on_scalars(x, k):
    return x * k, k + 1, -k, k == 2, k > 2, str(k), k * 0.5


@case((X, 7, 2), (X, -7, 2), (X, 7, -2))
def integer_arithmetic(x, a, b):
    return (
        a // b,
        a % b,
        a << 2,
        a >> 1,
        a & 3,
        a | 8,
        a ^ 5,
        ~a,
        a**2,
        abs(a),
        round(a / 3, 2),
        math.sqrt(a * a),
        x + a // b,
    )


@case((X, 1, 0), kernels=True)
def zero_division(x, a, b):
    try:
        a / b
    except ZeroDivisionError as e:
        return x / b, str(e)


@case((X, None), (X, 1), (X, "a"), (X, [None]), (X, (1, 2)), (X, {}), (X, 0), (X, ""))
def truth_of_python_values(x, v):
    return (x if v else -x), not v, v or "other", v and 3, v is None, bool(v)


@case((X, 1), (X, 1.0), (X, True))
def values_equal_but_not_the_same_type(x, k):
    return type(k), x + k, isinstance(k, bool), isinstance(k, int), f"{k}"


@case((X, 0.0), (X, -0.0))
def signed_zero_is_a_value(x, k):
    return x * 0 + k, math.copysign(1.0, k), str(k)
