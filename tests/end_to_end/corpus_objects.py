"""Classes, attributes, descriptors and protocols, as model code uses them."""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
import enum
import functools
import random
import time
from collections import OrderedDict, namedtuple
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

import braze
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
def methods_are_replaced(c):
    b = Base(2.0)
    f = c(lambda x: b(x))
    yield f(X)
    b.forward = lambda x: x - 100
    yield f(X)
    del b.forward
    yield f(X)
    old = Base.forward
    Base.forward = lambda self, x: x + 7
    yield f(X)
    Base.forward = old
    yield f(X)
    b.__class__ = Child
    yield f(X)


@scenario
def class_methods(c):
    Child.count = 5

    @c
    def f(x):
        made = Child.make(2)
        return made(x), made, Child.count, Base.helper(x)

    yield f(X), Child.count
    yield f(X), Child.count


@scenario
def properties_written_and_deleted(c):
    b = Base(2.0)

    @c
    def f(x, o):
        o.double = o.double + 6
        return x * o.w

    yield f(X, b), b
    yield f(X, b), b

    @c
    def g(x, o):
        del o.double
        return x, hasattr(o, "w"), hasattr(o, "double")

    yield g(X, b), b
    yield attempt(g, X, b), b


@scenario
def data_descriptors(c):
    d = Described()

    @c
    def f(x, d, v):
        d.level = v
        d.level += 3
        return x * d.level, Described.level is Described.__dict__["level"]

    yield f(X, d, 2), d
    yield f(X, d, 50), d


@scenario
def slots(c):
    s = Slotted(1)

    @c
    def f(x, s):
        had = hasattr(s, "b")
        s.b = x + s.a
        s.a += 1
        return had, s.b, said(lambda: setattr(s, "zz", 1))

    yield f(X, s), s.a, s.b
    yield f(X, s), s.a, s.b
    t = Slotted(1)
    yield f(X, t), t.a


@scenario
def getattr_fallback(c):
    o = Fallback()
    f = c(lambda x, o: (x * o.x_abc + o.known, getattr(o, "q", 5), hasattr(o, "x_"), said(lambda: o.bad)))
    yield f(X, o)
    o.x_abc = 10
    yield f(X, o)
    del o.x_abc
    yield f(X, o)


@scenario
def attributes_by_name(c):
    o = SimpleNamespace(a=1, b=X)

    @c
    def f(x, o, name):
        v = getattr(o, name, "absent")
        setattr(o, name, x)
        if hasattr(o, "a"):
            delattr(o, "a")
        return v, sorted(vars(o)), "b" in o.__dict__

    yield f(Y, o, "a"), o
    yield f(Y, o, "b"), o
    yield f(Y, o, "c"), o
    yield attempt(c(lambda: delattr(o, "zz"))), o


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


@scenario
def cached_things(c):
    calls = []

    class Lazy:
        @functools.cached_property
        def value(self):
            calls.append("property")
            return 3

    @functools.lru_cache
    def slow(k):
        calls.append(k)
        return k * 2

    lazy = Lazy()
    f = c(lambda x, k: x * lazy.value + slow(k))
    yield f(X, 1), calls
    yield f(X, 1), calls
    yield f(X, 2), calls, vars(lazy)


class Scope:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append(("exit", kind, str(value), tb is None))
        return self.swallow


@case((X, 0, False), (X, 1, False), (X, 1, True), (X, 2, False))
def user_context_managers(x, how, swallow):
    log = []
    with Scope(log, swallow) as s, Scope(log):
        log.append(s is not None)
        if how == 1:
            raise ValueError("inside")
        x = x + 1
        if how == 2:
            return x, log
    return x, log


@scenario
def context_managers_from_generators(c):
    log = []

    @contextlib.contextmanager
    def scope(k):
        log.append(("in", k))
        try:
            yield k * 2
        except ValueError as e:
            log.append(str(e))
        finally:
            log.append("out")

    @c
    def f(x, fail):
        with scope(3) as v, contextlib.suppress(KeyError), contextlib.nullcontext(5) as five:
            if fail:
                raise ValueError("v")
            x = x * v + five
            {}["k"]
        return x

    yield f(X, False), log
    yield f(X, True), log
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, "done")
        yield f(X, False)
    yield log


@scenario
def exit_stack_inside(c):
    @c
    def f(x, n):
        log = []
        with contextlib.ExitStack() as stack:
            for i in range(n):
                stack.enter_context(Scope(log))
            stack.callback(log.append, "cb")
            x = x + len(log)
        return x, log

    yield f(X, 2), f(X, 3)


