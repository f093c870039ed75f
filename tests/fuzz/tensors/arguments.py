"""The arguments of programs: shapes, types, numbers, and how they lie in memory, at each call."""

from __future__ import annotations

import math
import random

from tests.fuzz.tensors.program import Given
from tests.fuzz.tensors.values import INTEGERS, names

SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33)
Shape = tuple[int, ...]


def make(rng: random.Random, changing: bool) -> tuple[Given, ...]:
    """One to three tensors and up to two integers; ``changing``: other sizes, layouts and integers at each call."""
    calls = rng.choice((2, 3, 4)) if changing else rng.choice((1, 2))
    sizes = [[rng.choice(SIZES) for _ in range(3)] for _ in range(calls)]
    for row in sizes[1:]:
        for axis in range(3):
            if not changing or rng.random() < 0.3:
                row[axis] = sizes[0][axis]
    given: list[Given] = []
    for k in range(rng.choice((1, 2, 2, 3))):
        given.append(a_tensor(rng, k, sizes, changing, given))
    integers = rng.choice((0, 1, 2)) if changing else rng.choice((0, 0, 1))
    for k in range(integers):
        given.append(an_integer(rng, k, calls, changing))
    return tuple(given)


def a_tensor(
    rng: random.Random, k: int, sizes: list[list[int]], changing: bool, before: list[Given]
) -> Given:
    """One tensor: new, or a view of one before it."""
    name = f"x{k}"
    others = [one for one in before if dims(one) >= 0]
    if others and rng.random() < 0.12:
        other = rng.choice(others)
        view = rng.choice(("", ".detach()[...]", ".detach()[1:]", ".detach().unsqueeze(0)", ".detach().mT"))
        if dims(other) >= {".detach()[1:]": 1, ".detach().mT": 2}.get(view, 0):
            return Given(name, (f"{other.name}{view}",) * len(other.calls))
    axes = [rng.choice((0, 1, 2, None)) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)))]
    fixed = [rng.choice((1, 2, 3, 4)) for _ in axes]
    shapes = [
        tuple(row[axis] if axis is not None else size for axis, size in zip(axes, fixed, strict=True)) for row in sizes
    ]  # fmt: skip
    shapes = [smaller_shape(shape) for shape in shapes]
    dtype = rng.choices(
        ("float32", "float64", "bfloat16", "float16", rng.choice(INTEGERS), "bool"), (10, 3, 1.5, 1.5, 3, 1)
    )[0]
    kind = rng.choices(("small", "normal", "special", "large"), (8, 4, 2, 0.5))[0]
    layout = rng.choice(LAYOUTS)
    texts = []
    for call, shape in enumerate(shapes):
        if changing and rng.random() < 0.25:
            layout = rng.choice(LAYOUTS)
        texts.append(layout(shape, f"'{dtype}', {100 * call + k}, '{kind}'"))
    floating = "float" in dtype
    grad = rng.choices(("", "leaf", "made"), (5, 4, 2))[0] if floating else ""
    return Given(name, tuple(texts), grad)


def dims(given: Given) -> int:
    """How many dims an argument has; none known for a view of another, and for an integer."""
    text = given.calls[0]
    return eval(text, names()).dim() if text.startswith("numbers") else -1


def smaller_shape(shape: Shape) -> Shape:
    """At most some hundred elements."""
    shape = tuple(shape)
    while math.prod(shape) > 600:
        largest = max(range(len(shape)), key=lambda i: shape[i])
        shape = (*shape[:largest], (shape[largest] + 1) // 2, *shape[largest + 1 :])
    return shape


def an_integer(rng: random.Random, k: int, calls: int, changing: bool) -> Given:
    """One integer: small ones mostly, negative, zero, huge."""
    pools = ((0, 1, 2, 3), (1, 2, 3, 4, 5, 6), (-3, -2, -1, 1, 2), (0, 7, 2**31, -(2**40), 2**62, -1))
    pool = rng.choices(pools, (4, 6, 3, 1))[0]
    first = rng.choice(pool)
    return Given(f"n{k}", tuple(str(rng.choice(pool) if changing and i else first) for i in range(calls)))


def plain(shape: Shape, rest: str) -> str:
    return f"numbers({shape}, {rest})"


def turned(shape: Shape, rest: str) -> str:
    back = shape[::-1]
    return f"numbers({back}, {rest}).permute{tuple(range(len(shape)))[::-1]}" if shape else plain(shape, rest)


def rolled(shape: Shape, rest: str) -> str:
    """Its first dim is last in memory, as channels are."""
    if len(shape) < 2:
        return inside(shape, rest)
    return f"numbers({(*shape[1:], shape[0])}, {rest}).movedim(-1, 0)"


def inside(shape: Shape, rest: str) -> str:
    """Starts inside its memory."""
    return f"numbers(({math.prod(shape) + 3},), {rest})[3:].view({shape})"


def rows(shape: Shape, rest: str) -> str:
    if not shape:
        return f"numbers((4,), {rest})[2]"
    return f"numbers({(shape[0] + 2, *shape[1:])}, {rest})[1:-1]"


def stepped(shape: Shape, rest: str) -> str:
    if not shape:
        return f"numbers((4,), {rest})[2]"
    return f"numbers({(*shape[:-1], 2 * shape[-1])}, {rest})[..., ::2]"


def window(shape: Shape, rest: str) -> str:
    if not shape:
        return f"numbers((3, 4), {rest})[1, 2]"
    return f"numbers({(*shape[:-1], shape[-1] + 3)}, {rest})[..., 2:-1]"


def repeated(shape: Shape, rest: str) -> str:
    """Stride 0."""
    if not shape:
        return plain(shape, rest)
    return f"numbers({(1, *shape[1:])}, {rest}).expand({shape})"


def repeated_last(shape: Shape, rest: str) -> str:
    if not shape:
        return plain(shape, rest)
    return f"numbers({(*shape[:-1], 1)}, {rest}).expand({shape})"


def channels_last(shape: Shape, rest: str) -> str:
    if len(shape) != 4:
        return plain(shape, rest)
    return f"numbers({shape}, {rest}).contiguous(memory_format=torch.channels_last)"


LAYOUTS = (
    plain,
    plain,
    plain,
    plain,
    turned,
    rolled,
    inside,
    rows,
    stepped,
    window,
    repeated,
    repeated_last,
    channels_last,
)
