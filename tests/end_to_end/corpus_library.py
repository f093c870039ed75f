"""The standard library and numpy in the middle of tensor code; what touches the world breaks, in order."""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import io
import itertools
import json
import logging
import math
import operator
import os
import random
import re
import string
import time
import warnings
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque
from fractions import Fraction
from types import MappingProxyType, SimpleNamespace

import numpy as np
import torch

from tests.end_to_end.conformance import attempt, case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
whole = functools.partial(case, whole=True)


# -- containers


@whole((X,))
def ordered_dicts_inside(x):
    d = OrderedDict(a=1, b=x)
    d["c"] = 3
    d.move_to_end("a")
    last = d.popitem()
    first = d.popitem(last=False)
    d.update(z=1)
    return d, last, first, list(d), d == {"c": 3, "z": 1}, list(reversed(d))


@whole((X, OrderedDict(a=X, b=2)))
def ordered_dicts_from_outside(x, d):
    d["new"] = x * 2
    d.move_to_end("a")
    return [k for k in d], x + d["b"], len(d), d.get("none")


@whole((X,))
def default_dicts_inside(x):
    d = defaultdict(list)
    d["a"].append(x)
    d["a"].append(1)
    n = defaultdict(int)
    for c in "hello":
        n[c] += 1
    e = defaultdict(lambda: x)
    return d, dict(n), e["k"] + 1, "q" in n, n.default_factory is int


@case((X, defaultdict(list, a=[1])))
def default_dicts_from_outside(x, d):
    d["a"].append(x)
    d["b"].append(2)
    return x + len(d), d


@whole((X,))
def deques_inside(x):
    d = deque([1, 2, 3], maxlen=3)
    d.append(x)
    d.appendleft(0)
    d.rotate(1)
    e = deque("abc")
    e.extend("d")
    e.extendleft("z")
    return d, e.pop(), e.popleft(), list(e), d.maxlen, e[1], len(e), "b" in e


@whole((X, deque([X, 1], maxlen=3)))
def deques_from_outside(x, d):
    d.append(x + 1)
    d.append(5)
    return d[0], len(d), d.maxlen


@whole((X,))
def counters_and_chains(x):
    c = Counter("hello")
    c.update("low")
    m = ChainMap({"a": 1}, {"a": 2, "b": 3})
    return x + c["l"], c.most_common(2), sum(c.values()), m["a"], m["b"], dict(c - Counter("l"))


@whole((X,))
def views_of_dicts(x):
    d = {"a": 1, "b": x}
    k, v, i = d.keys(), d.values(), d.items()
    d["c"] = 3
    return (
        list(k),
        len(v),
        [n for n, _ in i],
        k & {"a"},
        k | {"z"},
        "a" in k,
        ("a", 1) in i,
        list(reversed(d)),
        sorted(k - {"b"}),
    )


@whole((X, {"a": X, "b": {"c": [1, (2, X)]}}))
def nested_containers(x, d):
    d["b"]["c"].append(x * 2)
    d["b"]["new"] = {**d["b"]}
    d.setdefault("list", []).append(1)
    return d["b"]["c"][1][1] + d["a"], d.pop("a"), list(d), d.get("z", 5)


@whole((X,))
def methods_of_containers(x):
    a, b, c = [3, 1, 2], {"k": 1}, {1, 2}
    a.sort(reverse=True)
    a.extend((5, 6))
    a.insert(1, 9)
    a.remove(5)
    popped = a.pop(0)
    a.reverse()
    b.update(l=2)
    c.add(3)
    c.discard(1)
    copied = a.copy()
    a.clear()
    return (
        x,
        copied,
        popped,
        a,
        b.popitem(),
        list(b.items()),
        sorted(c),
        a.count(1),
        dict.fromkeys("ab", 0),
        c.isdisjoint({9}),
        copied.index(9),
    )


@whole((X,))
def user_dicts_and_proxies(x):
    m = MappingProxyType({"a": 1})
    n = SimpleNamespace(a=x, b=2)
    n.c = 3
    return n.a * n.b + m["a"], n.c, dict(m), n


# -- itertools, operator, math


