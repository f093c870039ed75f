"""Make a program from a seed: each statement is tried in eager, for every call, before it is taken."""

from __future__ import annotations

import os
import random
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.fuzz.tensors import arguments, grammar, sketch
from tests.fuzz.tensors.program import Given, Line, TensorProgram
from tests.fuzz.tensors.values import FLOATS, INTEGERS, names

Tensor = torch.Tensor

#: the variable that says where programs run; they are made on the CPU, where eager survives what it refuses
DEVICE = "FUZZ_DEVICE"
#: writes of lists, of which eager's kernels on a GPU count some not at all, and those of one tensor twice in no order
LISTS = re.compile(r"_foreach_\w+_\(")
#: family -> how often
FAMILIES = {
    "VIEWS": 5.0,
    "EXACT": 5.0,
    "INEXACT": 2.5,
    "STEPS": 2.0,
    "WRITES": 5.0,
    "ROUGH_WRITES": 0.7,
    "PAIRS": 0.4,
}
TABLES = {family: grammar.rows(getattr(grammar, family)) for family in FAMILIES}
CONSTANTS = (
    "2",
    "0",
    "1",
    "-1",
    "3",
    "0.5",
    "-1.5",
    "-0.0",
    "inf",
    "-inf",
    "nan",
    "1e30",
    "True",
    "0.1",
    "255",
    "-128",
)
PLACE = re.compile(r"\{(\w)\}")
#: rows of other tables that have a step: where a number is 0 or not, or on which side of it
STEPPING = re.compile(r"torch\.(copysign|heaviside|frexp)\(|, v\d+ = .*\.(sort|max)\(")
#: what tells the sign of what is no number: eager's kernels give those that they make one sign in vectors, the other in what is left of them
SIGNED = re.compile(r"\.signbit\(|torch\.copysign\(")
#: no value of an ordinary program is larger
ELEMENTS = 2000
#: what makes as many elements as an argument says
SIZED = re.compile(r"(?:torch\.(?:full\(\(|arange\()|\.repeat\()(n\d+)\b")


class NoPick(Exception):
    """No value fits a place of a row."""


@dataclass(frozen=True)
class Scale:
    """How large programs are: their arguments, the elements that a value has at most, how often other sizes come at each call."""

    arguments: Callable[[random.Random, bool], tuple[Given, ...]] = arguments.make
    elements: int = ELEMENTS
    changing: float = 0.4
    families: Mapping[str, float] = field(default_factory=lambda: FAMILIES)

    @property
    def is_large(self) -> bool:
        return self.elements > ELEMENTS


ORDINARY = Scale()


@dataclass
class World:
    """One call, as far as the program goes: its names in eager, and in float64."""

    eager: dict[str, Any]
    double: dict[str, Any]


@dataclass
class Making:
    """A program on its way."""

    rng: random.Random
    worlds: list[World]
    tensors: list[str] = field(default_factory=list)
    integers: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    #: family -> tables of its rows, one as likely as the other
    tables: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    #: memory with numbers that have been rounded, call by call: their steps differ between libraries
    rough: set[int] = field(default_factory=set)
    scale: Scale = ORDINARY

    def value(self, name: str) -> Tensor:
        return self.worlds[0].eager[name]

    def bits(self, name: str) -> int:
        """How large a tensor is, in its largest call: rows are to be about the large ones."""
        return 1 + max(world.eager[name].numel().bit_length() for world in self.worlds) ** 2


