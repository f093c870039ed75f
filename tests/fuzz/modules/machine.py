"""Models of which calls, steps, loads and hooks are drawn: compiled, all that a caller sees of them is what eager shows."""

from __future__ import annotations

import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import braze
from tests.fuzz.machine import Finding, Machine
from tests.fuzz.minimise import shorter
from tests.fuzz.modules.grammar import COMPILED, FIRST, INPUTS, LAYERS, STEPPED, TABLES, Tables, drawn
from tests.fuzz.modules.prelude import PRELUDE
from tests.helpers import logged

Tensor = torch.Tensor
#: eager's random numbers and roundings
OPTIONS = {"numerics": "eager", "fallback_random": True}
#: how far numbers may be from eager's, of the greatest of their tensor; how many times further than the furthest of some runs whose numbers are off by roundings
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.05}
#: the least scale of a tensor's numbers: what is below is 0 but for roundings (gradients in front of a norm, or behind a saturated tanh)
LEAST = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 1e-3}
ROOM = 1000.0
RUNS_OFF = 3
ADDRESS = re.compile("0x[0-9a-f]+")
FAULT = re.compile(r"\bBZ(?:6013|9\d{3})\b")
#: errors about what was written since a backward wanted to have it: a compiled one may have kept another, and names another node
WRITTEN = "modified by an inplace operation"
#: eager saves the factors of this before it draws them: a hook that copies what is saved copies memory that nobody has written
DRAWN_LATE, COPIES = "RReLU", "saved_tensors_hooks(lambda t: t.clone()"
#: hooks of leaves are called in the order in which gradients arrive, which those of one graph do at once
OF_LEAVES = ("grad", "gradient")


@dataclass(frozen=True)
class Trained:
    """A model of layers (how each is made, how it is called), and what happens to it."""

    kind: str
    layers: tuple[tuple[str, str], ...]
    before: tuple[str, ...]
    compiled: str
    optimizer: str
    stepped: str
    actions: tuple[str, ...]
    backend: str
    single: bool = False

    def text(self) -> str:
        made = "".join(f"        {made}\n" for made, _ in self.layers)
        called = "".join(f"        {called}\n" for _, called in self.layers)
        return (
            f"{PRELUDE}\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            f"        self.scale, self.calls, self.kept, self.peak = 1.0, 0, torch.zeros(()), torch.zeros(())\n"
            f"        self.last = nn.Tanh()\n{made}\n    def forward(self, h):\n{called}        return self.last(h)\n"
        )

    def script(self) -> Iterator[str]:
        yield from self.before
        yield self.compiled
        yield f"opt = torch.optim.{self.optimizer}"
        yield self.stepped
        yield from self.actions

    def least(self, done: int) -> torch.dtype:
        """The least exact type that it has computed in, ``done`` lines of its script after its begin."""
        text = "\n".join([*self.script()][: done + 1])
        if "bfloat16" in text:
            return torch.bfloat16
        return torch.float32 if self.single or ".float()" in text or "float32" in text else torch.float64

    def source(self) -> str:
        shown = "\n".join(
            f"# {line}" for line in [*self.text()[len(PRELUDE) :].split("\n"), "", *self.script()]
        )
        return (
            f"{shown}\n\nfrom tests.fuzz.modules import machine\nfrom tests.fuzz.modules.machine import Trained\n\n\n"
            f"def check():\n    return machine.check({self!r})"
        )

    def smaller(self) -> Iterator[Trained]:
        for actions in shorter(self.actions):
            yield replace(self, actions=actions)
        for layers in shorter(self.layers):
            yield replace(self, layers=layers)
        for before in shorter(self.before):
            yield replace(self, before=before)
        simpler = {
            "compiled": COMPILED[0],
            "optimizer": "SGD(model.parameters(), lr=0.1)",
            "stepped": STEPPED[0],
        }
        for name, value in simpler.items():
            if getattr(self, name) != value:
                yield replace(self, **{name: value})

    def tags(self) -> tuple[str, ...]:
        return ("with kernels",) if self.backend == "braze" else (self.backend,)


def generate(seed: int) -> Trained:
    return generate_of(random.Random(seed), [TABLES])


def generate_of(rng: random.Random, tables: list[Tables]) -> Trained:
    """A program of which each row is of one of the tables, one as often as another."""

    def table() -> Tables:
        return tables[0] if len(tables) == 1 else rng.choice(tables)

    kind = rng.choice(list(LAYERS))
    rows = []
    for _ in range(rng.randint(1, 6)):
        rows.append(rng.choice(table().layers[kind] if rng.random() < 0.5 else table().any))
    rows.insert(rng.randint(0, len(rows)), FIRST[kind])
    layers = tuple(
        (drawn(made, rng).replace("$", str(k)), drawn(called, rng).replace("$", str(k)))
        for k, (made, called) in enumerate(rows)
    )
    before = tuple(drawn(rng.choice(table().before), rng) for _ in range(rng.choice([0, 0, 0, 1, 1, 2])))
    actions = tuple(drawn(rng.choice(table().actions), rng) for _ in range(rng.randint(3, 10)))
    return Trained(
        kind, layers, before, drawn(rng.choice(table().compiled), rng), drawn(rng.choice(table().optimizers), rng), rng.choice(table().stepped),
        actions, rng.choice(["eager", "aot_eager", "aot_eager", "braze", "braze"]), rng.random() < 0.2,
    )  # fmt: skip


