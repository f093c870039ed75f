"""Classes made inside and outside: slots, metaclasses, descriptors, inheritance."""

from __future__ import annotations

import dataclasses
import decimal
import functools
import itertools
import typing
from typing import Any, Protocol, TypeVar

import torch

from tests.end_to_end.conformance import attempt, case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
T = TypeVar("T")
whole = functools.partial(case, whole=True)


# -- classes made inside


@case((X,))
def a_plain_class_inside(x):
    class Inner:
        k = 2

        def __init__(self, v):
            self.v = v

        def scaled(self):
            return self.v * self.k

        @property
        def twice(self):
            return self.scaled() * 2

        @staticmethod
        def one():
            return 1

        @classmethod
        def make(cls, v):
            return cls(v + 1)

    class Derived(Inner):
        k = 3

        def scaled(self):
            return super().scaled() + 1

    return (
        Inner(x).scaled(),
        Derived.make(x).twice,
        Inner.one(),
        Derived.__name__,
        Derived.__mro__[1].__name__,
    )


@case((X,))
def classes_with_keywords_and_decorators(x):
    log = []

    class Base:
        def __init_subclass__(cls, /, tag=None, **rest):
            super().__init_subclass__(**rest)
            cls.tag = tag
            log.append(cls.__name__)

    def marked(cls):
        cls.marked = True
        return cls

    @marked
    class A(Base, tag="a"):
        pass

    @dataclasses.dataclass
    class P:
        v: torch.Tensor
        k: int = 2

    return x + P(x).v * P(x, 3).k, A.tag, A.marked, log


@case((X,))
def scopes_of_class_bodies(x):
    k = 5

    class A:
        a = k
        b = a + 1
        c = [a for a in (1, 2)]

        def f(self):
            return k

        k = 7

    return x + A.a, A.b, A.c, A().f(), A.k


@case((X,))
def types_called_with_three_arguments(x):
    made = type("Made", (object,), {"k": 3, "f": lambda self, v: v * self.k})
    return made().f(x), made.__name__, isinstance(made(), made)


# -- slots, metaclasses, descriptors


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class SlottedMore(Slotted):
    __slots__ = ("c",)

    def __init__(self, a, c):
        super().__init__(a)
        self.c = c


@whole((X,))
def slots_inside(x):
    s = SlottedMore(x, 2)
    s.b = 3
    del s.a
    return s.b + x, s.c, hasattr(s, "a"), said(lambda: s.a), said(lambda: setattr(s, "z", 1)), s


class Registry(type):
    seen: typing.ClassVar[list] = []

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.made_by = cls.__name__
        return made

    def __getitem__(cls, k):
        return cls, k

    @property
    def label(cls):
        return cls.__name__.lower()

    def __len__(cls):
        return 7

    def __iter__(cls):
        return iter((1, 2))

    def __contains__(cls, item):
        return item == 1

    def __instancecheck__(cls, other):
        return other == 5 or type.__instancecheck__(cls, other)


class Registered(metaclass=Registry):
    def __init__(self, v):
        self.v = v


@case((X,))
def metaclasses(x):
    r = Registered(x)
    return (
        r.v + 1,
        r.made_by,
        Registered[3][1],
        Registered.label,
        len(Registered),
        list(Registered),
        1 in Registered,
        isinstance(5, Registered),
        isinstance(r, Registered),
        type(Registered).__name__,
    )


class Typed:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, cls=None):
        return self if obj is None else getattr(obj, self.name, "unset")

    def __set__(self, obj, value):
        setattr(obj, self.name, value)

    def __delete__(self, obj):
        delattr(obj, self.name)


class Lazy:
    def __init__(self, fn):
        self.fn = fn

    def __get__(self, obj, cls=None):
        if obj is None:
            return self
        value = self.fn(obj)
        obj.__dict__[self.fn.__name__] = value
        return value


class Described:
    typed = Typed()

    def __init__(self, v):
        self.v = v

    @Lazy
    def doubled(self):
        return self.v * 2

    @functools.cached_property
    def tripled(self):
        return self.v * 3

    @property
    def half(self):
        return self.v / 2

    @half.setter
    def half(self, value):
        self.v = value * 2

    @half.deleter
    def half(self):
        self.v = None


@whole((X,))
def descriptors_of_every_kind(x):
    d = Described(x)
    before = d.typed
    d.typed = 5
    after = d.typed
    del d.typed
    d.half = x
    first = d.half
    a, b, c = d.doubled, d.doubled, d.tripled
    del d.half
    return before, after, d.typed, first, a is b, c, d.v, sorted(vars(d)), type(Described.typed).__name__


@scenario
def descriptors_of_outside_objects(c):
    d = Described(X)
    f = c(lambda y: (d.doubled + y, d.tripled, d.half, d.typed))
    yield f(X), sorted(vars(d))
    d.typed = 4
    yield f(X), sorted(vars(d))
    d.v = X * 10
    yield f(X), vars(d)


class Fallback:
    def __init__(self):
        self.real = 1

    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(name)
        return name

    def __setattr__(self, name, value):
        object.__setattr__(self, name, ("set", value) if name != "real" else value)

    def __delattr__(self, name):
        object.__setattr__(self, "deleted", name)


@whole((X,))
def attribute_hooks(x):
    f = Fallback()
    f.a = 5
    del f.b
    return (
        x + f.real,
        f.virtual,
        f.a,
        f.deleted,
        hasattr(f, "nothing"),
        getattr(f, "none", 3),
        said(lambda: f.no),
    )