@whole((X,))
def itertools_of_every_kind(x):
    it = itertools
    return (
        [t.sum() for t in it.chain(x, x)],
        list(it.chain.from_iterable([[1], [2]])),
        list(it.islice("abcdef", 1, 5, 2)),
        list(it.accumulate([1, 2, 3])),
        list(it.accumulate(x, lambda a, b: a + b)),
        list(it.product("ab", [1, 2])),
        list(it.combinations(range(3), 2)),
        list(it.permutations(range(3), 2)),
        list(it.zip_longest([1, 2], "a", fillvalue=0)),
        list(it.takewhile(lambda n: n < 3, it.count())),
        list(it.dropwhile(lambda n: n < 3, range(5))),
        [(k, list(g)) for k, g in it.groupby("aab")],
        list(it.starmap(operator.mul, [(x, 2), (3, 4)])),
        list(it.repeat(1, 2)),
        [a for a, _ in zip(it.cycle("ab"), range(3))],
        list(it.compress("abc", [1, 0, 1])),
        list(it.filterfalse(lambda n: n % 2, range(4))),
        list(it.pairwise([1, 2, 3])),
        [list(t) for t in it.tee([1, 2])],
    )


@whole((X,))
def operator_of_every_kind(x):
    o = operator
    n = SimpleNamespace(a=SimpleNamespace(b=x))
    lst = [1, 2, 3]
    o.setitem(lst, 0, 9)
    o.delitem(lst, 1)
    return (
        o.add(x, 1),
        o.neg(x),
        o.matmul(x, x.t()),
        o.getitem(x, 0),
        o.itemgetter(1)([5, 6]),
        o.itemgetter(0, 2)("abc"),
        o.attrgetter("a.b")(n) + 1,
        o.methodcaller("sum", 0)(x),
        o.truediv(1, 2),
        o.iadd([1], [2]),
        o.lt(1, 2),
        o.is_(x, x),
        o.not_(0),
        o.contains([1], 1),
        o.concat("a", "b"),
        o.countOf([1, 1], 1),
        o.length_hint([1]),
        lst,
    )


@whole((X, 2.5), (X, 3.5))
def math_of_every_kind(x, f):
    m = math
    return (
        x * m.sqrt(4) + m.floor(f) + m.ceil(f),
        m.pi,
        m.log(8, 2),
        m.exp(0),
        m.isnan(f),
        m.inf > f,
        m.gcd(4, 6),
        m.prod([2, 3]),
        m.fsum([0.1] * 3),
        m.hypot(3, 4),
        m.isclose(0.1 + 0.2, 0.3),
        m.trunc(f),
        m.copysign(1, -0.0),
        m.comb(4, 2),
        m.fmod(5, 3),
        m.atan2(1, 1),
        divmod(7, 2),
        round(f),
        pow(2, 3, 5),
        abs(-f),
        said(lambda: m.sqrt(-1)),
        said(lambda: m.log(0)),
    )


@whole((X,))
def builtins_of_every_kind(x):
    return (
        sum(x),
        min(3, 1, 2),
        max([1, 5], key=lambda n: -n),
        sorted("bca", reverse=True),
        list(reversed([1, 2])),
        list(enumerate("ab", 5)),
        list(zip([1], "a", x)),
        all([1, 0]),
        any([]),
        chr(97) + str(ord("a")),
        bin(5) + hex(255) + oct(8),
        bool([]),
        int("12", 16),
        float("1.5"),
        complex(1, 2),
        list(range(5, 0, -2)),
        tuple("ab"),
        frozenset([1]),
        isinstance(x, torch.Tensor),
        issubclass(bool, int),
        callable(len),
        len("abc"),
        hash("a") == hash("a"),
        type(1) is int,
        repr([1, "a"]),
        ascii("é"),
        format(3.14159, ".2f"),
        iter([1]).__next__(),
        getattr(x, "ndim"),  # noqa: B009
        hasattr(x, "nothing"),
        slice(1, 5, 2).indices(4),
        bytes([1, 2]),
        bytearray(b"a") + b"b",
        max("a", "b"),
        [*map(int, "12")],
    )


@whole((X,))
def strings_of_every_kind(x):
    s = "Hello, World"
    return (
        x,
        s.lower(),
        s.split(", "),
        s.replace("l", "L"),
        s.startswith(("He", "x")),
        s.find("o"),
        s.partition(","),
        s.encode().decode(),
        " a ".strip(),
        "a-b".rsplit("-", 1),
        "x".join("abc"),
        s.title().swapcase(),
        "%05.2f|%-5s|%+d" % (1.5, "a", 3),
        "{:>10}|{:<5}|{:^7}|{:,}".format("a", 1, "c", 1000000),
        s[::-1].isalpha(),
        "abc".translate({97: "z"}),
        "a\nb".splitlines(),
        s.removeprefix("He"),
        "5".zfill(3),
        "ab" in s,
        s.count("l"),
        string.ascii_lowercase[:3],
    )