class Run:
    """One run of a program; ``off``, unless 0: each number that it is given is off by some roundings, up or down at random."""

    def __init__(self, program: Trained, compiled: Callable[..., Any], off: int = 0) -> None:
        self.program, self.off = program, off
        self.seen: list[tuple[str, Any]] = []
        module = types.ModuleType("model")
        sys.modules["model"] = module
        self.space = vars(module)
        exec(compile(program.text(), "<model>", "exec"), self.space)
        self.space |= {"compiled": compiled, "data": self.data, "see": lambda value: self.see("value", value)}
        self.drawn = 0

    def noise(self, x: Tensor) -> Tensor:
        """The numbers, or some that are off by a few roundings."""
        if not self.off:
            return x
        chance = torch.Generator().manual_seed(self.drawn + 10000 * self.off)
        eps = 4 * torch.finfo(x.dtype).eps
        return x * (1 + eps * (2 * torch.rand(x.shape, generator=chance, dtype=x.dtype) - 1))

    def data(self, rows: int) -> Tensor:
        """Numbers that a model is called on, others each time."""
        self.drawn += 1
        shape = (rows, *INPUTS[self.program.kind])
        dtype = next((p.dtype for p in self.space["model"].parameters()), torch.float64)
        chance = torch.Generator().manual_seed(1000 + self.drawn)
        return self.noise(torch.randn(shape, generator=chance, dtype=torch.float64).to(dtype))

    def see(self, name: str, value: Any) -> None:
        self.seen.append((name, frozen(value)))

    def go(self) -> list[tuple[str, Any]]:
        """All that a caller sees, action by action."""
        torch.manual_seed(0)
        with torch.device("cpu"):
            model = self.space["Model"]()
        model = model if self.program.single else model.double()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(self.noise(p))
        self.space["model"] = model
        for k, line in enumerate(self.program.script()):
            torch.manual_seed(k)
            try:
                exec(line, self.space)
            except Exception as error:
                self.see("error", (type(error).__name__, ADDRESS.sub("0x", str(error))))
            self.see("random state", torch.rand(()))
            self.state()
        return self.seen

    def state(self) -> None:
        """What the model, its optimizer and its hooks hold."""
        model, opt = self.space["model"], self.space.get("opt")
        self.see("parameter", dict(model.named_parameters()))
        self.see("gradient", {name: p.grad for name, p in model.named_parameters()})
        self.see("buffer", dict(model.named_buffers()))
        facts = {
            name: {k: v for k, v in vars(m).items() if isinstance(v, (int, float, Tensor, torch.Size))}
            for name, m in model.named_modules()
        }
        self.see("attribute", facts)
        noted: dict[bool, list[Any]] = {True: [], False: []}
        for row in self.space["LOG"]:
            noted[isinstance(row, tuple) and row[0] in OF_LEAVES].append(row)
        self.see("log", noted[False])
        self.see("gradients noted", sorted(noted[True], key=repr))
        if opt is not None:
            self.see(
                "optimizer", {n: opt.state.get(p) for n, p in model.named_parameters() if p in opt.state}
            )
        if opt is not None and self.off:
            self.nudge(opt)

    def nudge(self, opt: torch.optim.Optimizer) -> None:
        """NAdam keeps the product of its momenta in single precision, beside doubles too: it may be off by roundings of that."""
        for state in opt.state.values():
            if isinstance(state, dict) and "mu_product" in state:
                state["mu_product"].copy_(self.noise(state["mu_product"]))


