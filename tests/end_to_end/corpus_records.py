"""Operators by special methods; enum, named tuples, dataclasses, typing at run time."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import typing
from collections import namedtuple
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

from tests.end_to_end.conformance import case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
T = TypeVar("T")
whole = functools.partial(case, whole=True)


# -- operators


class Number:
    def __init__(self, v):
        self.v = v

    def __add__(self, o):
        return Number(self.v + (o.v if isinstance(o, Number) else o))

    def __radd__(self, o):
        return Number(("r", o))

    def __sub__(self, o):
        return NotImplemented

    def __rsub__(self, o):
        return Number(("rsub", self.v))

    def __mul__(self, o):
        return Number(self.v * 2)

    __rmul__ = __mul__

    def __iadd__(self, o):
        self.v += 1000
        return self

    def __matmul__(self, o):
        return "matmul"

    def __pow__(self, o, mod=None):
        return ("pow", o, mod)

    def __neg__(self):
        return Number(-self.v)

    def __abs__(self):
        return "abs"

    def __invert__(self):
        return "invert"

    def __eq__(self, o):
        return isinstance(o, Number) and self.v == o.v

    def __hash__(self):
        return 5

    def __lt__(self, o):
        return self.v < o.v

    def __bool__(self):
        return bool(self.v)

    def __int__(self):
        return int(self.v)

    __index__ = __int__

    def __float__(self):
        return 1.5

    def __round__(self, n=None):
        return ("round", n)

    def __divmod__(self, o):
        return "divmod"

    def __repr__(self):
        return f"Number({self.v})"

    def __str__(self):
        return "number"

    def __format__(self, spec):
        return f"<{spec}>"

    def __len__(self):
        return 3

    def __contains__(self, o):
        return o == 1

    def __getitem__(self, k):
        if isinstance(k, int) and k > 2:
            raise IndexError
        return k

    def __setitem__(self, k, v):
        self.v = (k, v)

    def __delitem__(self, k):
        self.v = ("deleted", k)


@whole((X,))
def operators_by_special_methods(x):
    a, b = Number(2), Number(3)
    c = Number(1)
    c += 5
    d = Number(0)
    d[1, 2:3] = 4
    e = Number(0)
    del e["k"]
    return (
        x * (a + b).v,
        (a + 1).v,
        (1 + a).v,
        (5 - a).v,
        said(lambda: a - 5),
        (3 * a).v,
        c.v,
        a @ b,
        a**2,
        (-a).v,
        ~a,
        abs(a),
        a == Number(2),
        a != b,
        a < b,
        a > b,
        said(lambda: a <= b),
        not Number(0),
        int(a),
        float(a),
        round(a, 2),
        divmod(a, 1),
        repr(a),
        str(a),
        f"{a} {a!r} {a:spec}",
        len(a),
        1 in a,
        a[1:2],
        list(a),
        d.v,
        e.v,
        [10, 20, 30][a],
        {a: 1}[Number(2)],
        max(a, b).v,
        sorted([b, a])[0].v,
        sum([a, b], Number(0)).v,
    )


class Scaled:
    def __init__(self, k):
        self.k = k

    def __mul__(self, o):
        return o * self.k

    def __rmul__(self, o):
        return o * self.k * 10

    def __radd__(self, o):
        return NotImplemented


@case((X,))
def operators_between_tensors_and_objects(x):
    return Scaled(2) * x, x * Scaled(2), said(lambda: x - Scaled(1))


class Wrapped:
    def __init__(self, t):
        self.t = t

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [a.t if isinstance(a, cls) else a for a in args]
        return cls(func(*plain, **(kwargs or {})))


@case((X,))
def objects_with_torch_function(x):
    w = Wrapped(x)
    return torch.add(w, 1).t, torch.mul(x, w).t, torch.nn.functional.relu(w).t


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


@case((X,), (Y,))
def tensor_subclasses(x):
    t = x.as_subclass(Tagged)
    return type(t + 1).__name__, (t * 2).as_subclass(torch.Tensor), isinstance(t, Tagged)


class Stack(list):
    def push(self, v):
        self.append(v)
        return self

    @property
    def top(self):
        return self[-1]


class Defaults(dict):
    def __missing__(self, k):
        self[k] = k * 2
        return self[k]

    def __getattr__(self, k):
        try:
            return self[k]
        except KeyError as e:
            raise AttributeError(k) from e


class Celsius(float):
    def warm(self):
        return self > 20


class Label(str):
    def loud(self):
        return Label(self.upper())


class Pair(tuple):
    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    @property
    def first(self):
        return self[0]


@case((X,))
def subclasses_of_builtins(x):
    s = Stack([1]).push(x).push(2)
    d = Defaults(a=1)
    p = Pair(x, 3)
    return (
        s[1] + s.top,
        len(s),
        d[5],
        d.a,
        sorted(d, key=str),
        Celsius(25.0).warm(),
        Label("ab").loud(),
        p.first * p[1],
        p,
        s,
        isinstance(p, tuple),
    )


@scenario
def subclasses_of_builtins_from_outside(c):
    s, d, p, w, k = Stack([1, X]), Defaults(a=X), Pair(X, 3), Celsius(25.0), Label("ab")
    f = c(lambda x: (x + s[1] + d["a"] + p.first, s.top.sum(), d["zz"], w.warm(), w + 1, k.loud(), p[1]))
    yield f(X), d
    s.append(X * 2)
    yield f(X), d
    p, w, k = Pair(X, 4), Celsius(5.0), Label("cd")
    yield f(X)


# -- enum, namedtuple, dataclasses, typing


class Color(enum.Enum):
    RED = 1
    GREEN = "g"
    CRIMSON = 1

    @property
    def shout(self):
        return self.name + "!"

    @classmethod
    def default(cls):
        return cls.GREEN


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Mode(str, enum.Enum):
    SUM = "sum"
    MEAN = "mean"


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    C = A | B


@whole((X, Color.RED, Mode.SUM), (X, Color.GREEN, Mode.MEAN))
def enums_of_every_kind(x, color, mode):
    return (
        x + (1 if color is Color.RED else 2),
        x.sum() if mode == "sum" else x.mean(),
        color.shout,
        Color.default() is Color.GREEN,
        Color("g") is Color.GREEN,
        Color["RED"].value,
        Color.CRIMSON is Color.RED,
        [c.name for c in Color],
        x * Level.HIGH,
        Level.HIGH > Level.LOW,
        Level(5).name,
        Mode(mode).value,
        f"{mode.value} {color.name}",
        Flags.A in Flags.C,
        (Flags.A | Flags.B) is Flags.C,
        {Color.RED: 1}[Color.CRIMSON],
        isinstance(color, Color),
        len(Color),
        said(lambda: Color("none")),
    )


Pt = namedtuple("Pt", "x y", defaults=(5,))


class Span(NamedTuple):
    start: int
    stop: int = 10

    @property
    def size(self):
        return self.stop - self.start


@whole((X, Pt(1, 2)), (X, Pt(3)))
def named_tuples_of_every_kind(x, p):
    q = p._replace(x=x)
    a, b = q
    s = Span(2)
    match s:
        case Span(start=k):
            x = x + k
    return (
        x * p.y,
        q,
        a + b,
        s,
        s.size,
        s._asdict(),
        Pt._fields,
        Span._make([1, 2]),
        p == (1, 2),
        p[0],
        Pt(y=1, x=x).x,
    )


@dataclasses.dataclass
class Config:
    width: int = 3
    scale: float = 1.0
    names: list = dataclasses.field(default_factory=list)
    _seen: dict = dataclasses.field(default_factory=dict, repr=False)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: tuple = ()


@dataclasses.dataclass(kw_only=True, slots=True)
class Strict:
    t: torch.Tensor
    k: int = 2

    def __post_init__(self):
        self.k += 1


@dataclasses.dataclass(order=True)
class Ordered(Config):
    rank: int = 0


@case((X,))
def dataclasses_of_every_kind(x):
    c = Config(5, names=["a"])
    c.scale = 2.0
    f = Frozen(1, (2,))
    s = Strict(t=x)
    r = dataclasses.replace(c, width=7)
    return (
        x * c.scale + s.k,
        s.t * 2,
        c,
        r,
        f == Frozen(1, (2,)),
        hash(f) == hash(Frozen(1, (2,))),
        repr(f),
        said(lambda: setattr(f, "a", 2)),
        said(lambda: Strict(x)),
        [k.name for k in dataclasses.fields(c)],
        dataclasses.asdict(f),
        dataclasses.astuple(f),
        dataclasses.is_dataclass(f),
        Ordered(1) < Ordered(2),
        repr(c),
    )


@scenario
def dataclasses_from_outside(c):
    config, frozen, strict = Config(2, names=["a"]), Frozen(3), Strict(t=X)

    @c
    def f(x):
        config.names.append(len(config.names))
        config.scale = config.scale + 1
        strict.k += 1
        return x * config.width + frozen.a + strict.t, dataclasses.replace(frozen, b=(1,))

    yield f(X), config, strict.k
    config.width = 4
    yield f(X), config, strict.k


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @property
    def doubled(self):
        return self.area() * 2


class Square(Shape, Generic[T]):
    def __init__(self, t):
        self.t = t

    def area(self):
        return self.t * self.t


class HasArea(Protocol):
    def area(self): ...


@whole((X,))
def abstract_and_generic_classes(x):
    s = Square[int](x)
    return s.doubled, isinstance(s, Shape), issubclass(Square, Shape), said(lambda: Shape())


@whole((X,))
def typing_at_run_time(x):
    k = typing.cast(int, 3)
    alias = list[int]
    union = int | None
    return (
        x * k,
        alias.__origin__ is list,
        typing.get_origin(dict[str, int]) is dict,
        typing.get_args(dict[str, int]),
        isinstance(3, union),
        isinstance("s", int | str),
        typing.Optional[int] == typing.Union[int, None],  # noqa: UP007, UP045
    )
