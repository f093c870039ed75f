"""What surrounds a computation: caches, contexts, copies, numpy, chance, identity, the order of effects."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import time
from types import SimpleNamespace

import numpy as np
import torch

import braze
from tests.end_to_end.conformance import attempt, case, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5


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
    o, p = SimpleNamespace(v=1), SimpleNamespace(v=1)
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
