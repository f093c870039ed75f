"""Functions, arguments and containers of the user's, captured in one graph."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import pytest
import torch
from captured import Run, check, same

import braze

X = torch.arange(6.0).reshape(2, 3)
SCALE = 3


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    y: int = 2

    def norm(self):
        return (self.x * self.x).sum() * self.y


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: torch.Tensor


class Pair(NamedTuple):
    a: torch.Tensor
    b: int


class Vector:
    def __init__(self, t):
        self.t = t

    def __add__(self, other):
        return Vector(self.t + (other.t if isinstance(other, Vector) else other))

    def __radd__(self, other):
        return Vector(other + self.t)

    def __getitem__(self, i):
        return self.t[i]

    def __len__(self):
        return self.t.shape[0]

    def __iter__(self):
        return iter([self.t[i] for i in range(len(self))])

    def __eq__(self, other):
        return isinstance(other, Vector)

    def __hash__(self):
        return 1

    def __bool__(self):
        return True

    def __contains__(self, item):
        return item == 1

    def __call__(self, k):
        return self.t * k

    @property
    def doubled(self):
        return self.t * 2


def arguments(x, *rest, scale=2, **named):
    return x * scale + sum(rest) + named["bias"]


def test_arguments_of_every_kind():
    def f(x):
        return arguments(x, 1, 2, scale=3, bias=x), arguments(*[x, 1], **{"bias": 2})

    check(f, X)


def test_defaults_and_keyword_only():
    def g(x, k=2, *, j=3):
        return x * k + j

    def f(x):
        return g(x), g(x, 5), g(x, j=7), functools.partial(g, k=9)(x)

    check(f, X)


def test_closures_and_nonlocal():
    def f(x):
        total = 0

        def add(v):
            nonlocal total
            total = total + v
            return total

        add(x)
        return add(x * 2), total

    check(f, X)


def test_global_is_guarded():
    def f(x):
        return x * SCALE

    run = check(f, X)
    global SCALE
    SCALE = 4
    try:
        assert torch.equal(run(X), X * 4)
    finally:
        SCALE = 3
    assert len(run.graphs) == 2


def test_loops_and_comprehensions():
    def f(x):
        parts = [x * i for i in range(3) if i != 1]
        named = {str(i): x + i for i in range(2)}
        ones = {i for i in (1, 2, 2)}
        out = 0
        for i, (k, v) in enumerate(named.items()):
            out = out + v * i + int(k)
        while len(parts) < 4:
            parts.append(x)
        else:
            out = out + 1
        return parts, named, out, len(ones), tuple(p.sum() for p in parts)

    check(f, X)


def test_generators():
    def count(x, n):
        for i in range(n):
            got = yield x * i
            if got is not None:
                x = x + got

    def chain(x):
        result = yield from count(x, 2)
        yield x if result is None else result

    def f(x):
        g = count(x, 3)
        first = next(g)
        second = g.send(10)
        return list(chain(x)), first, second, sum(count(x, 3)), list(itertools.islice(count(x, 9), 2))

    check(f, X)


def test_strings():
    def f(x, name):
        key = f"{name}_{x.shape[0]:>3}_{3.14159:.2f}_{name!r}"
        return {key: x, "-".join(["a", name]).upper(): x + 1, "%-4s" % name: x}  # noqa: UP031

    check(f, X, "n")


def test_containers():
    def f(x, items, table):
        d = collections.OrderedDict(a=x)
        d.move_to_end("a")
        dd = collections.defaultdict(list)
        dd["k"].append(x)
        a, *b, c = items
        merged = {**table, "z": x}
        q = collections.deque([x], maxlen=2)
        q.append(x + 1)
        return (
            d,
            dict(dd),
            a + c,
            b,
            merged,
            list(q),
            items[::-1],
            table.get("nope", 3),
            sorted(table),
            max(3, 4),
        )

    check(f, X, [X, X + 1, X + 2], {"b": X, "a": 2})


def test_dataclasses_and_namedtuples():
    def f(x):
        p = Point(x)
        q = dataclasses.replace(p, y=5)
        s = Slotted(x + 1)
        pair = Pair(x, 2)
        return p, q.norm(), s.x, pair, pair.a + pair._replace(b=4).b

    check(f, X)


def test_user_classes():
    def f(x):
        v = Vector(x) + 1
        w = 2 + v
        total = 0
        for row in w:
            total = total + row
        return total, w.doubled, w(3), len(w), v == w, bool(v), 1 in v, {v: 1}[w], sum(row.sum() for row in v)

    check(f, X)


def test_inheritance_and_super():
    class Base:
        scale = 2

        def __init__(self, x):
            self.x = x

        def run(self):
            return self.x * self.scale

        @classmethod
        def make(cls, x):
            return cls(x)

        @staticmethod
        def twice(x):
            return x * 2

    class Child(Base):
        scale = 3

        def run(self):
            return super().run() + self.twice(self.x)

        def __getattr__(self, name):
            if name == "lazy":
                return self.x - 1
            raise AttributeError(name)

    def f(x):
        c = Child.make(x)
        return c.run(), c.lazy, getattr(c, "nope", 5), hasattr(c, "x"), isinstance(c, Base), type(c).__name__

    check(f, X)


def test_exceptions():
    def risky(x, n):
        if n > 1:
            raise ValueError("n", n)
        return x

    def f(x):
        out = x
        for n in range(4):
            try:
                out = out + risky(x, n)
            except ValueError as error:
                out = out * error.args[1]
            else:
                out = out + 1
            finally:
                out = out - 1
        try:
            {}["k"]
        except (KeyError, IndexError):
            out = out + 5
        return out

    check(f, X)


def test_context_managers():
    import contextlib

    class Manager:
        def __init__(self):
            self.log = []

        def __enter__(self):
            self.log.append("in")
            return self

        def __exit__(self, kind, error, trace):
            self.log.append(kind is not None)
            return True

    @contextlib.contextmanager
    def scaled(x):
        yield x * 2

    def f(x):
        with Manager() as m:
            x = x + 1
            raise RuntimeError
        with scaled(x) as y:
            z = y + 1
        with contextlib.suppress(KeyError):
            {}[1]
        return x, z, m.log

    check(f, X)


def test_functools():
    @functools.lru_cache
    def cached(n):
        return n * 2

    @functools.wraps(cached)
    def wrapped(x, *args, **kwargs):
        return x

    class Lazy:
        @functools.cached_property
        def value(self):
            return 7

    def f(x):
        lazy = Lazy()
        return (
            x * cached(3),
            wrapped(x),
            lazy.value + lazy.value,
            functools.reduce(lambda a, b: a + b, [x, x, x]),
        )

    check(f, X)


def test_callbacks_of_c_code():
    def f(x):
        pairs = [(3, x), (1, x + 1), (2, x + 2)]
        ordered = sorted(pairs, key=lambda p: p[0])
        return ordered, list(map(lambda v: v * 2, [x, x])), list(filter(lambda p: p[0] > 1, pairs))

    check(f, X)


def test_mutated_arguments_are_replayed():
    def f(x, items, table, seen):
        items.append(x)
        items[0] = x * 2
        table["new"] = x
        del table["old"]
        table.update(a=3)
        seen.add(4)
        return items

    check(f, X, [X, 1], {"old": 1, "a": 2}, {1, 2})


def test_written_attributes_are_replayed():
    class Box:
        def __init__(self):
            self.count = 0
            self.gone = 1
            self.log = []

    def f(x, box):
        box.count += 1
        box.last = x * 2
        box.log.append(x)
        del box.gone
        return box.count + x

    run = Run(f)
    ours, theirs = Box(), Box()
    assert same(f(X, theirs), run(X, ours))
    assert same(vars(theirs), vars(ours))


def test_inplace_on_inputs():
    def f(x, y):
        x.add_(1)
        y[0] = 5
        x += y
        return x, x is y

    check(f, X.clone(), X.clone())


def test_result_that_is_an_input_is_the_input():
    def f(x):
        return [x, x + 1]

    run = Run(f)
    x = X.clone()
    assert run(x)[0] is x


def test_returned_functions():
    def f(x):
        k = x + 1

        def inner(y):
            return k * y

        return inner

    run = Run(f)
    assert torch.equal(run(X)(2), (X + 1) * 2)


def test_duplicate_inputs_are_guarded():
    def f(x, y):
        return x + 1 if x is y else x + 2

    run = Run(f)
    x = X.clone()
    assert torch.equal(run(x, x), X + 1)
    assert torch.equal(run(x, X.clone()), X + 2)
    assert torch.equal(run(x, x), X + 1)
    assert len(run.graphs) == 2


@pytest.mark.parametrize("value", [1, 1.5, "s", None, True, (1, 2), torch.float64, torch.Size([2])])
def test_constant_arguments_are_guarded(value):
    def f(x, v):
        return x, v

    run = Run(f)
    assert same(run(X, value), (X, value))
    assert same(run(X, 7), (X, 7))


def test_metadata_of_tensors():
    def f(x):
        b, n = x.shape
        y = x.view(-1, n // 1).to(torch.float64) if x.dtype == torch.float32 else x
        return y.reshape(x.size(0), *y.shape[1:]), x.dim(), x.numel(), x.device.type, len(x), x.T, b

    check(f, X)


def test_tensor_methods_and_indexing():
    def f(x):
        mask = x > 2
        first, second = x
        for row in x:
            first = first + row
        a, b, c = x.split(1, dim=1)
        values, indices = x.max(dim=-1)
        return (
            x[:, None, ..., 1:],
            torch.where(mask, x, -x),
            first * second,
            [a, b, c],
            values,
            indices,
            x @ x.T,
            1 - x,
        )

    check(f, X)


def test_a_key_that_an_ordered_dict_from_outside_loses():
    def f(x, table):
        del table["b"]
        table["d"] = x
        return list(table), x * table.pop("c")

    check(f, X, collections.OrderedDict(a=1, b=2, c=3))


class Doubles:
    """A property whose setter writes into the instance's dict under its own name."""

    def __init__(self) -> None:
        self.__dict__["p"] = 3

    @property
    def p(self) -> int:
        return self.__dict__["p"]

    @p.setter
    def p(self, value: int) -> None:
        self.__dict__["p"] = value * 2