def generate(
    seed: int,
    tables: Mapping[str, Sequence[Sequence[str]]] | None = None,
    changed: Callable[[random.Random, tuple[Given, ...]], tuple[Given, ...]] | None = None,
    scale: Scale = ORDINARY,
) -> TensorProgram:
    """The program of a seed, of the rows of ``grammar.py``, or of other tables', and of arguments that are ``changed``."""
    rng = random.Random(seed)
    changing = rng.random() < scale.changing
    given = scale.arguments(rng, changing)
    given = changed(rng, given) if changed else given
    backward = any(g.grad for g in given) and rng.random() < 0.85
    program = TensorProgram(
        given, (), (),
        backend=rng.choices(("braze", "aot_eager", "eager"), (6, 3, 1))[0],
        dynamic=rng.choice((None, None, True, False)) if changing else rng.choices((None, True), (5, 1))[0],
        around=rng.choices(("", "no_grad", "inference_mode", "autocast"), (8, 1, 0.5, 0.5))[0] if not backward else "",
        backward=backward, options=(("verify", 2),) if rng.random() < 0.7 else (),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        making = begun(rng, program)
        making.tables, making.scale = tables or {}, scale
        for _ in range(rng.choice((2, 3, 4, 5, 6, 8, 10, 14))):
            extend(making)
    results = rng.choices(making.tensors, weights(making), k=rng.choice((1, 2, 3, 3, 4, 6)))
    results = list(dict.fromkeys(results)) if rng.random() < 0.9 else results
    device = os.environ.get(DEVICE, "cpu")
    lines = [line for line in making.lines if device == "cpu" or not LISTS.search(line.text)]
    return replace(program, lines=tuple(lines), results=tuple(results), device=device)


def weights(making: Making) -> list[float]:
    """How likely each tensor is returned: the later, the more, and most what nothing else reads."""
    used = {name for line in making.lines for name in line.uses()}
    return [(1 + i) * (1 if name in used else 4) for i, name in enumerate(making.tensors)]


def begun(rng: random.Random, program: TensorProgram) -> Making:
    """The worlds of all calls, with nothing but arguments in them."""
    worlds = []
    for call in range(program.calls):
        world = World(names(), names(double=True))
        for scope, double in ((world.eager, False), (world.double, True)):
            for given, value in zip(program.given, program.arguments(call, double), strict=True):
                if given.grad and isinstance(value, Tensor):
                    value = value.detach().requires_grad_()
                    value = value if given.grad == "leaf" else value * 1
                scope[given.name] = value
        worlds.append(world)
    making = Making(rng, worlds)
    for given in program.given:
        (making.tensors if given.name.startswith("x") else making.integers).append(given.name)
    mark_rough(making, making.tensors, False)
    return making


def extend(making: Making) -> None:
    """Take one more statement: the first of some that eager takes in each world."""
    for _ in range(12):
        families = making.scale.families
        family = making.rng.choices(list(families), list(families.values()))[0]
        try:
            line, written = drawn(making, family)
        except NoPick:
            continue
        operands = [name for name in line.uses() if name in making.tensors]
        rough = any(is_rough(making, name) for name in operands)
        if rough and (family == "STEPS" or STEPPING.search(line.text)):
            continue
        if taken(making, line):
            making.lines.append(line)
            bound = list(line.targets) or written
            making.tensors += [name for name in line.targets]
            mark_rough(making, bound, rough or family in ("INEXACT", "ROUGH_WRITES"))
            return


def drawn(making: Making, family: str) -> tuple[Line, list[str]]:
    """A statement of a family, and what it writes."""
    rng = making.rng
    row = rng.choice(rng.choice(making.tables[family]) if making.tables else TABLES[family])
    filled = Filling(making)
    text = PLACE.sub(filled.fill, row)
    if family in ("WRITES", "ROUGH_WRITES"):
        apart(making, filled)
        return Line((), surrounded(rng, text)), filled.written
    fresh = f"v{sum(len(line.targets) for line in making.lines)}"
    if family == "PAIRS":
        count = arity(making, text)
        targets = tuple(f"v{int(fresh[1:]) + i}" for i in range(count))
        return Line(
            targets, surrounded(rng, f"{', '.join(targets)} = {text}" if count > 1 else f"{fresh}, = {text}")
        ), []
    if family in ("EXACT", "INEXACT") and rng.random() < 0.04:
        text = f"checkpoint(lambda: {text}, use_reentrant=False)"
    return Line((fresh,), surrounded(rng, f"{fresh} = {text}")), []


def arity(making: Making, text: str) -> int:
    """How many results an expression has."""
    try:
        count = {len(eval(text, {**world.eager})) for world in making.worlds}
    except Exception:
        raise NoPick from None
    if len(count) != 1 or not 2 <= min(count) <= 5:
        raise NoPick
    return count.pop()


def surrounded(rng: random.Random, text: str) -> str:
    """Now and then a statement stands in a block."""
    kind = rng.random()
    for share, block in (
        (0.03, "with torch.no_grad():"), (0.01, "with torch.enable_grad():"), (0.01, "with autocast('cpu', dtype=torch.bfloat16):"),
    ):  # fmt: skip
        if kind < share:
            return f"{block}\n    {text}"
        kind -= share
    return text


class Filling:
    """The places of one row, filled from left to right."""

    def __init__(self, making: Making) -> None:
        self.making, self.rng = making, making.rng
        self.first = self.last = ""
        self.dim = 0
        self.written: list[str] = []
        self.read: list[str] = []

    def fill(self, found: re.Match[str]) -> str:
        kind, rng = found[1], self.rng
        if kind == "0":
            return self.first
        if kind in "xfgibvyswz":
            return self.tensor(kind)
        if kind in "de":
            return self.a_dim()
        if kind == "D":  # what is scattered to one place twice a GPU writes in any order
            return str(self.dim)
        if kind == "n":
            pool = self.making.integers
            return rng.choice(pool) if pool and rng.random() < 0.85 else str(rng.randrange(4))
        if kind in "JU":
            return self.places(kind)
        return {
            "k": lambda: str(rng.choice((-2, -1, 0, 0, 1, 1, 2, 3))),
            "p": lambda: str(rng.choice((0, 1, 1, 2, 2, 3, 4))),
            "c": lambda: rng.choice(CONSTANTS),
            "T": lambda: f"t_{rng.choice((*FLOATS, *INTEGERS, 'bool'))}",
            "F": lambda: f"t_{rng.choice(FLOATS)}",
        }[kind]()

    def tensor(self, kind: str) -> str:
        """One of the tensors that a place takes, the later ones more often."""
        making = self.making
        fits = [name for name in making.tensors if self.takes(kind, making.value(name))]
        if not fits:
            raise NoPick
        later = [1 + i for i in range(len(fits))]
        if making.scale.is_large:
            later = [n * making.bits(name) for n, name in zip(later, fits, strict=True)]
        name = self.rng.choices(fits, later)[0]
        self.first, self.last = self.first or name, name
        (self.written if kind == "w" else self.read).append(name)
        return name

    def takes(self, kind: str, t: Tensor) -> bool:
        if kind in "fg" and not t.is_floating_point():
            return False
        if kind in "gv" and not t.dim():
            return False
        if kind == "i" and (t.is_floating_point() or t.is_complex() or t.dtype is torch.bool):
            return False
        if kind == "z" and not t.is_complex():
            return False
        if kind == "b" and t.dtype is not torch.bool:
            return False
        if kind == "y" and self.last:
            return goes_with(self.making.value(self.last), t)
        if kind == "s" and self.last:
            return self.making.value(self.last).shape == t.shape and t.is_floating_point()
        if kind == "w":
            return torch._debug_has_internal_overlap(t) != 2
        return True

    def a_dim(self) -> str:
        size = self.making.value(self.last).dim()
        if not size:
            raise NoPick
        self.dim = self.rng.randrange(-size, size)
        return str(self.dim)

    def places(self, kind: str) -> str:
        """Places along the dim before that all calls have."""
        try:
            size = min(world.eager[self.last].shape[self.dim] for world in self.making.worlds)
        except IndexError:
            raise NoPick from None
        if not size:
            return "[]" if kind == "U" else "[0]"
        if kind == "U":
            return str(self.rng.sample(range(size), self.rng.randint(1, min(size, 3))))
        return str([self.rng.randrange(size) for _ in range(self.rng.choice((1, 2, 3, 4)))])


def goes_with(a: Tensor, b: Tensor) -> bool:
    """Whether two shapes broadcast."""
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a.shape), reversed(b.shape)))


