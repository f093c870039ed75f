"""Functions to be stopped at every instruction: each case is (function, arguments)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

LOG: list[Any] = []
COUNT = 0


def straight(a: int, b: int = 2, *args: int, key: int = 4, **kwargs: int) -> int:
    c = a + b * key
    d = [c, a, *args]
    e = {"x": d, **kwargs}
    return sum(d) + len(e) + max(a, b, key=lambda v: -v)


def loops(n: int) -> list[int]:
    out = []
    for i in range(n):
        if i % 3 == 0:
            continue
        for j, k in zip(range(i), "abcdef"):
            if j == 4:
                break
            out.append(i * j + ord(k))
        else:
            out.append(-i)
    while n > 0:
        n -= 2
        out.append(n)
    return out


def chained(a: int, b: int, c: int) -> object:
    return ((a < b < c) and [a, b]) or (c and not a) or f"{a!r:>5}-{b:03d}-{c}"


@contextlib.contextmanager
def noted(name: str, swallow: bool = False) -> Iterator[str]:
    log = LOG  # one of an abandoned run is closed late, and must not write into the next run's
    log.append(f"in {name}")
    try:
        yield name.upper()
    except ValueError as error:
        log.append(f"{name} saw {error}")
        if not swallow:
            raise
    finally:
        log.append(f"out {name}")


def with_blocks(x: int) -> object:
    out = []
    with noted("a") as a, noted("b", swallow=True):
        out.append(a)
        if x > 1:
            raise ValueError(x)
        out.append("quiet")
    with noted("c"):
        for i in range(2):
            with noted(f"d{i}"):
                if i == x:
                    return out, LOG[:]
                out.append(i)
    return out, LOG[:]


def handlers(x: int) -> object:
    out: list[object] = []
    for i in range(3):
        try:
            out.append(10 // (i - x))
        except ZeroDivisionError as error:
            out.append(str(error))
            try:
                raise KeyError(i)
            except (KeyError, IndexError) as inner:
                out.append(type(inner.__context__).__name__)
        except ValueError:
            out.append("value")
        else:
            out.append("fine")
        finally:
            out.append("finally")
    return out


def reraised(x: int) -> object:
    out: list[object] = []
    try:
        try:
            if x:
                raise ValueError("one")
            out.append("none")
        except ValueError:
            out.append("handling")
            raise
        finally:
            out.append("cleanup")
    except ValueError as error:
        out.append(("outer", str(error)))
    try:
        try:
            int("x" if x else "3")
        except ValueError as error:
            raise TypeError("two") from error
    except TypeError as error:
        out.append(type(error.__cause__).__name__)
    return out


def return_in_finally(x: int) -> object:
    for i in range(3):
        try:
            if i == x:
                return ("early", i)
        finally:
            LOG.append(i)
            if x == 7 and i == 1:
                return LOG[:]
    return LOG[:]


def comprehensions(n: int, table: dict[str, int]) -> object:
    a = [i * n for i in range(n) if i != 1]
    b = {k: [v + j for j in range(2)] for k, v in table.items()}
    c = {x % 3 for x in a}
    d = sum(i * j for i in range(3) for j in a)
    n2 = [lambda: n + i for i in range(2)]
    return a, b, c, d, [f() for f in n2]


def cells(a: int, b: int) -> object:
    total = 0

    def add(v: int) -> int:
        nonlocal total, a
        total += v
        a += 1
        return total

    add(b)
    add(a)
    more = [add(i) for i in range(2)]
    total *= 2
    b = add(0)
    return total, a, b, more


def make_closure(x: int) -> Callable[..., object]:
    y = x * 2

    def inner() -> object:
        nonlocal y
        y += 1
        z = x + y
        y += len([x for _ in range(3)])
        return x, y, z

    return inner


def make_only_free() -> Callable[..., object]:
    items: list[int] = []
    count = 0

    def inner() -> object:
        nonlocal count
        items.append(len(items))
        count += 1
        items.append(count)
        return tuple(items), count, (lambda: count + len(items))()

    return inner


class Base:
    def __init__(self, v: int) -> None:
        self.v = v

    def value(self, extra: int) -> int:
        return self.v + extra


class Derived(Base):
    def __init__(self, v: int) -> None:
        super().__init__(v + 1)
        self.w = self.v * 2

    def value(self, extra: int = 1) -> int:
        base = super().value(extra)
        return base * 2 + (lambda: self.w)()


def objects(v: int) -> object:
    d = Derived(v)
    d.v += 3
    del d.w
    d.w = v
    first, *rest = [d.value(), d.value(extra=5), v]
    return first, rest, d.value(**{"extra": 2}), (d.v, d.w)


def names_come_and_go(x: int) -> object:
    seen = sorted(locals())
    y = x + 1
    del x
    if y > 2:
        z = y
        del y
    found = sorted(locals())
    return seen, found


def slices(s: str) -> object:
    t = list(s)
    t[1:3] = "xyz"
    t[::2] = [c.upper() for c in t[::2]]
    del t[-1]
    t[0] += "!"
    a, (b, *c) = t[0], t[1:]
    return "".join(t), a, b, c, s[1:], s[:-1:2]


def matching(v: object) -> object:
    match v:
        case {"a": int(a), **rest}:
            return a, rest
        case [x, y, *others] if x != y:
            return x, y, others
        case Base(v=n):
            return n
        case str() | None:
            return "text"
    return "else"


def globals_written(n: int) -> object:
    global COUNT
    COUNT = 0
    for _ in range(n):
        COUNT += 1
    return COUNT


def deep_stack(a: int) -> object:
    return [a, (a, [a, {a: (a, max(a, min(a + 1, abs(-a))), [*range(a)])}])]


def recursion(n: int) -> int:
    return 1 if n < 2 else n * recursion(n - 1)


CASES: list[tuple[Callable[..., object], tuple[object, ...]]] = [
    (straight, (1, 3, 5, 6)),
    (loops, (7,)),
    (chained, (1, 2, 3)),
    (chained, (3, 2, 1)),
    (chained, (0, -1, 0)),
    (with_blocks, (0,)),
    (with_blocks, (2,)),
    (with_blocks, (1,)),
    (handlers, (1,)),
    (handlers, (5,)),
    (reraised, (0,)),
    (reraised, (1,)),
    (return_in_finally, (1,)),
    (return_in_finally, (7,)),
    (comprehensions, (4, {"p": 1, "q": 2})),
    (cells, (3, 4)),
    (make_closure(5), ()),
    (make_only_free(), ()),
    (objects, (3,)),
    (names_come_and_go, (1,)),
    (names_come_and_go, (5,)),
    (slices, ("abcdefg",)),
    (matching, ({"a": 1, "b": 2},)),
    (matching, ([1, 2, 3],)),
    (matching, (Base(4),)),
    (matching, (None,)),
    (globals_written, (3,)),
    (deep_stack, (3,)),
    (recursion, (4,)),
]


def fresh() -> list[tuple[Callable[..., object], tuple[object, ...]]]:
    """The cases with closures made anew, for they keep state."""
    global LOG
    LOG = []
    renewed = []
    for function, args in CASES:
        if function.__qualname__.startswith("make_closure"):
            function = make_closure(5)
        elif function.__qualname__.startswith("make_only_free"):
            function = make_only_free()
        renewed.append((function, args))
    return renewed