def frozen(value: Any) -> Any:
    """What is compared of a value, as it is now."""
    if isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
        return "what a transform that has ended left behind"
    if isinstance(value, Tensor):
        facts = (
            type(value).__name__, str(value.dtype), tuple(value.shape), value.stride() if value.numel() else (),
            value.requires_grad, value.is_leaf, value.grad_fn is not None, value.is_inference(),
        )  # fmt: skip
        return ("tensor", facts, value.detach().clone())
    if isinstance(value, dict):
        return ("dict", [(str(k), frozen(v)) for k, v in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [frozen(v) for v in value])
    return value if isinstance(value, (int, float, str, type(None))) else type(value).__name__


def differs(ours: Any, theirs: Any, off: list[Any], least: torch.dtype = torch.float64) -> str | None:
    """Where two frozen values differ beyond rounding; ``off``: the same of the runs whose numbers are off, ``least``: as in ``far``."""
    if is_tensor(ours) and is_tensor(theirs):
        if ours[1] != theirs[1]:
            return f"{ours[1]} instead of {theirs[1]}"
        return far(ours[2], theirs[2], [x[2] for x in off if is_tensor(x) and x[1] == theirs[1]], least)
    if isinstance(ours, (tuple, list)) and type(ours) is type(theirs) and len(ours) == len(theirs):
        alike = [x for x in off if type(x) is type(theirs) and len(x) == len(theirs)]
        told = (differs(a, b, [x[k] for x in alike], least) for k, (a, b) in enumerate(zip(ours, theirs)))
        found = next(((k, text) for k, text in enumerate(told) if text), None)
        return None if found is None else f"{name_of(ours, found[0])}{found[1]}"
    if isinstance(ours, float) and isinstance(theirs, float):
        a, b, *others = (
            torch.tensor(x, dtype=torch.float64) for x in (ours, theirs, *off) if isinstance(x, float)
        )
        return far(a, b, others, least)
    return None if ours == theirs and type(ours) is type(theirs) else f"{ours!r} instead of {theirs!r}"[:600]


def is_tensor(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and value[0] == "tensor"


def name_of(parts: Any, k: int) -> str:
    return (
        f"{parts[0]}: "
        if k and isinstance(parts[0], str) and parts[0] not in ("dict", "list", "tuple")
        else ""
    )


def far(ours: Tensor, theirs: Tensor, off: list[Tensor], least: torch.dtype = torch.float64) -> str | None:
    """Whether numbers are further from eager's than rounding takes them; what is whole is no rounding's matter.

    ``least``: the least exact type that a program has computed in so far, whose roundings numbers of a more exact one may have.
    """
    if not ours.is_floating_point():
        return None if ours.equal(theirs) else f"{ours} instead of {theirs}"
    a, b = ours.double(), theirs.double()
    # what is no number in each run is as it should be
    apart = (
        torch.where(x.isnan() & b.isnan() | (x == b), 0.0, (x - b).abs()) for x in map(Tensor.double, off)
    )
    rounded = torch.stack([torch.zeros_like(b), *apart])
    scale = b[b.isfinite()].abs().amax() if b.isfinite().any() else torch.zeros(())
    # one number far off tells that the others may be, too
    room = (
        max(CLOSE[ours.dtype], CLOSE[least]) * scale.clamp(min=max(LEAST[ours.dtype], LEAST[least]))
        + ROOM * rounded.nan_to_num(torch.inf, torch.inf).amax()
        if b.numel()
        else 0.0
    )
    bad = ~(((a - b).abs() <= room) | (a == b) | (a.isnan() & b.isnan()))
    if not bad.any() or (isinstance(room, Tensor) and room.isinf()):
        return None
    return f"{a[bad][:4].tolist()} instead of {b[bad][:4].tolist()} ({int(bad.sum())} of {a.numel()}, room {float(room):.1e})"


def check(program: Trained) -> Finding | None:
    """Run the program in eager, in eager with numbers that are a little off, and compiled."""
    if DRAWN_LATE in program.text()[len(PRELUDE) :] and any(COPIES in line for line in program.script()):
        return None
    braze.reset()
    with warnings.catch_warnings(), logged() as said:
        warnings.simplefilter("ignore")
        wanted = Run(program, plain).go()
        off = [Run(program, plain, k).go() for k in range(1, RUNS_OFF + 1)]
        mine = Run(program, compiling(program.backend)).go()
    for k, (ours, theirs) in enumerate(zip(mine, wanted)):
        if any(name == "error" and WRITTEN in text[1][1] for name, text in (ours, theirs)):
            return None
        if ours[0] != theirs[0]:
            return Finding(f"{theirs[0]} or {ours[0]}", f"{ours[1]!r} instead of {theirs[1]!r}"[:800])
        seen_off = [seen[k][1] if k < len(seen) else None for seen in off]
        found = differs(ours[1], theirs[1], seen_off, program.least(position(wanted, k)))
        if found:
            return Finding(theirs[0], f"{found}\nafter {position(wanted, k)} actions")
    if len(mine) != len(wanted):
        return Finding("count", f"{len(mine)} observations instead of {len(wanted)}")
    for message in said:
        if FAULT.search(message):
            return Finding("internal error", message[message.index("BZ") :][:1500])
    return None


def position(seen: list[tuple[str, Any]], k: int) -> int:
    return sum(name == "log" for name, _ in seen[:k])


def plain(target: Any, **options: Any) -> Any:
    return target


def compiling(backend: str) -> Callable[..., Any]:
    return lambda target, **kwargs: braze.compile(target, backend=backend, options=OPTIONS, **kwargs)


MACHINE = Machine(generate, check)
