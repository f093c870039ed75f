"""Corners of Python in code that is captured in one graph, each against eager, twice."""

from __future__ import annotations

import abc
import contextlib
import copy
import enum
import functools
import itertools
import math
import operator
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from captured import Run, same
from torch import nn

X = torch.arange(6.0).reshape(2, 3)
CASES = {}


def case(function):
    """One more function to compare."""
    CASES[function.__name__] = function
    return function


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class P(abc.ABC):
    @abc.abstractmethod
    def go(self): ...


class Q(P):
    def go(self):
        return 5


class Desc:
    def __get__(self, o, c):
        return o.x * 2

    def __set__(self, o, v):
        o.__dict__["x"] = v


class HasD:
    d = Desc()
    __slots__ = ("__dict__", "s")


class Meta(type):
    def __call__(cls, *a, **k):
        o = super().__call__(*a, **k)
        o.tag = 1
        return o

    @property
    def size(cls):
        return 9


class WM(metaclass=Meta):
    def __init__(self, v):
        self.v = v


GLOBAL = {"k": [1, 2]}
COUNT = 0


@case
def enums(x):
    return (
        x * Color.RED.value,
        Color(2) is Color.BLUE,
        Color["RED"],
        [c.value for c in Color],
        {Color.RED: 3}[Color.RED],
    )


@case
def abcs(x):
    return x * Q().go(), isinstance(Q(), P)


@case
def descr(x):
    h = HasD()
    h.d = x
    h.s = 3
    return h.d, h.s


@case
def meta(x):
    w = WM(x)
    return w.v, w.tag, WM.size


@case
def gmut(x):
    GLOBAL["k"].append(len(GLOBAL["k"]))
    return x, list(GLOBAL["k"])


@case
def gcount(x):
    global COUNT
    COUNT += 1
    return x + COUNT


@case
def deep(x):
    d = {"a": [x, {"b": x + 1}]}
    e = copy.copy(d)
    f = copy.deepcopy([1, {"q": 2}])
    e["z"] = 1
    return d, e, f


@case
def attrget(x):
    o = types.SimpleNamespace(a=x, b=types.SimpleNamespace(c=2))
    return operator.attrgetter("b.c")(o), operator.itemgetter(1)([x, x + 1]), o.a


@case
def itools(x):
    return (
        list(itertools.chain([x], [x + 1])),
        list(itertools.product([1, 2], [3])),
        list(itertools.accumulate([x, x])),
        [k for k, g in itertools.groupby([1, 1, 2])],
    )


@case
def mathy(x):
    return (
        x * math.sqrt(x.shape[0]) + math.pi,
        math.prod(x.shape),
        math.ceil(2.5),
        divmod(7, 2),
        round(2.567, 1),
        abs(-3),
        pow(2, 3),
        max([1, 2], key=lambda v: -v),
    )


@case
def starstar(x):
    def f(a, /, b, *c, d=4, **e):
        return a, b, c, d, e

    return f(x, 2, 3, d=5, z=6), f(*(x, 1)), f(x, **{"b": 2})


@case
def walrus(x):
    if (n := x.shape[0]) > 1:
        return x * n


@case
def nested_try(x):
    try:
        try:
            raise KeyError("a")
        finally:
            x = x + 1
    except KeyError as e:
        try:
            raise ValueError("b") from e
        except ValueError as v:
            return x, type(v.__cause__).__name__, type(v.__context__).__name__


@case
def ret_in_finally(x):
    for i in range(3):
        try:
            if i == 1:
                continue
            x = x + i
        finally:
            x = x * 2
    return x


@case
def exitstack(x):
    with contextlib.ExitStack() as s:
        s.enter_context(torch.no_grad())
        y = x + 1
    return y


@case
def handled_exceptions_are_asked_for(x):
    before = sys.exception()
    try:
        raise ValueError("a")
    except ValueError as e:
        same, info = sys.exception() is e, sys.exc_info()
        y = x + 1 if same and info[1] is e and info[0] is ValueError else x
    return y + 2 if before is None and sys.exception() is None else y


@case
def matmulcat(x):
    return (
        torch.cat([x, x]),
        torch.stack([x, x], dim=1),
        torch.einsum("ij,kj->ik", x, x),
        F.softmax(x, -1),
        F.pad(x, (1, 1)),
        x.softmax(-1).argmax(-1),
        torch.arange(3, device=x.device) + x[0],
        torch.zeros_like(x),
        x.float().to(x.dtype),
        torch.full((2,), 3.0),
    )


@case
def rnn(x):
    return (
        x.mean().sqrt(),
        x.var(unbiased=False),
        torch.tensor([1.0, 2.0]),
        torch.tensor(3),
        torch.ones(2, 3)[x > 2].shape[0] if False else 1,
    )


@case
def strmeth(x):
    return (
        {k.strip().lower(): v for k, v in zip(["A ", "b"], [x, 1])},
        "abc".replace("a", "b"),
        "a,b".split(","),
        "".join(map(str, [1, 2])),
        "x".join(str(i) for i in range(3)),
        f"{1.5:.3f}",
        "k" in "kk",
        f"{[1, 2]}",
        f"{x.shape}",
        f"{x.dtype}",
    )


@case
def lists(x):
    l = [3, 1, 2]
    l.sort()
    l.reverse()
    m = l.copy()
    m.insert(0, 5)
    del m[1]
    m += [7]
    m *= 2
    a, (b, *c) = 1, [2, 3, 4]
    l[0:2] = [9]
    return x, l, m, a, b, c, m.index(7), m.count(7), l == [9, 1]


