"""Arguments of thousands to millions of elements in odd shapes, whose sizes differ by orders of magnitude from call to call."""

from __future__ import annotations

import math
import random

from tests.fuzz.tensors.arguments import LAYOUTS, Shape, an_integer, plain
from tests.fuzz.tensors.program import Given
from tests.fuzz.tensors.values import INTEGERS

#: binary logarithms of how many elements all axes of a call have together
LEAST, USUAL, MOST = 12.0, 20.0, 21.9
#: the shares that up to three axes have of it
SHARES = (
    (1.0,),
    (0.9, 0.1),
    (0.75, 0.25),
    (0.5, 0.5),
    (0.6, 0.4),
    (0.9, 0.1, 0.0),
    (0.8, 0.1, 0.1),
    (0.45, 0.45, 0.1),
    (0.6, 0.2, 0.2),
    (0.34, 0.33, 0.33),
)
TINY = (0, 1, 1, 1, 2, 3, 5, 8)


def make(rng: random.Random, changing: bool) -> tuple[Given, ...]:
    """One to three tensors of axes that they share, and up to one integer."""
    count = len(rng.choice(SHARES))
    first = axes(rng, count)
    calls = [first]
    for _ in range(rng.choice((1, 1, 2, 3)) if changing else rng.choice((0, 0, 1))):
        calls.append(other(rng, first) if changing else first)
    rng.shuffle(calls)  # large ones come before and after small ones
    everything = tuple(range(count))
    given = [a_tensor(rng, 0, calls, everything)]
    for k in range(1, rng.choice((1, 2, 2, 3))):
        some = tuple(rng.sample(everything, rng.randint(1, count)))
        given.append(a_tensor(rng, k, calls, everything if rng.random() < 0.5 else some))
    if changing and rng.random() < 0.4:
        given.append(an_integer(rng, 0, len(calls), changing))
    return tuple(given)


def axes(rng: random.Random, count: int) -> list[int]:
    """The axes of one call, each of which may be the long one."""
    bits = rng.uniform(LEAST, MOST if rng.random() < 0.06 else USUAL)
    shares = rng.choice([shares for shares in SHARES if len(shares) == count])
    return [near(rng, 2 ** (bits * share)) for share in rng.sample(shares, count)]


def near(rng: random.Random, size: float) -> int:
    """A size where something ends: a power of two, one more or less, a prime; or any."""
    if size < 2:
        return rng.choice((1, 1, 2, 3, 5, 7))
    power = 2 ** round(math.log2(size))
    return rng.choice(
        (power, power - 1, power + 1, prime(int(size)), int(size), power + rng.randrange(1, 9) * 4)
    )


def prime(least: int) -> int:
    """The first prime that is no smaller."""
    while least < 2 or any(least % d == 0 for d in range(2, math.isqrt(least) + 1)):
        least += 1
    return least


def other(rng: random.Random, first: list[int]) -> list[int]:
    """The axes of another call: tiny or large ones, one more or less, or one axis of another length."""
    kind = rng.random()
    if kind < 0.35:
        made = [rng.choice(TINY) for _ in first]
    elif kind < 0.65:
        made = axes(rng, len(first))
    else:
        at = rng.randrange(len(first))
        changed = rng.choice((first[at] + 1, max(first[at] - 1, 0), first[at] // 64 + 1, rng.choice(TINY)))
        made = [changed if i == at else n for i, n in enumerate(first)]
    return [n if rng.random() < 0.8 else m for n, m in zip(made, first, strict=True)]


def a_tensor(rng: random.Random, k: int, calls: list[list[int]], order: tuple[int, ...]) -> Given:
    """A tensor of some of the axes, and now and then of a short one before or after them."""
    before = (rng.choice((1, 2, 3, 4)),) if rng.random() < 0.15 else ()
    after = (rng.choice((1, 2, 3, 5)),) if rng.random() < 0.15 else ()
    single = rng.randrange(len(order)) if rng.random() < 0.1 else None
    shapes = []
    for call in calls:
        inner = [1 if i == single else call[axis] for i, axis in enumerate(order)]
        shapes.append(within((*before, *inner, *after)))
    floats = ("float32", "float64", "bfloat16", "float16")
    dtype = rng.choices((*floats, rng.choice(INTEGERS), "bool"), (12, 2, 1, 1, 2, 0.8))[0]
    kind = rng.choices(("small", "normal", "seldom", "special", "large"), (8, 3, 1, 0.3, 0.3))[0]
    layout = rng.choice((plain, plain, plain, *LAYOUTS))
    texts = [layout(shape, f"'{dtype}', {100 * i + k}, '{kind}'") for i, shape in enumerate(shapes)]
    grad = rng.choices(("", "leaf", "made"), (5, 5, 1))[0] if "float" in dtype else ""
    return Given(f"x{k}", tuple(texts), grad)


def within(shape: Shape) -> Shape:
    """At most as many elements as a program may have."""
    while math.prod(shape) > 2**MOST:
        largest = max(range(len(shape)), key=lambda i: shape[i])
        shape = (*shape[:largest], (shape[largest] + 1) // 2, *shape[largest + 1 :])
    return shape
