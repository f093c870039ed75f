"""Classes, attributes, descriptors and protocols, as model code uses them."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import torch

from tests.end_to_end.conformance import attempt, case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5


@dataclasses.dataclass
class Out:
    value: Any
    extra: Any = None
    items: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        if self.extra is None:
            self.extra = "made"


@dataclasses.dataclass(frozen=True)
class Config:
    width: int
    scale: float = 2.0
    tags: tuple = ()


class Kind(enum.Enum):
    ADD = "add"
    MUL = "mul"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


Pair = namedtuple("Pair", "a b")


class Typed(NamedTuple):
    a: Any
    b: int = 3

    def total(self):
        return self.a + self.b


class ModelOutput(OrderedDict):
    """As in transformers: a dict whose items are attributes too and which can be indexed."""

    def __init__(self, **kw):
        super().__init__()
        for k, v in kw.items():
            if v is not None:
                self[k] = v

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, k):
        return super().__getitem__(k) if isinstance(k, str) else self.to_tuple()[k]

    def to_tuple(self):
        return tuple(super(ModelOutput, self).__getitem__(k) for k in self)


class Settings:
    """As in transformers: names are translated by __getattribute__ and __setattr__."""

    attribute_map = {"hidden_size": "width"}

    def __init__(self, **kw):
        for k, v in kw.items():
            setattr(self, k, v)

    def __setattr__(self, key, value):
        if key in super().__getattribute__("attribute_map"):
            key = super().__getattribute__("attribute_map")[key]
        super().__setattr__(key, value)

    def __getattribute__(self, key):
        if key != "attribute_map" and key in super().__getattribute__("attribute_map"):
            key = super().__getattribute__("attribute_map")[key]
        return super().__getattribute__(key)


class Base:
    count = 0
    table = {"k": 1}

    def __init__(self, w):
        self.w = w

    def forward(self, x):
        return x * self.w

    def __call__(self, x):
        return self.forward(x)

    @property
    def double(self):
        return self.w * 2

    @double.setter
    def double(self, v):
        self.w = v / 2

    @double.deleter
    def double(self):
        del self.w

    @classmethod
    def make(cls, w):
        return cls(w)

    @staticmethod
    def helper(x):
        return x + 1


class Child(Base):
    count = 5

    def forward(self, x):
        return super().forward(x) + self.helper(x)

    @classmethod
    def make(cls, w):
        made = super().make(w + 1)
        cls.count += 1
        return made


class Clamp:
    """A data descriptor."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name, 0)

    def __set__(self, obj, value):
        setattr(obj, self.name, min(value, 10))


class Described:
    level = Clamp()


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Fallback:
    def __init__(self):
        self.known = 1

    def __getattr__(self, name):
        if name.startswith("x_"):
            return len(name)
        raise AttributeError(f"no {name} here")


class Sequence:
    def __init__(self, items):
        self.items = items
        self.log = []

    def __getitem__(self, i):
        self.log.append(("get", i))
        return self.items[i]

    def __setitem__(self, i, v):
        self.log.append(("set", i))
        self.items[i] = v

    def __delitem__(self, i):
        del self.items[i]

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        return iter(self.items)

    def __contains__(self, v):
        return v == "magic"

    def __bool__(self):
        return len(self.items) > 1


@functools.total_ordering
class Money:
    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        return Money(self.v + (other.v if isinstance(other, Money) else other))

    __radd__ = __add__

    def __iadd__(self, other):
        self.v += other
        return self

    def __mul__(self, other):
        return NotImplemented

    def __eq__(self, other):
        return isinstance(other, Money) and self.v == other.v

    def __lt__(self, other):
        return self.v < other.v

    def __hash__(self):
        return hash(self.v)

    def __neg__(self):
        return Money(-self.v)

    def __repr__(self):
        return f"Money({self.v})"

    def __matmul__(self, other):
        return ("matmul", self, other)

    def __rmatmul__(self, other):
        return ("rmatmul", self.v)

    def __index__(self):
        return 1

    def __format__(self, spec):
        return f"<{spec}>"


@case((X, 1), (X, 2))
def dataclasses_are_made(x, n):
    out = Out(x + n, items=[x])
    out.items.append(n)
    changed = dataclasses.replace(out, extra=3)
    return (
        out,
        changed,
        dataclasses.asdict(Config(n)),
        [f.name for f in dataclasses.fields(out)],
        out.items is changed.items,
    )


@case((X, Config(3)), (X, Config(4)), (X, Config(3)), (X, Config(3, 1.5, ("a",))))
def frozen_dataclasses(x, config):
    try:
        config.width = 5
    except dataclasses.FrozenInstanceError as e:
        said = str(e)
    made = dataclasses.replace(config, scale=9.0)
    return (
        x * config.width * config.scale,
        made,
        said,
        config == Config(3),
        hash(made) == hash(config),
        {config: 1},
    )


@case((X, Pair(1, X)), (X, Pair(2, Y)), (X, Typed(Y)), (X, Typed(Y, 5)))
def named_tuples(x, p):
    a, b = p
    p2 = p._replace(b=9)
    return p2, p.a, p[1], p._fields, isinstance(p, tuple), Typed(x).total(), type(p)(x, 1), p._asdict()