@case
def dicts(x):
    d = dict(a=1)
    d |= {"b": 2}
    d.setdefault("c", []).append(x)
    e = d.copy()
    e.pop("a")
    k = list(d.items())
    return d, e, len(k), {**d}, dict.fromkeys("ab", 0), d.get("zz"), "a" in d.keys()


@case
def sets(x):
    s = {1, 2} | {3}
    s.discard(1)
    return x, sorted(s), s & {2}, frozenset(s), s.issubset({2, 3, 4})


@case
def lam(x):
    f = lambda a, b=2: a * b
    return f(x), (lambda *a: sum(a))(1, 2), functools.partial(f, b=3)(x)


@case
def rec(x):
    def fact(n):
        return 1 if n == 0 else n * fact(n - 1)

    return x * fact(5)


@case
def closure_list(x):
    fs = []
    for i in range(3):

        def f(v, i=i):
            return v * i

        fs.append(f)
    return [f(x) for f in fs]


@case
def isinst(x):
    return (
        isinstance(x, torch.Tensor),
        isinstance(x, (int, float)),
        type(x) is torch.Tensor,
        torch.is_tensor(x),
        x.is_floating_point(),
        isinstance(nn.Linear(1, 1) if False else x, nn.Module),
        hasattr(x, "shape"),
        x.shape == (2, 3),
        x.shape[-1] == 3,
    )


@case
def dunder(x):
    return x.__class__.__name__, x.__len__(), len(x.shape), x.__add__(1), (1).__add__(2)


@case
def gen_close(x):
    def g():
        try:
            yield x
            yield x + 1
        finally:
            pass

    it = g()
    a = next(it)
    it.close()
    return a


@case
def gen_throw(x):
    def g():
        try:
            yield x
        except ValueError:
            yield x + 5

    it = g()
    next(it)
    return it.throw(ValueError)


@case
def zipstrict(x):
    return (
        [(a * b) for a, b in zip(x, [1, 2], strict=True)],
        [i for i in reversed([1, 2])],
        list(enumerate("ab", start=1)),
    )


@case
def setattr_tensor(x):
    x.my = 3
    return x + 1


@case
def views(x):
    y = x.view(-1)
    y.add_(1)
    return x


@case
def inplace_fresh(x):
    y = x.clone()
    y.mul_(2)
    y[0, 0] = 7
    y[:, 1] += 3
    y.zero_() if False else None
    return y


@case
def outk(x):
    o = torch.empty(2, 3)
    torch.add(x, 1, out=o)
    return o


@case
def cond_shape(x):
    return x.reshape(-1, 2) if x.numel() % 2 == 0 else x


@case
def matchstmt(x):
    match x.shape[0]:
        case 1:
            return x
        case 2:
            return x * 2


@case
def assertion(x):
    assert x.dim() == 2, "bad"
    return x


@case
def dictview(x):
    d = {"a": x}
    return list(d.keys()), [v for v in d.values()]


@case
def chained(x):
    return 0 < x.shape[0] < 5, not x.shape, x if None else x + 1, None or 3, x.shape[0] and 5


@case
def tensor_iter(x):
    return [r.sum() for r in x], sum(x), max(x.shape), list(x)[0], x.unbind(0)[1]


@case
def moduse(x):
    return x.to(getattr(torch, "float64")), getattr(F, "relu")(x), torch.float32 is x.dtype


@case
def exc_args(x):
    try:
        x.foo
    except AttributeError:
        return x + 1


@case
def iter_items(x):
    out = x
    for k, (a, b) in {"q": (1, 2)}.items():
        out = out + a * b
    for i in range(2):
        for j in range(2):
            if j:
                break
            out = out + 1
    return out


@case
def several_results_as_the_argument_of_another_function(x):
    """What these are in is a class of PyTorch's below ``tuple``, of which the graph had what stands for tensors."""
    square = x @ x.T + torch.eye(2)
    return (
        torch.stack(x.aminmax(dim=0)),
        torch.cat(torch.sort(x.long(), dim=0)),
        torch.stack(torch.linalg.slogdet(square)),
        torch._foreach_add(x.max(0)[:1], 1),
        torch._foreach_mul(x.aminmax(dim=1), 2),
        x[x.long().clamp(0, 1).max(0)],
    )


@pytest.mark.parametrize("name", CASES)
def test_is_as_in_eager(name):
    global COUNT
    function = CASES[name]

    def twice(call, x):
        global COUNT
        COUNT = 0
        GLOBAL["k"] = [1, 2]
        return call(x), call(x)

    theirs, ours = X.clone(), X.clone()
    expected = twice(function, theirs)
    assert same(expected, twice(Run(function, fullgraph=True), ours))
    assert same(theirs, ours)


def test_an_attribute_of_a_function_is_read_as_it_was_written_in_its_dict() -> None:
    def counted(x):
        counted.__dict__["n"] = counted.n + 1
        counted.__dict__.update(m=counted.n * 2)
        return x * counted.n + counted.m, counted.n

    counted.n, counted.m = 0, 0
    compiled = Run(counted)
    for i in range(1, 5):
        made, n = compiled(torch.ones(2))
        assert n == i == counted.n and counted.m == 2 * i
        assert torch.equal(made, torch.full((2,), 3.0 * i))
