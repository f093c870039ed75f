"""Attributes of classes, functions and modules, written by a compiled function and read back by it and by others."""

from __future__ import annotations

import abc
import functools
import operator
import types

import torch
from torch import nn

from tests.end_to_end.conformance import attempt, scenario, whole

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5


@whole
def a_counter_on_a_class(c):
    class Layer(nn.Module):
        calls = 0

        def forward(self, x):
            Layer.calls += 1
            type(self).last = x.sum()
            return x * self.calls

    class Other(Layer):
        pass

    f, g = c(Layer()), c(Other())
    for x in (X, Y, X, Y):
        yield f(x), g(x), Layer.calls, Other.calls, Layer.last, vars(Other).get("last")


@whole
def written_in_a_subclass_and_in_its_base(c):
    class Base:
        k = 1

        @classmethod
        def grow(cls, by):
            cls.k = cls.k + by
            return cls.k

    class Sub(Base):
        pass

    @c
    def f(x):
        a = Sub.grow(1), Base.k, Sub().k
        b = Base.grow(10), Sub.k, Base().k
        return x * Sub.k + Base.k, a, b

    for x in (X, Y, X):
        yield f(x), Base.k, Sub.k, "k" in vars(Sub)


@whole
def attributes_that_come_to_be(c):
    class Cache:
        pass

    def helper(x):
        return x * helper.scale

    @c
    def f(x):
        if not hasattr(Cache, "table"):
            Cache.table = {"made": x.sum()}
        if getattr(helper, "scale", None) is None:
            helper.scale = 2
        Cache.table["seen"] = x.dim()
        return helper(x) + Cache.table["made"], getattr(Cache, "nothing", 3)

    yield f(X), Cache.table, helper.scale
    yield f(Y), Cache.table, helper.scale
    helper.scale = 5
    Cache.nothing = 4
    yield f(Y), Cache.table
    del Cache.table
    yield f(Y), Cache.table


@whole
def absent_from_a_class_until_later(c):
    class A:
        def __init__(self):
            self.own = 1

    class B(A):
        def __getattr__(self, name):
            return 7

    a, b = A(), B()
    f = c(lambda x: (x + getattr(a, "k", 1), hasattr(A, "k"), x * b.k, hasattr(B, "k")))
    yield f(X)
    A.k = 2
    yield f(X)
    B.k = 3
    yield f(X)
    del A.k
    yield f(X)
    del B.k
    yield f(X)


@whole
def a_counter_on_a_function(c):
    def helper(x):
        helper.calls += 1
        helper.last = x * 2
        return helper.last + helper.calls

    helper.calls = 0

    @functools.wraps(helper)
    def wrapper(x):
        wrapper.calls = getattr(wrapper, "calls", 0) + 1
        return helper(x) * wrapper.calls

    f = c(lambda x: (helper(x), wrapper(x)))
    for x in (X, Y, X, Y):
        yield f(x), helper.calls, wrapper.calls, helper.last


@whole
def an_abstract_class(c):
    class Base(abc.ABC):
        seen = ()

        @abc.abstractmethod
        def run(self, x): ...

    class Real(Base):
        def run(self, x):
            Base.seen = (*Base.seen, x.shape[0])
            return x * len(self.seen)

    real = Real()
    f = c(lambda x: real.run(x))
    for x in (X, X[:1], X):
        yield f(x), Base.seen, Real.seen


@whole
def attributes_of_a_module(c):
    settings = types.ModuleType("settings_of_a_test")
    settings.level, settings.table = 1, {}

    @c
    def f(x):
        settings.level = settings.level + 1
        settings.last = x.sum()
        settings.table["k"] = settings.level
        return x * settings.level + settings.last

    for x in (X, Y, X):
        yield f(x), settings.level, settings.last, settings.table


@scenario
def what_changes_lookups(c):
    class A:
        def run(self, x):
            return x + 1

        @property
        def p(self):
            return 1

    class Meta(type):
        def __setattr__(cls, name, value):
            super().__setattr__(name, value * 2)

    class B(metaclass=Meta):
        k = 1

    @c
    def f(x, how):
        a = A()
        if how == 0:
            A.run = lambda self, x: x - 1
        elif how == 1:
            A.p = 3
        elif how == 2:
            B.k = 5
        elif how == 3:
            A.__doc__ = "told"
        elif how == 4:
            A.q = property(lambda self: 9)
        return a.run(x), a.p, B.k, A.__doc__, getattr(a, "q", None)

    for how in (-1, 0, 1, 2, 3, 4, -1):
        yield f(X, how)


@scenario
def c_code_sees_what_is_written(c):
    class A:
        k = 1

    def helper():
        return 0

    helper.k = 1

    @c
    def f(x):
        A.k = A.k + 1
        helper.k = helper.k + 1
        got = list(map(operator.attrgetter("k"), [A, A(), helper]))
        return x * sum(got), got, vars(A)["k"], helper.__dict__["k"]

    yield f(X), A.k, helper.k
    yield f(X), A.k, helper.k


@scenario
def written_around_breaks_and_errors(c):
    class A:
        k = 1

    @c
    def f(x, y):
        A.k = A.k + 1
        print("half way", A.k)
        A.k = A.k + float(x.sum())
        A.last = x @ y
        return x * A.k

    yield f(X, X.T), A.k, A.last
    yield attempt(f, X, X), A.k, A.last
    yield f(Y, Y.T), A.k, A.last


@scenario
def written_and_deleted(c):
    class A:
        k = 1

    @c
    def f(x):
        A.k = 2
        del A.k
        return x, hasattr(A, "k")

    yield f(X), hasattr(A, "k")
    yield attempt(f, X), hasattr(A, "k")


@scenario
def a_method_has_no_attributes_of_its_own(c):
    class A:
        def run(self, x):
            self.run.k = 1
            return x

    f = c(lambda x: A().run(x))
    yield type(attempt(f, X))