def apart(making: Making, filled: Filling) -> None:
    """What is written and what is read share no memory, unless they are one tensor: eager promises nothing there."""
    for world in making.worlds:
        for written in filled.written:
            for read in filled.read:
                a, b = world.eager[written], world.eager[read]
                if written != read and a.untyped_storage()._cdata == b.untyped_storage()._cdata:
                    raise NoPick


def taken(making: Making, line: Line) -> bool:
    """Run a statement in all worlds; false if eager refuses it, may die of it, or what it makes is too large."""
    if ".register_hook(" in line.text and not all(map(takes_hooks, named_in(making, line))):
        return False
    most = making.scale.elements
    if any(world.eager[name] > most for name in SIZED.findall(line.text) for world in making.worlds):
        return False  # where there is memory for that, it takes minutes to fill
    if SIGNED.search(line.text) and any(bool(t.isnan().any()) for t in named_in(making, line)):
        return False
    if "scaled_dot_product_attention(" in line.text and not all(map(has_heads, named_in(making, line))):
        return False
    code = compile(line.text, "<statement>", "exec")
    if making.scale.is_large and any(
        sketch.is_larger(code, line, world.eager, most) for world in making.worlds
    ):
        return False
    for world in making.worlds:
        for scope, default in ((world.eager, torch.float32), (world.double, torch.float64)):
            torch.set_default_dtype(default)
            try:
                exec(code, scope)
            except Exception:
                return False
            finally:
                torch.set_default_dtype(torch.float32)
            for name in line.targets:
                made = scope[name]
                if not isinstance(made, Tensor) or made.numel() > most or made.dim() > 6:
                    return False
                if any(n < 0 for n in made.shape):  # which PyTorch gives by `expand`
                    return False
    ranks = {
        tuple((world.eager[name].dim(), world.eager[name].dtype) for name in line.targets)
        for world in making.worlds
    }
    return len(ranks) == 1


