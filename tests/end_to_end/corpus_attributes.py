"""Attributes of objects: set, deleted, looked up by descriptors, slots and hooks."""

from __future__ import annotations

import enum
import functools
import itertools
from collections import OrderedDict, deque
from types import SimpleNamespace

import torch

import braze
from tests.end_to_end.conformance import attempt, case, said, scenario
from tests.end_to_end.corpus_objects import Base, Child, Described, Fallback, Slotted

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5


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
def attributes_that_classes_of_c_have_not(c):
    """Their errors name the class with its module."""
    f = c(lambda x, o: (x + 1, said(lambda: o.bad), said(lambda: setattr(o, "bad", 1))))
    for o in (iter([]), itertools.count(), deque(), OrderedDict().keys(), functools.partial(max).func, 3):
        yield f(X, o)
    yield c(lambda x, o: (x + 1, said(lambda: o.bad)))(X, SimpleNamespace(a=1))


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
def missing_attributes_are_deleted(c):
    """What Python says of each."""

    @c
    def f(x, o):
        said_of_it = []
        for _ in range(2):
            try:
                del o.extra
            except AttributeError as e:
                said_of_it.append(str(e))
        return x + 1, said_of_it

    yield f(X, Base(2.0))
    o = SimpleNamespace(extra=1)
    yield f(X, o), o
    yield f(X, Slotted(1))


class Numbered:
    def __init__(self):
        self.k1, self.k2, self.k3, self.k4 = 10, 20, 30, 40


@case(*[(X, n, Numbered()) for n in (1, 2, 4, 3, 7)])
def attributes_are_looked_for_by_the_number_that_they_have_in_each_call(x, n, o):
    found = hasattr(o, f"k{n}"), hasattr(o, f"z{n}"), getattr(o, f"k{n}", None), getattr(o, f"z{n}", "none")
    return x + n, found


@case(*[(X, n, Numbered()) for n in (1, 2, 4, 3)])
def attributes_are_written_under_the_number_that_they_have_in_each_call(x, n, o):
    made, plain = Numbered(), SimpleNamespace(a=1)
    setattr(made, f"m{n}", x * 2)
    object.__setattr__(made, f"q{n}", n)
    delattr(made, f"k{n}")
    setattr(plain, f"b{n}", x)
    setattr(o, f"c{n}", n)
    braze.graph_break()
    return sorted(vars(made)), sorted(vars(plain)), sorted(vars(o)), made


@case((X,))
def names_that_python_cannot_write_are_names_all_the_same(x):
    made = functools.partial(dict, **{"class": 1, "a b": 2, "\ufb01": 3})
    braze.graph_break()
    return made(), SimpleNamespace(**{"k.": x, "None": 3, "__debug__": 2})


class Deleting:
    """Notes what is done to the attribute that it stands for."""

    def __set__(self, holder, value):
        holder.log.append(("set", value))

    def __get__(self, holder, cls=None):
        return 1

    def __delete__(self, holder):
        holder.log.append("deleted")


class WithDeleters:
    field = Deleting()

    def __init__(self, log):
        self.log = log

    @property
    def asked(self):
        return 2

    @asked.deleter
    def asked(self):
        self.log.append("property deleted")

    @property
    def kept(self):
        return 3


@scenario
def fields_are_deleted_by_the_code_that_stands_for_them(c):
    def f(x, holder):
        holder.field = 4
        del holder.field, holder.asked
        object.__delattr__(holder, "field")
        return x + holder.field, said(lambda: delattr(holder, "kept"))

    inside, outside, log = c(lambda x: f(x, WithDeleters(log))), c(f), []
    holder = WithDeleters(log)
    for _ in range(2):
        yield inside(X), log
        yield outside(X, holder), log


class Counting:
    """What counts its calls and reads on itself, as caches and decorators of programs do."""

    def __init__(self):
        self.n = 0

    def __call__(self, *args):
        self.n += 1
        return self.n


class Remembered(Counting):
    """A data descriptor with state."""

    def __get__(self, obj, owner=None):
        return self if obj is None else self()

    def __set__(self, obj, value):
        self.n += value

    def __delete__(self, obj):
        self.n = -1


def holders():
    class Meta(type):
        met = Remembered()
        told = property(Counting())

    class Holder(metaclass=Meta):
        a = Remembered()
        static = staticmethod(Counting())
        of_class = classmethod(Counting())
        told = property(Counting(), Counting(), Counting())
        kept = functools.cached_property(Counting())
        __len__ = Counting()
        __getattr__ = Counting()

    return Holder