@case((X,))
def regular_expressions(x):
    m = re.match(r"layer\.(\d+)\.(\w+)", "layer.12.weight")
    return (
        x + int(m.group(1)),
        m.group(2),
        re.sub(r"\d", "#", "a1b2"),
        re.findall(r"\w", "a b"),
        re.compile("a").search("b"),
    )


@case((X,))
def json_and_fractions(x):
    return x * float(Fraction(1, 2)), json.dumps({"a": [1, 2]}), json.loads("[1, {}]")


# -- copy


@whole((X,))
def copies_of_what_is_made_inside(x):
    a = [x, [1, 2], {"k": (3,)}]
    b, c = copy.copy(a), copy.deepcopy(a[1:])
    b.append(5)
    c[0].append(9)
    n = SimpleNamespace(v=[1])
    m = copy.copy(n)
    return (
        a,
        b,
        c,
        a[1] is b[1],
        a[1] is c[0],
        m.v is n.v,
        copy.copy(5),
        copy.deepcopy("s"),
        copy.copy((1, 2)),
    )


class Plain:
    def __init__(self, a, b):
        self.a, self.b = a, b


class Copied(Plain):
    def __copy__(self):
        return Copied("copied", self.b)

    def __deepcopy__(self, memo):
        return Copied("deep", copy.deepcopy(self.b, memo))


@case((X,))
def copies_of_objects(x):
    p, q = Plain(1, [2]), Copied(1, [2])
    r, s = copy.copy(p), copy.deepcopy(p)
    return x + r.a, r.b is p.b, s.b is p.b, s.b, copy.copy(q).a, copy.deepcopy(q).a, type(s).__name__


@scenario
def copies_of_outside_objects(c):
    p, d, lst = Plain(1, [2, 3]), {"a": [1], "b": (2,)}, [[1], X]
    f = c(
        lambda x: (
            x + copy.copy(p).a,
            copy.copy(p).b is p.b,
            copy.copy(d),
            copy.copy(lst)[1] is lst[1],
            copy.copy(d)["a"] is d["a"],
        )
    )
    yield f(X)
    g = c(lambda x: (x, copy.deepcopy(d), copy.deepcopy(d)["a"] is d["a"], copy.deepcopy(p).b))
    yield g(X)
    d["a"].append(5)
    p.a = 7
    yield f(X), g(X)


# -- the world: never while tracing, and in order


@case((X,))
def prints_in_order(x):
    print("before", 1)
    y = x + 1
    print("middle", y.shape, sep="|")
    y = y * 2
    print("after", end=".\n")
    return y


@scenario
def prints_of_values(c):
    f = c(lambda x, k: (print(k, x.sum().item()), x + k)[1])
    yield f(X, 1), f(X, 2), f(Y, 1)


@scenario
def logs_and_warnings(c):
    log = logging.getLogger("braze_corpus")
    log.propagate = False
    seen = []

    class Keep(logging.Handler):
        def emit(self, record):
            seen.append(record.getMessage())

    log.addHandler(Keep())
    log.setLevel(logging.INFO)

    @c
    def f(x, k):
        log.info("first %s", k)
        y = x + k
        log.debug("never")
        log.warning("second")
        warnings.warn("careful", stacklevel=1)
        return y * 2

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield f(X, 1), list(seen)
        yield f(X, 2), list(seen)
        yield [str(w.message) for w in caught]
    log.handlers.clear()


@scenario
def clocks(c):
    f = c(lambda x: (x + 1, time.time(), time.perf_counter(), time.monotonic()))
    a, b = f(X), f(X)
    yield a[0], a[1] < b[1], a[2] < b[2], a[3] <= b[3]
    g = c(lambda x: (x * 0 + 1, time.time() - start < 60))
    start = time.time()
    yield g(X), g(X)


@scenario
def random_numbers_of_python_and_numpy(c):
    f = c(lambda x: (x * random.uniform(0, 1), random.sample(range(9), 3), random.shuffle(items)))
    items = [1, 2, 3, 4]
    random.seed(3)
    yield f(X), items
    yield f(X), items
    own = random.Random(5)
    g = c(lambda x: x + own.random())
    yield g(X), g(X)
    np.random.seed(0)
    h = c(lambda x: x + float(np.random.rand()) + np.random.randint(5))
    yield h(X), h(X)
    rng = np.random.default_rng(0)
    k = c(lambda x: x + rng.random())
    yield k(X), k(X)


