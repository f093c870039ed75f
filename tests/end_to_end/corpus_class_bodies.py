"""Classes defined inside compiled functions: of every kind, used there, and handed out."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import typing

import torch
from torch import nn

from tests.end_to_end.conformance import case, scenario

T = typing.TypeVar("T")
X = torch.arange(6.0).reshape(2, 3)
whole = functools.partial(case, whole=True)


@whole((X,), (X[:1],))
def plain_classes(x):
    class Scale:
        """Scales."""

        k: int = 2
        table = [1, 2]

        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return x * self.k + self.by

        @property
        def doubled(self):
            return self.by * 2

        @classmethod
        def of(cls, by):
            return cls(by + 1)

        @staticmethod
        def shape(x):
            return x.shape

    scale = Scale.of(x)
    scale.table.append(x.shape[0])
    return (
        scale(x) + scale.doubled,
        Scale.shape(x),
        Scale.table,
        Scale.__name__,
        Scale.__qualname__,
        Scale.__doc__,
        Scale.__annotations__,
        Scale.__module__,
        isinstance(scale, Scale),
        type(scale) is Scale,
    )


@whole((X,))
def bodies_that_compute(x):
    rows, unused = x.shape[0], 5

    class Table:
        rows = rows + 1 if False else 7
        half = x * 0.5
        names = [n for n in "abc"]
        for i in range(2):
            names.append(str(i))
        del i
        if rows > 2:
            big = True

        def total(self):
            return self.half.sum() + rows

    return Table().total(), Table.names, Table.rows, hasattr(Table, "i"), Table.big, unused


@whole((X,))
def heirs_and_super(x):
    class Base:
        def run(self, x):
            return x + 1

        def __repr__(self):
            return f"{type(self).__name__}!"

    class Mixed:
        def run(self, x):
            return super().run(x) * 3

    class Heir(Mixed, Base):
        def run(self, x):
            return super().run(x) - __class__.offset

        offset = 2

    return Heir().run(x), [c.__name__ for c in Heir.__mro__], issubclass(Heir, Base), repr(Heir())


@whole((X,))
def classes_that_hear_of_heirs(x):
    heard = []

    class Named:
        def __set_name__(self, owner, name):
            heard.append((owner.__name__, name))
            self.name = name

        def __get__(self, obj, owner=None):
            return self.name if obj is None else (obj.x, self.name)

    class Base:
        def __init_subclass__(cls, /, tag=None, **kwargs):
            super().__init_subclass__(**kwargs)
            heard.append((cls.__name__, tag))
            cls.tag = tag

    class Heir(Base, tag="t"):
        field = Named()

        def __init__(self, x):
            self.x = x

    return Heir(x + 1).field, Heir.field, Heir.tag, heard


@whole((X, 1), (X, 2))
def fields_of_a_class_that_is_made_write_themselves_down_in_it(x, k):
    class Field:
        def __set_name__(self, owner, name):
            owner.fields = (*getattr(owner, "fields", ()), name)

        def __get__(self, obj, owner=None):
            return owner.fields

    class Record:
        first, second = Field(), Field()

    return x * k, Record.fields, Record().second


@whole((X,))
def makers_of_classes(x):
    class Meta(type):
        def __new__(mcs, name, bases, space, **kwargs):
            space["extra"] = len(space) > 0
            return super().__new__(mcs, name, bases, space)

        def __init__(cls, name, bases, space, **kwargs):
            super().__init__(name, bases, space)
            cls.made = True

        def __call__(cls, *args):
            made = super().__call__(*args)
            made.stamped = 3
            return made

        @property
        def size(cls):
            return 4

    class Made(metaclass=Meta, word=1):
        def __init__(self, x):
            self.x = x

    by_hand = type("ByHand", (Made,), {"k": 5})
    made = by_hand(x)
    return made.x * made.stamped + made.k, Made.extra, Made.made, Made.size, type(by_hand).__name__


@whole((X,))
def data_classes_inside(x):
    @dataclasses.dataclass
    class Pair:
        a: torch.Tensor
        b: int = 2
        c: list = dataclasses.field(default_factory=list)

        def __post_init__(self):
            self.c.append(self.b)

    @dataclasses.dataclass(frozen=True, order=True)
    class Point:
        x: int
        y: int = 0

    pair = Pair(x, b=3)
    low, high = Point(1), Point(1, 2)
    try:
        low.x = 5
        frozen = False
    except dataclasses.FrozenInstanceError:
        frozen = True
    return (
        pair.a * pair.b,
        pair.c,
        [f.name for f in dataclasses.fields(pair)],
        low < high,
        low == Point(1),
        frozen,
        repr(high).split(".")[-1],
        dataclasses.replace(high, y=9).y,
    )


@whole((X,))
def tuples_and_enums_inside(x):
    Named = collections.namedtuple("Named", "a b")

    class Typed(typing.NamedTuple):
        a: torch.Tensor
        b: int = 1

        def product(self):
            return self.a * self.b

    class Color(enum.Enum):
        RED = 1
        BLUE = "b"

    class Level(enum.IntEnum):
        LOW = enum.auto()
        HIGH = enum.auto()

    named, typed = Named(x, 2), Typed(x + 1, 3)
    return (
        named.a * named.b + typed.product(),
        Named._fields,
        Typed._field_defaults,
        Color.RED.value,
        Color("b").name,
        [c.name for c in Color],
        Level.HIGH > 1,
        x * Level.HIGH,
    )


@whole((X,))
def abstract_and_generic_inside(x):
    class Op(abc.ABC):
        @abc.abstractmethod
        def run(self, x): ...

    class Double(Op):
        def run(self, x):
            return x * 2

    class Box(typing.Generic[T]):
        def __init__(self, value):
            self.value = value

    class Settings(typing.TypedDict):
        k: int

    try:
        Op()
        refused = False
    except TypeError:
        refused = True
    return (
        Double().run(x) + Box(x).value + Box[int](1).value,
        refused,
        isinstance(Double(), Op),
        Settings(k=1),
    )


@whole((X,))
def slots_and_errors_inside(x):
    class Slotted:
        __slots__ = ("a", "b")

        def __init__(self, a):
            self.a = a

    class Wrong(ValueError):
        def __init__(self, what):
            super().__init__(f"wrong {what}")
            self.what = what

    slotted = Slotted(x)
    slotted.b = 2
    try:
        raise Wrong("k")
    except Wrong as error:
        text, what = str(error), error.what
    return slotted.a * slotted.b, hasattr(slotted, "c"), text, what


@case((X,))
def modules_defined_inside(x):
    class Block(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k

        def forward(self, x):
            return torch.relu(x - self.k)

    return nn.Sequential(Block(1), Block(2))(x), type(Block(1)).__name__


@case((X,), (X[:1],))
def classes_handed_out(x):
    k = x.shape[0]

    class Result:
        scale = 2

        def __init__(self, x):
            self.x = x * k

        def again(self):
            return self.x * self.scale

    y = x + 1
    return Result(y).again(), Result, Result.scale, Result(y).x


@case((X,))
def instances_handed_out(x):
    @dataclasses.dataclass
    class Out:
        a: torch.Tensor

    y = x * 2
    return Out(y + 1).a, Out(y)


@scenario
def classes_kept_by_others(c):
    kept, made = [], {}

    class Base:
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            kept.append(cls.__name__)

    @c
    def f(x):
        class Heir(Base):
            value = 3

        made["last"] = Heir
        return x * Heir.value

    yield f(X), kept, made["last"].value, made["last"].__name__
    yield f(X), kept


@case((X,))
def classes_around_a_break(x):
    class Step:
        def __init__(self, k):
            self.k = k

        def run(self, x):
            print("running", x.sum())
            return x * self.k

    y = Step(2).run(x)
    step = Step(3)
    print(y.sum())
    return step.run(y)


@case((X,))
def bodies_that_fail(x):
    try:

        class Bad:
            k = 1 // 0

    except ZeroDivisionError:
        x = x + 1
    try:

        class Worse(int, str):
            pass

    except TypeError as error:
        return x, "conflict" in str(error)


@case((X,))
def bodies_that_break(x):
    class Loud:
        print("in the body", x.sum())
        k = 2

    return x * Loud.k


@scenario
def functions_of_autograd_inside(c):
    @c
    def f(x):
        class Steep(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 5

        return Steep.apply(x)

    for _ in range(2):
        x = X.clone().requires_grad_()
        f(x).sum().backward()
        yield x.grad


@case((X,))
def modules_with_parameters_defined_inside(x):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x)

    return Net()(x)


@case((X,))
def bases_that_stand_for_others(x):
    asked = []

    class Stands:
        def __mro_entries__(self, bases, **more):
            asked.append((bases, more))
            return (Stands,)

    stand = Stands()

    class Made(dict, stand):
        pass

    (bases, more) = asked[0]
    return x * 2, type(bases), bases == (dict, stand), more, Made.__mro__[1:3] == (dict, Stands), len(asked)


@scenario
def what_a_metaclass_and_a_base_are_asked_for_is_asked_once(c):
    log = []

    class Prepared(type):
        @classmethod
        def __prepare__(cls, name, bases, **keywords):
            log.append(("prepare", name, sorted(keywords)))
            return {"before": 1}

        def __new__(cls, name, bases, namespace, **keywords):
            log.append("new")
            return super().__new__(cls, name, bases, namespace)

        def __init__(cls, name, bases, namespace, **keywords):
            log.append("init")

    class Standing:
        def __mro_entries__(self, bases):
            log.append(("entries", len(bases)))
            return (Base,)

    class Base:
        pass

    stands = Standing()

    @c
    def f(x):
        class Made(metaclass=Prepared, tag=1):
            pass

        class Derived(stands):
            pass

        return x + Made.before, Derived.__mro__[1] is Base, Derived.__orig_bases__ == (stands,)

    for _ in range(2):
        yield f(X), log


@case((X,))
def metaclasses_that_do_not_agree(x):
    class One(type):
        pass

    class Other(type):
        pass

    class A(metaclass=One):
        pass

    class B(metaclass=Other):
        pass

    class Common(One, Other):
        pass

    class Agreed(A, B, metaclass=Common):
        pass

    try:

        class Refused(A, B):
            pass

    except TypeError as error:
        return x + 1, type(Agreed).__name__, str(error)


@whole((X,), (X + 1,))
def names_that_a_body_asks_for(x, s=2):
    class A:
        first = x * s
        so_far = sorted(k for k in locals() if not k.startswith("__"))
        seen = "first" in vars(), "first" in dir(), "x" in locals()

    return A.first, A.so_far, A.seen


@whole((X,), (X + 1,))
def names_that_a_body_puts_there(x):
    class A:
        locals()["put"] = 3

    return x * A.put