@scenario
def what_descriptors_and_what_they_wrap_count_on_themselves(c):
    def reads(h, x):
        return x * h.a, h.static(), h.of_class(), h.told, h.kept

    def writes(h, x):
        h.a = 3
        h.told = 2
        del h.told
        return x * h.a

    def of_the_metaclass(h, x):
        return x * type(h).met * type(h).told

    def by_c(h, x):
        return x * len(h) + h.missing

    def of_the_classes_dict(h, x):
        return x * vars(type(h))["static"].__func__()

    def deletes(h, x):
        del h.a
        return x * h.a

    for function in (reads, writes, of_the_metaclass, by_c, of_the_classes_dict, deletes):
        kind = holders()
        f = c(function)
        for _ in range(3):
            yield f(kind(), X)
        yield vars(kind)["a"].n, vars(type(kind))["met"].n
        vars(kind)["a"].n = vars(kind)["static"].__func__.n = 10
        yield f(kind(), X)


class Dependent(property):
    """As torch.distributions' dependent properties are."""


class Method(classmethod):
    """As abstract class methods are."""


@scenario
def properties_and_methods_of_a_class_below_are_as_those_above(c):
    class Scaled:
        def __init__(self):
            self.n = 1

        @Dependent
        def k(self):
            return self.n

        @k.setter
        def k(self, value):
            self.n = value * 2

        @k.deleter
        def k(self):
            self.n = 7

    def written(x, o):
        o.k = o.n + 1
        return x * o.k

    def deleted(x, o):
        del o.k
        return x * o.n

    o = Scaled()
    f, g, h = c(lambda x, o: x * o.k), c(written), c(deleted)
    for n in (1, 2, 3):
        o.n = n
        yield f(X, o), g(X, o), o.n, h(X, o), o.n
    Scaled.k = Dependent(lambda self: self.n * 100)
    yield f(X, o)
    Scaled.made = Method(lambda cls: 2)
    f = c(lambda x: x * Scaled.made())
    yield f(X)
    Scaled.made = Method(lambda cls: 3)
    yield f(X)
    binomial = torch.distributions.Binomial(7, torch.full((3,), 0.5))
    f = c(lambda x: binomial.log_prob(x))
    for bound in (7, 6):
        binomial.total_count.fill_(bound)
        yield attempt(lambda: f(torch.tensor([1.0, 7.0, 2.0])))


@scenario
def a_property_of_a_metaclass_is_replaced(c):
    kind = holders()
    f = c(lambda h, x: x * type(h).told)
    yield f(kind(), X)
    type(kind).told = property(lambda cls: 7)
    yield f(kind(), X)


class Stateful(enum.Enum):
    LIST = [1]  # noqa: RUF012
    TENSOR = torch.ones(3)
    PAIR = (1, [2])

    def hit(self):
        self.hits = getattr(self, "hits", 0) + 1
        return self.hits


class Told(enum.Enum):
    A = [1]  # noqa: RUF012

    @property
    def value(self):
        return len(self._value_) * 10


@scenario
def values_of_members_that_change(c):
    @c
    def f(x):
        Stateful.LIST.value.append(0)
        Stateful.PAIR.value[1].append(Stateful.LIST.hit())
        Stateful.TENSOR.value.add_(1)
        return x * Stateful.TENSOR.value, len(Stateful.LIST.value), Stateful.PAIR.value[1][-1], Told.A.value

    before = Stateful.TENSOR.value.clone()
    for _ in range(3):
        yield f(X)
        Told.A._value_.append(1)
    yield Stateful.LIST.value, Stateful.PAIR.value, Stateful.TENSOR.value
    del Stateful.LIST.value[1:], Stateful.PAIR.value[1][1:], Told.A._value_[1:], Stateful.LIST.hits
    Stateful.TENSOR.value.copy_(before)


@scenario
def defaults_are_asked_for_after_a_call_has_written_one(c):
    def added(x, held=[]):  # noqa: B006
        held.append(1)
        return x * len(added.__defaults__[0])

    f = c(lambda x: (added(x), added.__defaults__[0] is added.__defaults__[0]))
    for _ in range(3):
        yield f(X), added.__defaults__


class Shared:
    """Objects that have all their attributes in common."""

    held = {}  # noqa: RUF012

    def __init__(self):
        self.__dict__ = self.held


@scenario
def attributes_that_new_objects_share_with_what_lies_outside(c):
    @c
    def f(x):
        made = Shared()
        made.n = getattr(made, "n", 0) + 1
        return x * made.n

    for _ in range(3):
        yield f(X), Shared.held
    Shared.held.clear()
    yield f(X), Shared.held
    Shared.held.clear()


class ByItems(dict):
    """A dict whose items are attributes, by methods of C."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


@scenario
def attributes_that_are_items_by_methods_of_c(c):
    @c
    def f(x, d):
        d.n += 1
        d.last = x * d.n
        if "gone" in d:
            del d.gone
        return d.last, sorted(d)

    d = ByItems(n=0)
    for k in range(3):
        yield f(X, d), d
        d.gone = k