@case((X,))
def copies_of_containers(x):
    a = [x, [1]]
    shallow, deep = copy.copy(a), copy.deepcopy([1, {"k": [2]}])
    return shallow, shallow[1] is a[1], shallow[0] is x, deep, list(a) == a, a[:] is a


@scenario
def copies_of_arguments(c):
    f = c(lambda o: (copy.copy(o), copy.copy(o) is o, o))
    yield f(SimpleNamespace(a=X, b=[1])), f([X, Y]), f({"a": X})


@case((X,))
def types_as_values(x):
    kinds = {int: "i", float: "f", torch.Tensor: "t"}
    return (
        kinds[type(x)],
        type(1) is int,
        isinstance(x, (int, torch.Tensor)),
        int("3"),
        float(2),
        str(5),
        list("ab"),
        tuple([1]),
        bool([]),
        dict(a=1),
        set([1]),
        type(x).__name__,
        isinstance([], list),
        issubclass(bool, int),
    )


@case((np.float32(2.0), X), (np.int64(3), X), (np.float64(2.5), X), (np.bool_(True), X), (np.int64(4), X))
def numpy_scalars(k, x):
    return x * k, k, type(k), k + 1, float(k)


@case((np.arange(3.0), X), (np.arange(3.0) + 1, X))
def numpy_arrays(a, x):
    return x + torch.from_numpy(a).float(), a.sum(), a.shape


@scenario
def random_is_never_baked_in(c):
    f = c(lambda x: (x + random.random(), random.randint(0, 10**6), random.choice([1, 2, 3])))
    yield f(X)
    yield f(X)
    g = c(lambda x: x * np.random.rand())
    np.random.seed(0)
    yield g(X), g(X)


@scenario
def clocks_are_never_baked_in(c):
    f = c(lambda x: (x, time.perf_counter(), time.time_ns()))
    first, second, third = f(X), f(X), f(X)
    yield first[1] < second[1] < third[1], first[2] < second[2] < third[2]


@scenario
def ids_and_hashes_are_not_baked_in(c):
    f = c(lambda x, o: (id(o), x + 1))
    objects = [object() for _ in range(4)]
    yield [f(X, o)[0] == id(o) for o in objects]
    g = c(lambda x, o: {id(o): x})
    yield [next(iter(g(X, o))) == id(o) for o in objects]


@scenario
def identity_of_arguments(c):
    f = c(lambda a, b: (a is b, [a, b][0] is a, a in [b] if a is b else None))
    o, p = Base(1), Base(1)
    yield f(o, o), f(o, p), f(p, p), f(None, None), f([], [])


@scenario
def the_same_list_twice(c):
    @c
    def f(x, a, b):
        a.append(x)
        return len(b), b

    q, r = [], []
    yield f(X, q, q), q
    yield f(X, q, r), q, r
    yield f(X, r, r), r


@scenario
def containers_grow_between_calls(c):
    items, table = [X], {"a": X}
    f = c(lambda: (sum(t.sum() for t in items), [k for k in table], torch.stack([*table.values()])))
    for i in range(3):
        yield f()
        items.append(Y + i)
        table[f"b{i}"] = Y
    table["a"] = Y
    yield f()


@scenario
def attributes_change_type(c):
    o = SimpleNamespace(v=1)
    f = c(lambda x: (x + o.v if o.v is not None else x, o.v))
    for v in (1, 2, 1.5, None, True, X, torch.tensor(3), np.float32(1), 1):
        o.v = v
        yield attempt(f, X)


@scenario
def effects_keep_their_order(c):
    log, o = [], SimpleNamespace(n=0)

    class Loud:
        def __setattr__(self, name, value):
            log.append((name, value))
            super().__setattr__(name, value)

    loud = Loud()

    @c
    def f(x):
        log.append("a")
        loud.p = 1
        o.n += 1
        log.append(o.n)
        loud.q = x
        return x, log[-1] is x

    yield f(X), log
    yield f(X), log


@scenario
def effects_before_an_exception(c):
    log, o = [], SimpleNamespace(n=0, t=None)

    @c
    def f(x, fail):
        log.append("in")
        o.n += 1
        o.t = x * 2
        x.add_(1)
        if fail:
            raise RuntimeError("after effects")
        return x

    x = X.clone()
    yield f(x, False), log, o, x
    yield attempt(f, x, True), log, o, x
    yield attempt(f, x, True), log, o, x


@scenario
def disabled_functions_are_called(c):
    log = []

    @braze.disable
    def secret(x):
        log.append(float(x.sum()))
        return x * log[-1]

    f = c(lambda x: secret(x + 1) * 2)
    yield f(X), log
    yield f(Y), log