class Watched:
    def __init__(self):
        object.__setattr__(self, "log", [])

    def __getattribute__(self, name):
        if name == "log":
            return object.__getattribute__(self, name)
        self.log.append(name)
        return name.upper()


@whole((X,))
def getattribute_hooks(x):
    w = Watched()
    return x + 1, w.a, w.b, getattr(w, "c"), w.log  # noqa: B009


class Proxy:
    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def __call__(self, *args):
        return self._inner(*args)


@whole((X,))
def proxies(x):
    p = Proxy(Proxy(torch.nn.ReLU()))
    return p(x), p.training, p.inplace


# -- inheritance


class Root:
    def __init__(self, **rest):
        self.order = ["Root"]

    def f(self, x):
        return x + 1


class Left(Root):
    def __init__(self, left=0, **rest):
        super().__init__(**rest)
        self.order.append(f"Left{left}")

    def f(self, x):
        return super().f(x) * 2


class Right(Root):
    def __init__(self, right=0, **rest):
        super().__init__(**rest)
        self.order.append(f"Right{right}")

    def f(self, x):
        return super().f(x) * 3


class Both(Left, Right):
    k = 1

    def f(self, x):
        return super(Left, self).f(x) + super().f(x) + Root.f(self, x)

    @classmethod
    def make(cls, **k):
        return cls(**k)

    def __class_getitem__(cls, item):
        return item


@whole((X,))
def cooperative_inheritance(x):
    b = Both.make(left=1, right=2)
    return (
        b.f(x),
        b.order,
        [c.__name__ for c in Both.__mro__],
        Both[3],
        isinstance(b, Right),
        b.__class__.__name__,
    )


@whole((X,))
def class_attributes_and_instances(x):
    a, b = Both(), Both()
    a.k += 5
    del a.order
    return (
        x * a.k,
        b.k,
        Both.k,
        vars(a),
        hasattr(a, "order"),
        type(a) is type(b),
        a.__dict__ is not b.__dict__,
    )


@scenario
def class_attributes_from_outside(c):
    class A:
        k = 1
        items: typing.ClassVar[list] = []

        def bump(self):
            type(self).k += 1
            self.items.append(self.k)
            return self.k

    a = A()
    f = c(lambda x: x + a.bump())
    yield f(X), A.k, A.items
    yield f(X), A.k, A.items
    A.k = 10
    yield attempt(f, X), A.k, A.items, vars(a)


@case((X,))
def objects_that_know_each_other(x):
    class Node:
        def __init__(self, parent=None):
            self.parent, self.children = parent, []
            if parent:
                parent.children.append(self)

    root = Node()
    Node(root)
    Node(root.children[0])
    return x + len(root.children), root.children[0].children[0].parent.parent is root


@whole((X,))
def special_methods_called_by_name(x):
    return (
        x.__add__(1),
        (5).__add__(3),
        [1, 2].__getitem__(0),
        "a".__mul__(3),
        {}.__contains__(1),
        int.__add__(1, 2),
        str.join("-", ["a", "b"]),
        object.__repr__ is not None,
        type(x).__name__,
        x.__class__ is torch.Tensor,
        x.__len__(),
    )


@typing.runtime_checkable
class HasScale(Protocol):
    scale: Any

    def area(self): ...


@typing.runtime_checkable
class HasArea(Protocol):
    def area(self): ...

    def close(self): ...


class Bare:
    """What it has comes and goes."""


class Halved:
    area = None

    def close(self):
        return 1


class Counting:
    def __init__(self):
        self.asked = 0

    @property
    def scale(self):
        self.asked += 1
        return 3

    def area(self):
        return 2


class Slotted:
    __slots__ = ("area", "close", "scale")


@scenario
def an_object_is_of_a_protocol_by_what_it_has_in_each_call(c):
    def f(x, o):
        match o:
            case HasScale():
                x = x * o.scale
        return x + 1 if isinstance(o, (complex, HasArea)) else x

    g = c(f)
    bare, halved, counting, slotted = objects = Bare(), Halved(), Counting(), Slotted()

    def all_of_them():
        return [attempt(g, X, o) for o in (*objects, 3, [1], X)], counting.asked

    yield all_of_them()
    bare.area, bare.scale = (lambda: 7), 5
    halved.area = slotted.area = slotted.close = lambda: 3
    yield all_of_them()
    bare.close, halved.scale, slotted.scale = print, 2, 4
    yield all_of_them()
    bare.close, halved.area = None, None
    del bare.scale, slotted.close
    yield all_of_them()
    Bare.scale = 6
    yield all_of_them()
    del Bare.scale
    yield all_of_them()


# -- classes below those of C, with an __init__ of their own beside a __new__ that looks at its arguments


class Filled:
    def __init__(self, *given):
        self.count = len(given)


class Call(Filled, functools.partial):
    pass


class Pairs(Filled, zip):
    pass


class Chained(Filled, itertools.chain):
    pass


class Complex(Filled, complex):
    pass


class Decimal(Filled, decimal.Decimal):
    pass


class Numbered(Filled, enumerate):
    pass


@case((X,))
def objects_that_new_makes_of_its_arguments_and_init_fills(x):
    call = Call(torch.add, x)
    try:
        pairs = [a * x for a, _ in Pairs([1, 2], [3, 4])]
    except TypeError as error:
        pairs = str(error)
    numbers = [a for _, a in Numbered("ab")], [*Chained([1], [2])], Complex(1, 2).imag, float(Decimal("1.5"))
    return call(1), call.count, pairs, numbers, x * Complex(3, 4), Chained([1]).count