@scenario
def files_and_environment(c):
    os.environ["BRAZE_CORPUS"] = "1"

    @c
    def f(x):
        out = io.StringIO()
        out.write("text")
        return x + int(os.environ.get("BRAZE_CORPUS", "0")), out.getvalue(), os.path.join("a", "b"), os.sep

    yield f(X)
    os.environ["BRAZE_CORPUS"] = "2"
    yield f(X)
    del os.environ["BRAZE_CORPUS"]
    yield f(X)


@scenario
def user_dicts(c):
    d = UserDict(a=1)
    f = c(lambda x: x + d["a"])
    yield f(X)
    d["a"] = 5
    yield f(X)


# -- numpy


@case(
    (X, np.float64(2.5)),
    (X, np.float64(3.5)),
    (X, np.float32(1.5)),
    (X, np.int64(3)),
    (X, np.int64(4)),
    (X, np.bool_(True)),
)
def scalars_of_numpy(x, k):
    return x * k, k + 1, float(k), k == 3, type(k).__name__, x + int(k)


@case((X, np.arange(3.0, dtype=np.float32)), (X, np.ones(3, dtype=np.float32)), (X, np.arange(4.0)))
def arrays_of_numpy(x, a):
    t = torch.from_numpy(a)
    return attempt(lambda: x + t), a.shape, a.dtype.name, a.ndim, len(a), a * 2, a[0], (a + 1).sum()


@case((X, np.arange(6.0).reshape(2, 3)))
def arrays_shared_with_tensors(x, a):
    t = torch.from_numpy(a)
    t.add_(1)
    return x + t, a


@case((X,))
def arrays_made_inside(x):
    a = np.zeros((2, 3), dtype=np.float32)
    a[0] = 5
    return x + torch.from_numpy(a), torch.tensor(a), torch.as_tensor(a).sum(), np.sqrt(4.0), np.prod([2, 3])


@case((X,))
def tensors_as_arrays(x):
    return x.numpy() + 1, np.asarray(x).sum(), x + torch.tensor(np.float32(2))


@scenario
def arrays_that_change(c):
    a = np.arange(3.0)
    f = c(lambda x: (x + torch.from_numpy(a), a.sum(), a.max() > 5))
    yield f(X)
    a += 10
    yield f(X)
    k = np.float64(1.0)
    g = c(lambda x: (x * k, k > 1, max(k, 2.0), [k][0] + 1))
    yield g(X)
    k = np.float64(5.0)
    yield g(X)


@scenario
def opaque_objects_from_outside(c):
    """Objects of C whose contents no guard sees: what is computed from them must follow them."""
    f = Fraction(1, 2)
    b = bytearray(b"ab")
    n = collections.UserString("u")
    g = c(lambda x: (x + float(f), f + 1, b[0], len(b), str(n), bytes(b)))
    yield g(X)
    f, n = Fraction(3, 2), collections.UserString("v")
    b.extend(b"c")
    b[0] = 120
    yield g(X)
    m = MappingProxyType({"a": 1})
    p = SimpleNamespace(a=1)
    h = c(lambda x: (x + m["a"], p == SimpleNamespace(a=1), dict(m)))
    yield h(X)
    m, p.a = MappingProxyType({"a": 2}), 5
    yield h(X)


def _bound_first(fn):
    signature = inspect.signature(fn)

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return fn(*bound.args, **bound.kwargs) * bound.arguments["scale"]

    return wrapper


@case((X,), (X, X), (X, X, X), whole=True)
@_bound_first
def arguments_are_bound_by_a_kept_signature(x, y=None, *more, scale=2, **rest):
    return x * scale + (1 if y is None else y) + sum(more)


@scenario
def a_signature_that_is_replaced(c):
    class Holder:
        signature = inspect.signature(lambda x, by=2: None)

        def __call__(self, x):
            bound = self.signature.bind_partial(x)
            bound.apply_defaults()
            return x * bound.arguments["by"]

    holder = Holder()
    f = c(lambda x: holder(x))
    yield f(X)
    Holder.signature = inspect.signature(lambda x, by=3: None)
    yield f(X), attempt(c(lambda x: Holder.signature.bind(x, 1, 2)), X)