def named_in(making: Making, line: Line) -> list[Tensor]:
    """The tensors that a statement names, in all worlds."""
    scopes = [scope for world in making.worlds for scope in (world.eager, world.double)]
    return [scope[name] for scope in scopes for name in line.uses() if isinstance(scope[name], Tensor)]


def takes_hooks(t: Tensor) -> bool:
    """Whether a hook can be put on a tensor: of some views, as of one whose base was squeezed in place, PyTorch dies (4000090)."""
    return t._base is None


def has_heads(t: Tensor) -> bool:
    """Whether attention can be asked of a tensor: without heads PyTorch before 2.13 divides by their number, and dies (1984005581)."""
    return t.dim() != 4 or t.shape[1] > 0


def mark_rough(making: Making, bound: list[str], rough: bool) -> None:
    """Remember memory whose numbers have been rounded."""
    for world in making.worlds:
        for name in bound:
            mine, exact = world.eager[name], world.double[name]
            if isinstance(mine, Tensor) and (rough or not exactly(mine, exact)):
                making.rough.add(mine.untyped_storage()._cdata)


@torch.no_grad()
def exactly(mine: Tensor, exact: Tensor) -> bool:
    """Whether a tensor holds the very numbers of float64; its history, which autograd may refuse to tell, is not asked for."""
    if not mine.is_floating_point():
        return mine.shape == exact.shape and mine.dtype == exact.dtype and torch.equal(mine, exact)
    return mine.shape == exact.shape and torch.equal(
        mine.double().nan_to_num(7.0), exact.double().nan_to_num(7.0)
    )


def is_rough(making: Making, name: str) -> bool:
    return any(world.eager[name].untyped_storage()._cdata in making.rough for world in making.worlds)
