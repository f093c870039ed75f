"""Side effects: what a function writes outside, in the order of eager, also where an exception ends it."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque

import torch
from torch import nn

from tests.end_to_end.conformance import attempt, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5

COUNT = 0
TABLE: dict[str, object] = {}
NAMES: list[str] = []


class Box:
    """Anything with attributes."""

    def __init__(self, **values):
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("a", "b")


class Logged:
    """Each write is noted: shows order."""

    def __init__(self, log):
        object.__setattr__(self, "log", log)

    def __setattr__(self, name, value):
        self.log.append(name)
        object.__setattr__(self, name, value)


@scenario
def attributes_set_and_deleted(c):
    box = Box(a=1, b=2, t=X)

    @c
    def f(box, x):
        box.a += 1
        box.c = x * box.a
        del box.b
        box.t, box.b = box.c, box.t
        return box.c + 1

    yield f(box, X), box
    yield f(box, Y), box


@scenario
def slots_and_properties_set(c):
    class P:
        def __init__(self):
            self._v, self.sets = 0, 0

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, value):
            self.sets += 1
            self._v = value

    s, p = Slotted(), P()
    s.a = 1

    @c
    def f(x):
        s.b = x + s.a
        s.a = 5
        p.v = x * 2
        p.v = p.v + 1
        return p.v

    yield f(X), s.a, s.b, p.v, p.sets
    yield f(Y), s.a, s.b, p.v, p.sets


@scenario
def writes_through_setattr_are_ordered(c):
    log = []
    a, b = Logged(log), Logged(log)

    @c
    def f(x):
        a.one = x
        b.two = x + 1
        a.three = 3
        b.one = a.one
        return x

    yield f(X), log, a.one, b.two
    yield f(Y), log, a.one, b.two


@scenario
def items_of_all_kinds_of_containers(c):
    d, o, dd = {"a": 1, "b": X}, OrderedDict(x=1, y=2, z=3), defaultdict(list)
    items, q, s = [1, 2, 3], deque([1, 2], maxlen=3), {1, 2}

    @c
    def f(x):
        d["c"] = x * 2
        del d["a"]
        d["a"] = d["b"]
        o.move_to_end("x")
        o["w"] = x.shape[0]
        dd["k"].append(x + 1)
        dd["k"].append(2)
        items[0] = x
        items.insert(1, "new")
        items.pop()
        q.append(x.sum())
        q.appendleft(0)
        s.add(3)
        s.discard(1)
        return x

    for x in (X, Y):
        yield f(x), list(d), d, list(o), dict(dd), items, list(q), sorted(s)


@scenario
def nested_containers_written(c):
    store = {"layers": [{"k": []}, {"k": []}], "n": {"steps": 0}}

    @c
    def f(x):
        for i, layer in enumerate(store["layers"]):
            layer["k"].append(x + i)
        store["n"]["steps"] += 1
        store["layers"].append(store["layers"][0])
        return len(store["layers"])

    yield f(X), store
    yield f(Y), store


@scenario
def the_same_list_by_two_names(c):
    items: list[object] = []
    a, b = Box(items=items), Box(items=items)

    @c
    def f(a, b, x):
        a.items.append(x)
        b.items.append(x + 1)
        return a.items is b.items, len(a.items)

    yield f(a, b, X), items
    b.items = []
    yield f(a, b, X), items, b.items


@scenario
def globals_written(c):
    global COUNT
    COUNT = 0
    TABLE.clear()
    NAMES.clear()

    @c
    def f(x):
        global COUNT
        COUNT += 1
        TABLE["x"] = x * COUNT
        NAMES.append(f"call {COUNT}")
        return x + COUNT

    yield f(X), COUNT, TABLE, NAMES
    yield f(Y), COUNT, TABLE, NAMES
    yield f(Y), COUNT, TABLE, NAMES


@scenario
def cells_written(c):
    def make():
        n, last = 0, None

        def f(x):
            nonlocal n, last
            n += 1
            last = x * n
            return last + 1

        return f, lambda: (n, last)

    f, look = make()
    f = c(f)
    yield f(X), look()
    yield f(Y), look()
    yield f(Y), look()


@scenario
def writes_before_an_exception(c):
    box, items, d = Box(n=0), [], {}

    @c
    def f(x, bad):
        box.n += 1
        items.append(x * 2)
        d["first"] = x + box.n
        if bad:
            raise ValueError(f"bad {box.n}")
        d["second"] = x
        return d["first"]

    yield attempt(f, X, False), box.n, items, d
    yield attempt(f, X, True), box.n, items, d
    yield attempt(f, Y, True), box.n, items, d
    yield attempt(f, Y, False), box.n, items, d


@scenario
def an_exception_of_an_operation_half_way(c):
    items, buffer = [], torch.zeros(3)

    @c
    def f(x, w):
        items.append("start")
        buffer.add_(1)
        y = x @ w
        items.append("end")
        buffer.add_(10)
        return y

    yield attempt(f, X, torch.ones(3, 2)), items, buffer
    yield attempt(f, X, torch.ones(4, 2)), items, buffer
    yield attempt(f, Y, torch.ones(3, 2)), items, buffer


@scenario
def an_exception_in_a_called_function(c):
    log = []

    def inner(x, n):
        log.append(("in", n))
        if n == 0:
            raise KeyError("deep")
        x.mul_(2)
        try:
            return inner(x, n - 1)
        finally:
            log.append(("out", n))

    @c
    def f(x, n):
        try:
            return inner(x, n)
        except KeyError as e:
            log.append(str(e))
            return x + 1

    @c
    def g(x, n):
        return inner(x, n)

    x = X.clone()
    yield f(x, 2), log, x
    yield attempt(g, x, 2), log, x
    yield attempt(g, x, 2), log, x


@scenario
def an_exception_in_with(c):
    log = []

    class Manager:
        def __enter__(self):
            log.append("enter")
            return self

        def __exit__(self, kind, value, trace):
            log.append(("exit", kind and kind.__name__))
            return False

    @c
    def f(x, bad):
        with Manager():
            x = x + 1
            log.append("inside")
            if bad:
                raise IndexError("no")
            log.append("after")
        return x

    yield attempt(f, X, False), log
    yield attempt(f, X, True), log
    yield attempt(f, X, True), log


@scenario
def random_of_python(c):
    @c
    def f(x):
        k = random.random()
        return x * k, random.randint(0, 5), random.choice([1, 2, 3])

    random.seed(1)
    yield f(X), random.random()
    yield f(X), random.random()
    random.seed(1)
    yield f(X)


@scenario
def an_input_list_filled(c):
    @c
    def f(x, out):
        for i in range(3):
            out.append(x * i)
        out[0].add_(5)
        out.reverse()
        return out

    for _ in range(2):
        out: list[object] = []
        yield f(X, out) is out, out


@scenario
def a_dict_of_the_caller(c):
    @c
    def f(x, state):
        state["step"] = state.get("step", 0) + 1
        state.setdefault("history", []).append(x.sum())
        state.update(last=x, n=state["step"] * 2)
        state.pop("gone", None)
        return state["step"]

    state = {"gone": 1}
    for x in (X, Y, X):
        yield f(x, state), list(state), state


@scenario
def two_objects_that_know_each_other(c):
    a, b = Box(n=0), Box(n=0)
    a.other, b.other = b, a

    @c
    def f(x):
        a.other.n += 1
        b.other.n += 2
        a.other.other.last = x
        a.other, b.other = a, b
        return x * a.n

    yield f(X), a.n, b.n, a.last, a.other is a, b.other is b
    yield f(X), a.n, b.n


@scenario
def a_new_object_is_left_behind(c):
    registry = {}

    @c
    def f(x, name):
        made = Box(value=x * 2, name=name)
        made.me = made
        registry[name] = made
        made.later = [x, made.value]
        return made

    one = f(X, "a")
    yield one is registry["a"], one.me is one, one.value is one.later[1], one.later[0] is X
    two = f(X, "a")
    yield two is one, two.value


@scenario
def a_class_attribute_and_a_function_attribute(c):
    class K:
        count = 0

    def helper(x):
        helper.calls = getattr(helper, "calls", 0) + 1
        return x * helper.calls

    @c
    def f(x):
        K.count += 1
        y = helper(x)
        return y + K.count

    yield f(X), K.count, helper.calls
    yield f(X), K.count, helper.calls


@scenario
def order_of_a_tensor_write_and_a_read(c):
    box = Box(t=None)

    @c
    def f(x):
        before = x.sum()
        box.t = x
        x.add_(1)
        box.copy = x.clone()
        x.add_(1)
        return before, box.t is x, box.copy.sum(), x.sum()

    x = X.clone()
    yield f(x), box.t is x, box.copy, x
    yield f(x), box.t is x, box.copy, x


@scenario
def attributes_put_on_tensors(c):
    @c
    def f(x, w):
        x.tag = "seen"
        w.count = getattr(w, "count", 0) + 1
        y = x * w
        y.kind = "result"
        return y, hasattr(y, "kind")

    w = nn.Parameter(torch.ones(3))
    for _ in range(2):
        x = X.clone()
        y, had = f(x, w)
        yield y, had, x.tag, w.count, getattr(y, "kind", None)


@scenario
def a_finally_writes(c):
    log, t = [], torch.zeros(3)

    @c
    def f(x, bad):
        try:
            log.append("try")
            t.add_(x[0])
            if bad:
                return x.view(5)
            return x * 2
        except RuntimeError as e:
            log.append(type(e).__name__)
            raise
        finally:
            log.append("finally")
            t.mul_(2)

    yield attempt(f, X, False), log, t
    yield attempt(f, X, True), log, t
    yield attempt(f, X, False), log, t


@scenario
def modes_left_changed_by_an_exception(c):
    @c
    def f(x, bad):
        torch.set_grad_enabled(False)
        y = x * 2
        if bad:
            raise ValueError("mode stays")
        torch.set_grad_enabled(True)
        return y

    x = X.clone().requires_grad_()
    yield attempt(f, x, False), torch.is_grad_enabled()
    yield attempt(f, x, True), torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    yield attempt(f, x, True), torch.is_grad_enabled()
    torch.set_grad_enabled(True)
