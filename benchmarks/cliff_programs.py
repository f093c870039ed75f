"""Small programs drawn by chance, among which cliffs are looked for as among those of a list: ``case("random 17")`` is the same one each time.

A program is two to eight lines of users' idioms, each of which is run on a few rows as it is drawn: a line that eager refuses, that
makes other than finite numbers, or whose result outgrows its inputs is drawn anew, so that every program is valid at any number of rows.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.cliff_cases import Case, Draw

Tensor = torch.Tensor

#: rows of which a drawn line is tried, and twice as many, which tell how a result grows
TRIED = 8
#: bytes of a program's inputs with few rows, as a processor measures it, and with many, as a GPU does
FEW, MANY = (1 << 16, 1 << 24), (1 << 20, 1 << 28)
#: at most so many times the bytes of the first input may a result have, and so many bytes of one row be tried
GROWTH, ROW = 8, 1 << 20

WIDTHS = (3, 10, 32, 64, 100, 256, 768, 1000, 1024, 4096, 5000)
LENGTHS = (1, 7, 16, 49, 128, 197)
CHANNELS = (1, 3, 16, 32, 64)
SIDES = (7, 14, 16, 28, 32, 56)
DTYPES = ("f32",) * 5 + ("bf",) * 3 + ("half",)
POINTWISE = (
    "{x} * 2 + 1", "torch.relu({x})", "F.gelu({x})", "F.silu({x})", "torch.tanh({x})", "torch.sigmoid({x})", "{x}.clamp(-1, 1)",
    "torch.exp(-{x}.abs())", "{x}.square()", "torch.sin({x})", "torch.log1p({x}.abs())", "F.leaky_relu({x}, 0.1)",
    "torch.where({x} > 0, {x}, {x} * 0.1)", "{x} / (1 + {x}.abs())", "F.softplus({x})", "{x}.masked_fill({x} < -1, 0.0)",
    "torch.atan2({x}, {x} + 3)", "{x}.abs().pow(1.5)", "torch.rsqrt({x}.square() + 1)", "{x}.erf()", "F.hardswish({x})",
)  # fmt: skip
REDUCED = (
    "{x}.sum({d})", "{x}.mean({d}, keepdim=True)", "{x}.amax({d})", "{x}.var({d})", "{x}.argmax({d})", "torch.logsumexp({x}, {d})",
    "{x}.max({d}).values", "{x}.norm(dim={d})", "{x}.std({d}, keepdim=True)", "({x} > 0).sum({d})", "{x}.prod({d})", "({x} > 3).any({d})",
    "{x} - {x}.mean({d}, keepdim=True)", "{x} / ({x}.abs().amax({d}, keepdim=True) + 1)", "{x}.aminmax(dim={d}).min",
)  # fmt: skip
ALONG = (
    "{x}.softmax({d})", "{x}.log_softmax({d})", "{x}.cumsum({d})", "{x}.sort({d}).values", "{x}.flip({d})", "{x}.roll(1, {d})", "F.normalize({x}, dim={d})",
    "{x}.clamp(-1, 1).cumprod({d})", "{x}.cummax({d}).values", "{x}.logcumsumexp({d})", "torch.diff({x}, dim={d})", "{x}.argsort({d}, stable=True)",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """What draws an input: a method of `Draw`, its numbers before the shape, and the shape; 0 is the number of rows."""

    kind: str
    shape: tuple[int, ...]
    high: tuple[int, ...] = ()
    channels_last: bool = False

    def draw(self, rows: int, draw: Draw) -> Tensor:
        drawn: Tensor = getattr(draw, self.kind)(*(size or rows for size in (*self.high, *self.shape)))
        return drawn.contiguous(memory_format=torch.channels_last) if self.channels_last else drawn


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """The source of a function of ``x0``, ``x1``..., and what draws them."""

    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    grad: bool
    #: of the inputs, with few rows and with many
    sizes: tuple[int, int]

    @property
    def source(self) -> str:
        names = ", ".join(f"x{i}" for i in range(len(self.inputs)))
        return "\n    ".join((f"def program({names}):", *self.lines)) + "\n"

    def case(self) -> Case:
        """The function of the source, and its rows of eight, at least eight."""
        scope: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.source, f"<{'backward of ' if self.grad else ''}program>", "exec"), scope)
        made = self.make(TRIED, Draw("cpu"))
        row = sum(x.nbytes for x, i in zip(made, self.inputs, strict=True) if 0 in i.shape) / TRIED
        few, many = (max(TRIED, int(size / row) // TRIED * TRIED) for size in self.sizes)
        chance = any(word in self.source for word in ("dropout", "rand"))
        return Case(scope["program"], self.make, (few, many), self.grad, chance)

    def make(self, rows: int, draw: Draw) -> tuple[Tensor, ...]:
        return tuple(each.draw(rows, draw) for each in self.inputs)


def case(name: str) -> Case:
    """The program of a name, ``random 17``."""
    return program(int(name.split()[-1])).case()


def program(seed: int) -> Program:
    """The program of a seed: some are drawn until one can be run with its backward, if it has one."""
    chance = random.Random(seed)
    while True:
        found = _Drawing(chance).finished()
        if found is not None:
            return found


class _Drawing:
    """A program while it is drawn, with the values that its lines have of few rows, and of twice as many."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.inputs: list[Input] = []
        self.lines: list[str] = []
        self.values: dict[str, tuple[Tensor, Tensor]] = {}
        self.dtype = chance.choice(DTYPES)
        self.grad = chance.random() < 0.5
        shape, last = self._shape(), False
        if len(shape) == 4:
            last = chance.random() < 0.3
        self.add(self.dtype, shape, channels_last=last)

    def _shape(self) -> tuple[int, ...]:
        pick = self.chance.choice
        rank = pick((1, 2, 2, 2, 3, 3, 3, 4, 4))
        shape = {
            1: (0,),
            2: (0, pick(WIDTHS)),
            3: (0, pick(LENGTHS), pick(WIDTHS[:8])),
            4: (0, pick(CHANNELS), side := pick(SIDES), side),
        }[rank]
        return shape[::-1] if self.chance.random() < 0.1 else shape

    def add(self, kind: str, shape: tuple[int, ...], *high: int, channels_last: bool = False) -> str:
        """One more input, its name."""
        made, name = Input(kind, shape, high, channels_last), f"x{len(self.inputs)}"
        self.inputs.append(made)
        few, more = (made.draw(rows, Draw("cpu", len(self.inputs))) for rows in (TRIED, 2 * TRIED))
        self.values[name] = few, more
        return name

    def like(self, shape: torch.Size, doubled: torch.Size) -> tuple[int, ...]:
        """A shape of an input: a size that grows with the rows is given by them where it is their number, else it cannot be said."""
        sizes = []
        for size, more in zip(shape, doubled, strict=True):
            if size != more and (size != TRIED or more != 2 * TRIED):
                raise _Refused
            sizes.append(0 if size != more else size)
        return tuple(sizes)

    def finished(self) -> Program | None:
        wanted = self.chance.randint(2, 8)
        for _ in range(12 * wanted):
            if len(self.lines) == wanted:
                break
            self._line()
        last = list(self.values)[-1]
        if len(self.lines) < 2:
            return None
        made = [name for name in self.values if name.startswith("y") and name != last]
        kept = f", {self.chance.choice(made)}" if made and self.chance.random() < 0.3 else ""
        few, many = (
            int(2 ** self.chance.uniform(low.bit_length() - 1, high.bit_length() - 1))
            for low, high in (FEW, MANY)
        )
        lines = "\n".join((*self.lines, f"return {last}{kept}"))
        used = [k for k in range(len(self.inputs)) if re.search(rf"\bx{k}\b", lines)]
        lines = re.sub(r"\bx(\d+)\b", lambda m: f"x{used.index(int(m[1]))}", lines)
        found = Program(tuple(self.inputs[k] for k in used), tuple(lines.split("\n")), self.grad, (few, many))
        return found if self._runs(found) else None

    def _line(self) -> None:
        """Draws a line and runs it; what the line added is taken back where it is not valid."""
        before = len(self.inputs)
        name = f"y{len(self.lines)}"
        draw = self.chance.choice(FAMILIES)
        try:
            line = draw(self, self._operand())
            results = []
            for k in (0, 1):
                scope: dict[str, Any] = {"torch": torch, "F": F} | {n: v[k] for n, v in self.values.items()}
                results.append(eval(line, scope))
            few, more = results
            self._judge(few, more)
        except (_Refused, RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            for extra in list(self.values):
                if extra.startswith("x") and int(extra[1:]) >= before:
                    del self.values[extra]
            del self.inputs[before:]
            return
        self.lines.append(f"{name} = {line}")
        self.values[name] = few, more

    def _operand(self) -> str:
        names = [n for n, (few, _) in self.values.items() if few.is_floating_point() and few.dim()]
        made = [n for n in names if n.startswith("y")]
        if made and self.chance.random() < 0.85:
            return made[-1]
        return self.chance.choice([n for n in names if n.startswith("y") or n == "x0"])

    def _judge(self, few: Any, more: Any) -> None:
        first = self.values["x0"]
        if not isinstance(few, Tensor) or few.numel() == 0 or few.nbytes > TRIED * ROW:
            raise _Refused
        if few.nbytes > GROWTH * first[0].nbytes + 4096 or more.nbytes > GROWTH * first[1].nbytes + 4096:
            raise _Refused
        if few.is_floating_point() and not (few.isfinite().all() and few.detach().abs().max() < 1e4):
            raise _Refused

    def _runs(self, found: Program) -> bool:
        """Whether the whole program runs, and gives gradients that are numbers if it has a backward."""
        made = found.case()
        inputs = [
            x.requires_grad_() if found.grad and x.is_floating_point() else x
            for x in made.make(TRIED, Draw("cpu"))
        ]
        try:
            results = made.fn(*inputs)
            results = [r for r in (results if isinstance(results, tuple) else (results,)) if r.requires_grad]
            if found.grad and results:
                grads = torch.autograd.grad(
                    sum(r.float().sum() for r in results),
                    [x for x in inputs if x.requires_grad],
                    allow_unused=True,
                )
                return all(g is None or bool(g.isfinite().all()) for g in grads) and any(
                    g is not None for g in grads
                )
        except (RuntimeError, AttributeError):
            return False
        return not found.grad


class _Refused(Exception):
    """A line that is drawn anew."""


Family = Callable[[_Drawing, str], str]
FAMILIES: list[Family] = []


def _family(weight: int) -> Callable[[Family], Family]:
    def added(fn: Family) -> Family:
        FAMILIES.extend([fn] * weight)
        return fn

    return added


def _sizes(at: _Drawing, x: str) -> torch.Size:
    return at.values[x][0].shape


def _dim(at: _Drawing, x: str) -> int:
    return at.chance.randrange(len(_sizes(at, x)))


def _fixed(at: _Drawing, x: str, d: int) -> int:
    """The size of a dim that is the same of any number of rows."""
    few, more = at.values[x]
    if few.shape[d] != more.shape[d]:
        raise _Refused
    return few.shape[d]


def _kind(at: _Drawing, x: str) -> str:
    kinds = {torch.float32: "f32", torch.bfloat16: "bf", torch.float16: "half"}
    return kinds[at.values[x][0].dtype]


@_family(6)
def _pointwise(at: _Drawing, x: str) -> str:
    return at.chance.choice(POINTWISE).format(x=x)


@_family(3)
def _two(at: _Drawing, x: str) -> str:
    others = [n for n, (few, _) in at.values.items() if few.is_floating_point() and n != x]
    if not others:
        raise _Refused
    return f"{x} {at.chance.choice('+-*')} {at.chance.choice(others)}"


@_family(2)
def _bias(at: _Drawing, x: str) -> str:
    d = _dim(at, x)
    shape = tuple(_fixed(at, x, d) if k == d else 1 for k in range(len(_sizes(at, x))))
    return f"{x} {at.chance.choice('+*')} {at.add(_kind(at, x), shape)}"


@_family(5)
def _reduced(at: _Drawing, x: str) -> str:
    return at.chance.choice(REDUCED).format(x=x, d=_dim(at, x))


@_family(1)
def _reduced_dims(at: _Drawing, x: str) -> str:
    dims = tuple(sorted(at.chance.sample(range(len(_sizes(at, x))), 2)))
    return at.chance.choice(
        ("{x}.sum({d})", "{x}.mean({d}, keepdim=True)", "{x}.amax({d})", "torch.var_mean({x}, {d})[0]")
    ).format(x=x, d=dims)


@_family(4)
def _along(at: _Drawing, x: str) -> str:
    return at.chance.choice(ALONG).format(x=x, d=_dim(at, x))


@_family(1)
def _topk(at: _Drawing, x: str) -> str:
    d = _dim(at, x)
    k = min(at.chance.choice((1, 2, 5, 8)), _sizes(at, x)[d])
    return f"{x}.topk({k}, {d}).{at.chance.choice(('values', 'indices'))}"


@_family(3)
def _norm(at: _Drawing, x: str) -> str:
    size, kind = _fixed(at, x, -1), _kind(at, x)
    w, b = at.add(kind, (size,)), at.add(kind, (size,))
    return at.chance.choice(
        (
            f"F.layer_norm({x}, ({size},), {w}, {b})",
            f"F.rms_norm({x}, ({size},), {w})",
            f"F.layer_norm({x}, ({size},))",
        )
    )


@_family(2)
def _channel_norm(at: _Drawing, x: str) -> str:
    c = _fixed(at, x, 1)
    w, b = at.add(_kind(at, x), (c,)), at.add(_kind(at, x), (c,))
    groups = at.chance.choice([g for g in (1, 2, 8, 16, 32) if c % g == 0])
    return at.chance.choice(
        (
            f"F.group_norm({x}, {groups}, {w}, {b})",
            f"F.instance_norm({x})",
            f"F.batch_norm({x}, None, None, {w}, {b}, True)",
        )
    )


@_family(3)
def _looked_up(at: _Drawing, x: str) -> str:
    d, shape = _dim(at, x), at.like(*(v.shape for v in at.values[x]))
    size = shape[d]
    form = at.chance.randrange(4)
    if form == 0:
        return f"{x}.gather({d}, {at.add('ints', shape, size)})"
    count = at.chance.choice((0, 16, 100))
    index = at.add("ints", (count,), size)
    if form == 1:
        return f"{x}.index_select({d}, {index})"
    if form == 2:
        return f"{x}[{', '.join([':'] * d + [index])}]"
    return f"F.embedding({at.add('zipf', (0, at.chance.choice((1, 16))), 1000)}, {at.add(_kind(at, x), (1000, at.chance.choice((16, 64, 768))))})"


@_family(3)
def _scattered(at: _Drawing, x: str) -> str:
    d, shape = _dim(at, x), at.like(*(v.shape for v in at.values[x]))
    size = shape[d]
    form = at.chance.randrange(5)
    if form == 0:
        return f"torch.zeros_like({x}).scatter_add({d}, {at.add('ints', shape, size)}, {x})"
    if form == 1:
        index = at.add("zipf", (shape[d],), size)
        return f"torch.zeros_like({x}).index_add({d}, {index}, {x})"
    if form == 2:
        index = at.add("ints", (shape[d],), size)
        return (
            f"torch.zeros_like({x}).index_put(({', '.join(['torch.arange(1, device=' + x + '.device)'] * d + [index])},), {x}, accumulate=True)"
            if d == 0
            else f"{x}.index_fill({d}, {index}, 0.5)"
        )
    if form == 3:
        return f"torch.zeros_like({x}).scatter_reduce({d}, {at.add('ints', shape, size)}, {x}, 'amax')"
    return f"{x}.index_copy({d}, torch.arange({_sizes(at, x)[d] // 2}, device={x}.device), {x}.narrow({d}, 0, {_sizes(at, x)[d] // 2}) * 2)"


@_family(3)
def _written(at: _Drawing, x: str) -> str:
    """Writes in place, of what the program has made."""
    d = _dim(at, x)
    return at.chance.choice((
        f"{x}.clone().masked_fill_({x} > 1, 0.0)", f"({x} * 1.5).add_(1).relu_()", f"({x} + 1).mul_({x})",
        f"{x}.clone().select_scatter({x}.select({d}, 0) * 2, {d}, 0)", f"torch.empty_like({x}).copy_({x}).narrow({d}, 0, 1).clone()",
        f"({x} * 1).index_put_(({x} > 1,), torch.zeros((), dtype={x}.dtype, device={x}.device))",
        f"torch.zeros_like({x}).copy_({x}).clamp_(min=0)", f"{x}.clone().triu_()",
    ))  # fmt: skip


@_family(4)
def _joined(at: _Drawing, x: str) -> str:
    d = _dim(at, x)
    half = _sizes(at, x)[d] // 2
    return at.chance.choice((
        f"torch.cat(({x}, {x} * 2), {d})", f"torch.stack(({x}, -{x}), {d})", f"torch.cat({x}.chunk(2, {d})[::-1], {d})", f"torch.cat((-{x}.narrow({d}, {half}, {half}), {x}.narrow({d}, 0, {half})), {d})",
        f"{x}.chunk(2, {d})[0] * 2", f"F.pad({x}, (1, 2))", f"F.pad({x}, (1, 1), mode='replicate')", f"F.pad({x}, (1, 1, 1, 1), mode='reflect')", f"F.glu({x}, {d})",
        f"torch.stack(({x}.unbind({d})[0], {x}.unbind({d})[-1]), {d})", f"{x}.repeat_interleave(2, {d})", f"{x}.unfold({d}, 3, 2)", f"torch.stack(({x}, {x} + 1), -1).flatten(-2)",
    ))  # fmt: skip


@_family(4)
def _turned(at: _Drawing, x: str) -> str:
    rank = len(_sizes(at, x))
    dims = at.chance.sample(range(rank), rank)
    d, size = _dim(at, x), _sizes(at, x)[-1]
    return at.chance.choice((
        f"{x}.permute({dims})", f"{x}.permute({dims}).contiguous()", f"{x}.transpose(0, -1)", f"{x}.flatten({d})", f"{x}.unsqueeze({d})", f"{x}[..., ::2]",
        f"{x}.unflatten(-1, ({size // 2}, 2))", f"{x}.unflatten(-1, (2, {size // 2})).transpose(-1, -2)", f"{x}.squeeze()", f"{x}.narrow({d}, 1, 2)", f"{x}.select({d}, 0)", f"{x}.float()", f"{x}.bfloat16()", f"{x}.half()", f"{x}.flatten().view(-1, 2)",
    ))  # fmt: skip


@_family(3)
def _pictured(at: _Drawing, x: str) -> str:
    c, kind = _fixed(at, x, 1), _kind(at, x)
    if len(_sizes(at, x)) == 3:
        k = at.chance.choice((1, 3))
        return at.chance.choice((
            f"F.conv1d({x}, {at.add(kind, (16, c, k))}, padding={k // 2})", f"F.avg_pool1d({x}, 2)", f"F.max_pool1d({x}, 3, 2, 1)", f"F.interpolate({x}, scale_factor=2)", f"F.conv1d({x}, {at.add(kind, (c, 1, k))}, padding={k // 2}, groups={c})",
        ))  # fmt: skip
    k = at.chance.choice((1, 3, 5))
    dense, deep = at.add(kind, (at.chance.choice((8, 32)), c, k, k)), at.add(kind, (c, 1, k, k))
    return at.chance.choice((
        f"F.conv2d({x}, {dense}, padding={k // 2}) * 0.1", f"F.conv2d({x}, {deep}, padding={k // 2}, groups={c})", f"F.avg_pool2d({x}, 2)", f"F.max_pool2d({x}, 3, 2, 1)",
        f"F.interpolate({x}, scale_factor=2, mode='nearest')", f"F.interpolate({x}, scale_factor=2, mode='bilinear', align_corners=False)", f"F.interpolate({x}, scale_factor=0.5, mode='bilinear', antialias=True)",
        f"F.adaptive_avg_pool2d({x}, 1)", f"F.adaptive_avg_pool2d({x}, 3)", f"F.pixel_shuffle({x}, 2)", f"F.pixel_unshuffle({x}, 2)", f"F.unfold({x}, 3, padding=1)",
    ))  # fmt: skip


@_family(3)
def _multiplied(at: _Drawing, x: str) -> str:
    kind, size = _kind(at, x), _fixed(at, x, -1)
    wide = at.chance.choice((1, 8, 64, 256))
    form = at.chance.randrange(6)
    if form == 0:
        return f"F.linear({x}, {at.add(kind, (wide, size))}, {at.add(kind, (wide,))}) * 0.1"
    if form == 1:
        return f"F.gelu({x} @ {at.add(kind, (size, wide))}) * 0.1"
    if form == 2:
        return f"({x}.transpose(-1, -2) @ {x}) / {x}.shape[-2]"
    if form == 3:
        return f"({x} @ {x}.transpose(-1, -2)).softmax(-1) @ {x}"
    if form == 4:
        return f"{x} @ {at.add(kind, (size,))} * 0.1"
    _fixed(at, x, -2)
    return f"F.scaled_dot_product_attention({x}, {x}, {x}, is_causal={at.chance.random() < 0.5})"


@_family(1)
def _by_chance(at: _Drawing, x: str) -> str:
    return at.chance.choice(
        (
            f"F.dropout({x}, 0.1, True)",
            f"{x} + torch.randn_like({x}) * 0.1",
            f"torch.where(torch.rand_like({x}) > 0.5, {x}, 0)",
        )
    )


@_family(1)
def _lost(at: _Drawing, x: str) -> str:
    if len(_sizes(at, x)) != 2:
        raise _Refused
    rows, classes = at.like(*(v.shape for v in at.values[x]))
    return at.chance.choice((
        f"F.cross_entropy({x}, {at.add('ints', (rows,), classes)}, reduction='none')", f"F.one_hot({x}.argmax(1), {classes}).to({x}.dtype) - {x}", f"torch.cdist({x}, {x}[:8])", f"F.smooth_l1_loss({x}, {x}.roll(1, 0))",
    ))  # fmt: skip