def test_what_a_dict_holds_under_a_propertys_name_is_written_past_the_property() -> None:
    def write(kept: Doubles, x: torch.Tensor) -> Any:
        kept.p = 4
        made = Doubles()
        made.p = kept.p
        made.__dict__["itself"] = made
        return made, x + made.p

    def drop(kept: Doubles, x: torch.Tensor) -> Any:
        return x + kept.__dict__.pop("p")

    kept, x = Doubles(), torch.ones(2)
    made, y = braze.compile(write, backend="eager")(kept, x)
    assert (vars(kept), made.p, made.itself is made, y.tolist()) == ({"p": 8}, 16, True, [17.0, 17.0])
    assert braze.compile(drop, backend="eager")(kept, x).tolist() == [9.0, 9.0]
    assert vars(kept) == {}


def test_a_cached_property_behind_super_is_what_the_object_holds_and_a_new_one_is_seen() -> None:
    class Base:
        @functools.cached_property
        def p(self) -> int:
            return 1

    class Derived(Base):
        @functools.cached_property
        def p(self) -> int:
            return 2

        def past(self, x: torch.Tensor) -> torch.Tensor:
            return x + super().p

        def own(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.p

    x = torch.zeros(1)
    past, own = (braze.compile(f, backend="eager") for f in (Derived.past, Derived.own))
    kept, fresh = Derived(), Derived()
    assert kept.p == 2
    assert (past(kept, x).item(), past(fresh, x).item(), fresh.p) == (2, 1, 1)
    assert own(Derived(), x).item() == 2
    replaced = functools.cached_property(lambda self: 7)
    replaced.__set_name__(Derived, "p")
    Derived.p = replaced  # type: ignore[method-assign, assignment]
    assert own(Derived(), x).item() == 7