@case((X, Kind.ADD), (X, Kind.MUL), (X, Level.LOW), (X, Level.HIGH))
def enums(x, k):
    if k is Kind.ADD or k == Level.LOW:
        x = x + 2
    return (
        x,
        k,
        k.name,
        k.value,
        Kind("mul"),
        Kind["ADD"],
        list(Kind),
        isinstance(k, int),
        Level.LOW + 1,
        k in (Kind.ADD,),
    )


@case((X, 0), (X, None))
def model_outputs(x, extra):
    out = ModelOutput(last=x + 1, hidden=(x, x * 2), extra=extra)
    out["late"] = x
    return (
        out,
        out.last,
        out[0] is out.last,
        out[1:],
        list(out),
        "hidden" in out,
        getattr(out, "nope", 1),
        len(out),
    )


@scenario
def a_model_output_as_argument(c):
    f = c(lambda o: (o.last * 2, o[0] + 1, o.to_tuple(), isinstance(o, dict), said(lambda: o.missing)))
    out = ModelOutput(last=X, b=Y)
    yield f(out), out
    out["last"] = Y
    yield f(out), out
    out["new"] = X
    yield f(out), out


@scenario
def translating_config(c):
    s = Settings(width=3, act="relu")

    @c
    def f(x, s):
        if s.act == "relu":
            x = torch.relu(x)
        return x * s.hidden_size + s.width, hasattr(s, "no"), getattr(s, "no", 4)

    yield f(Y, s)
    s.hidden_size = 4
    yield f(Y, s)
    s.act = "none"
    yield f(Y, s)
    s.no = 1
    yield f(Y, s)
    yield attempt(c(lambda x: x * s.nothing), X)


@scenario
def config_is_written(c):
    s = Settings(width=3)

    @c
    def f(x):
        s.hidden_size = s.width + 1
        return x * s.hidden_size

    yield f(X), s
    yield f(X), s


@scenario
def objects_and_inheritance(c):
    b, d = Base(2.0), Child(3.0)
    f = c(
        lambda o, x: (
            o(x),
            o.double,
            o.count,
            o.helper(x),
            type(o).__name__,
            isinstance(o, Child),
            o.table["k"],
        )
    )
    yield f(b, X), f(d, X)
    b.w = 5.0
    yield f(b, X), f(d, X)
    b.count = 9
    yield f(b, X), f(d, X)
    Base.count = 7
    yield f(Base(1), X)
    Base.count = 0
    Base.table["k"] = 2
    yield f(d, X)
    Base.table["k"] = 1


@scenario
def sequence_protocol(c):
    s = Sequence([X, Y, 3])

    @c
    def f(s, i):
        v = s[i]
        s[i] = v + 1
        return v, len(s), "magic" in s, [t for t in s], bool(s), s[0] is v

    yield f(s, 0), s
    yield f(s, 2), s
    yield attempt(f, s, 5), s

    @c
    def g(s):
        del s[0]
        return "yes" if s else "no"

    yield g(s), g(s), s


@case((X, 1), (X, 2))
def operators_on_objects(x, v):
    m = Money(v)
    n = m + 2
    n += 5
    return (
        n,
        sum([m, n]),
        m < n,
        m >= n,
        m == Money(v),
        -m,
        {m: 1}[Money(v)],
        m @ n,
        [5, 6, 7][m],
        f"{m:abc}",
        x + m.v,
        said(lambda: m * 2),
        sorted([n, m]),
        max(m, n),
    )


@scenario
def an_operator_on_an_argument(c):
    m = Money(1)

    @c
    def f(x, m):
        m += 3
        return x * m.v, m

    yield f(X, m), m
    yield f(X, m), m


@scenario
def objects_made_inside_escape(c):
    @c
    def f(x, keep):
        b = Base(x)
        b.self = b
        keep.append(b)
        keep.append([b, {"b": b}])
        return b

    keep = []
    yield f(X, keep), keep
    yield f(Y, keep), keep


@scenario
def a_class_made_inside(c):
    @c
    def f(x):
        class Local(Base):
            k = 3

            def forward(self, x):
                return super().forward(x) + self.k

        return Local(2)(x)

    yield f(X), f(Y)


@scenario
def abstract_and_generic(c):
    class Op(abc.ABC):
        @abc.abstractmethod
        def run(self, x): ...

    class Neg(Op):
        def run(self, x):
            return -x

    f = c(lambda x, o: (o.run(x), isinstance(o, Op), issubclass(type(o), abc.ABC), callable(o)))
    yield f(X, Neg()), attempt(c(lambda: Op()))


class Told:
    """What tells its length and its truth as it was told."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


class ToldTruth(Told):
    def __bool__(self):
        return self.length


@case((X, -1), (X, -2), (X, -3), (X, 4), (X, 5), (X, True), (X, "3"), (X, 2.0), (X, 1 << 70))
def lengths_and_truths_that_python_refuses(x, n):
    heard = []
    for ask in (len, bool, lambda v: 1 if v else 2):
        for told in (Told(n), ToldTruth(n)):
            try:
                heard.append(ask(told))
            except (TypeError, ValueError, OverflowError) as error:
                heard.append((type(error), str(error)))
    return x + 1, heard
