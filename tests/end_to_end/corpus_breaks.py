"""Graph breaks wherever they can be, errors raised and caught around them, and what is only known at run time."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import traceback
import warnings

import torch
from torch import nn

import braze
from tests.end_to_end.conformance import attempt, case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5


@case((X,), (Y,), kernels=True)
def printing_in_a_nested_call(x):
    def inner(y):
        z = y * 2
        print("inner", float(z.sum()))
        return z + 1

    return inner(inner(x)) * 2


@case((X,), (Y,), kernels=True)
def item_in_a_loop(x):
    out = []
    for row in x:
        k = row.sum().item()
        if k > 3:
            out.append(row * k)
            continue
        out.append(k)
    else:
        out.append("done")
    return out


@case((X,), (Y,))
def truth_of_a_tensor(x):
    if x.sum() > 0:
        y = x + 1
    elif x.mean() < -100:
        y = x
    else:
        y = x - 1
    return y if (x > -1).all() else -y, not x.any(), bool(x[0, 0]), x.sum() and 3, assert_positive(x.abs())


def assert_positive(x):
    assert (x >= 0).all(), "negative"
    return x.sqrt()


@case((X,), (Y - 10,))
def an_assertion_on_data(x):
    assert (x >= 0).all(), f"negative: {x.min().item()}"
    return x.sqrt()


@case((X, 3), (X, 0))
def a_break_in_a_while_loop(x, n):
    while x.sum() > n:
        x = x - 1
        if x.max() < 1:
            break
    else:
        return x, "else"
    return x


@case((X,), (Y,))
def a_break_in_with(x):
    log = []

    @contextlib.contextmanager
    def scope():
        log.append("in")
        braze.graph_break()
        try:
            yield 2
        finally:
            log.append("out")

    with torch.no_grad(), scope() as k:
        y = x * k
        braze.graph_break()
        y = y + float(y.sum())
    return y, log, torch.is_grad_enabled()


@case((X, False), (X, True), kernels=True)
def a_break_in_try(x, fail):
    order = []
    try:
        y = x * 2
        braze.graph_break()
        if fail:
            raise ValueError("after the break")
        order.append("ok")
    except ValueError as e:
        order.append(str(e))
        braze.graph_break()
        y = x - 1
    else:
        order.append("else")
    finally:
        order.append("finally")
        braze.graph_break()
        y = y + 1
    return y, order


@case((X, 0), (X, 1), (X, 2))
def an_error_after_a_break_in_a_callee(x, depth):
    def deep(y, k):
        y = y + 1
        braze.graph_break()
        if k == 0:
            raise KeyError("deep down")
        return deep(y, k - 1)

    try:
        return deep(x, depth)
    except KeyError as e:
        return x, str(e), len(traceback.extract_tb(e.__traceback__))


@case((X,), (Y,))
def the_operation_that_breaks_raises(x):
    try:
        k = int("no number" if x.sum() > 0 else "3")
    except ValueError as e:
        return x * 2, str(e)
    return x * k


@case((X,))
def an_uncaught_error_in_a_callee(x):
    def g(y):
        z = y * 2
        return h(z)

    def h(z):
        print("before")
        raise LookupError(f"shape {tuple(z.shape)}")

    return g(x)


@case((X,), (X.double(),))
def an_uncaught_wrong_shape_after_a_break(x):
    y = x * 2
    braze.graph_break()
    return y @ x


@case((X,), (Y,))
def breaks_inside_expressions(x):
    return {"a": x + x.sum().item(), "b": [x.max().item(), x * 2][0]}, (
        x.mean().item() if x.sum().item() > 0 else -x
    )


@case((X,), (Y,))
def breaks_in_comprehensions_and_lambdas(x):
    a = [r.sum().item() for r in x]
    b = {i: r.max().item() for i, r in enumerate(x) if r.sum() > 1}
    d = sorted(x, key=lambda r: -r.sum().item())
    e = list(map(lambda r: r.tolist(), x))
    return a, b, d, e, max(x, key=lambda r: r.mean().item()), any(r.sum() > 3 for r in x)


@case((X,), (Y,))
def breaks_in_a_generator(x):
    def rows():
        for r in x:
            if r.sum() > 3:
                yield r
            braze.graph_break()
            yield -r

    return list(rows()), sum(r.sum() for r in rows()), next(rows())


@case((X, 3), (Y, 3))
def breaks_in_recursion(x, n):
    def f(y, k):
        if k == 0:
            return y
        print(k)
        return f(y + 1, k - 1) * 2

    return f(x, n)


@case((X,))
def values_of_every_kind(x):
    return (
        x.tolist(),
        x.sum().item(),
        int(x[0, 1]),
        float(x[1, 1]),
        x.numpy().shape,
        x.nonzero(),
        x.unique(),
        len(x),
        list(x.shape),
        repr(x),
    )


@scenario
def breaks_in_methods_and_properties(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0

        @property
        def level(self):
            braze.graph_break()
            self.n += 1
            return self.n

        def __getattr__(self, name):
            if name == "magic":
                braze.graph_break()
                return 10
            return super().__getattr__(name)

        def __getitem__(self, i):
            print("item", i)
            return i * 2

        def forward(self, x):
            return x * self.level + self.magic + self[3], self.n

    n = M()
    f = c(n)
    yield f(X), f(X), n.n


@scenario
def state_written_around_breaks(c):
    log, table = [], {}

    class Opener:
        k = 0

    o = Opener()

    @c
    def f(x):
        log.append("before")
        o.k += 1
        y = x * o.k
        braze.graph_break()
        log.append(o.k)
        table[o.k] = y
        x.add_(1)
        braze.graph_break()
        o.k += len(table)
        return y, x, o.k

    x = X.clone()
    for _ in range(3):
        yield f(x), log, table, o.k


@scenario
def a_callback_sees_the_state(c):
    log = []

    @braze.disable
    def look():
        log.append(list(items))
        items.append("seen")

    items = []

    @c
    def f(x):
        items.append("one")
        look()
        items.append(len(items))
        look()
        return x, len(items)

    yield f(X), items, log
    yield f(X), items, log


@scenario
def nonlocal_across_a_break(c):
    n = 0

    @c
    def f(x):
        nonlocal n
        m = 0

        def bump():
            nonlocal n, m
            n += 1
            m += 1
            braze.graph_break()
            return n

        return x * bump() + bump() * m

    yield f(X), n
    yield f(X), n


@scenario
def autocast_across_a_break(c):
    @c
    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ x.t()
            braze.graph_break()
            b = x @ x.t()
        return a, b, x @ x.t()

    yield f(X)
    yield f(X)


@scenario
def no_grad_across_a_break(c):
    @c
    def f(x, fail):
        with torch.no_grad():
            a = x * 2
            print(torch.is_grad_enabled())
            b = x * 3
            if fail:
                raise ValueError("in no_grad")
        return a, b, x * 4

    x = X.clone().requires_grad_()
    yield f(x, False), torch.is_grad_enabled()
    yield attempt(f, x, True), torch.is_grad_enabled()


@scenario
def swallowed_by_a_context_manager(c):
    class Swallow:
        def __enter__(self):
            braze.graph_break()

        def __exit__(self, kind, value, tb):
            print("exit", kind, value)
            return kind is ValueError

    @c
    def f(x, error):
        with Swallow():
            x = x + 1
            raise error
        return x * 2

    yield f(X, ValueError("v")), attempt(f, X, KeyError("k"))


@scenario
def the_tracebacks_of_users(c):
    def level_three(x):
        return x.reshape(4, 4)

    def level_two(x):
        return level_three(x + 1)

    @c
    def f(x):
        return level_two(x * 2)

    yield attempt(f, X)
    yield attempt(f, X)
    yield attempt(f, torch.ones(4, 4))


@scenario
def exc_info_and_reraise(c):
    @c
    def f(x):
        try:
            raise ValueError("v")
        except ValueError:
            kind, value, _ = sys.exc_info()
            try:
                raise
            except ValueError as again:
                same = again is value
        return x, kind, same, sys.exc_info()

    yield f(X)


@scenario
def warnings_are_given(c):
    @c
    def f(x):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x + 1

    for _ in range(2):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            yield f(X), [(str(w.message), w.category) for w in found if "careful" in str(w.message)]


@scenario
def exceptions_of_the_users_own(c):
    class Stop(Exception):
        def __init__(self, payload):
            super().__init__("stop")
            self.payload = payload

    @c
    def f(x):
        raise Stop(x * 2)

    for _ in range(2):
        error = attempt(f, X)
        yield error, error.payload


@scenario
def exceptions_carry_notes(c):
    @c
    def f(x):
        try:
            raise ValueError("v")
        except ValueError as e:
            e.add_note("see here")
            raise

    error = attempt(f, X)
    yield error, error.__notes__


@scenario
def stop_iteration_and_next(c):
    @c
    def f(x, items):
        it = iter(items)
        a = next(it, None)
        return x, a, said(lambda: next(it)), said(lambda: next(iter([])))

    yield f(X, [1]), f(X, []), f(X, [1, 2])


@scenario
def compiled_inside_compiled(c):
    inner = c(lambda x: x * 2 + x.sum().item())
    outer = c(lambda x: inner(x + 1) - inner(x))
    yield outer(X), outer(Y), inner(X)


@scenario
def is_compiling_reads_no_different_outside(c):
    f = c(lambda x: x + 1)
    f(X)
    yield braze.is_compiling(), torch.compiler.is_compiling()


@scenario
def errors_do_not_poison_later_calls(c):
    @c
    def f(x, k):
        y = x * 2
        if k == 1:
            raise ValueError("once")
        return y.reshape(k, -1)

    yield attempt(f, X, 1), f(X, 2), attempt(f, X, 4), f(X, 3), attempt(f, X, 1), attempt(f, None, 2), f(Y, 6)


@case((X,))
def a_key_that_a_function_of_c_alone_makes_at_a_break(x):
    key = functools.cmp_to_key(lambda a, b: b - a)
    time.time()
    return x * 2, sorted([1, 3, 2], key=key)
