"""One tensor program in several guises that must all do what eager does: other options, other text of the same meaning."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.fuzz.machine import Finding, Machine
from tests.fuzz.tensors.check import check as check_one
from tests.fuzz.tensors.generate import generate as generate_one
from tests.fuzz.tensors.program import Line, TensorProgram

Guise = Callable[[TensorProgram, random.Random], TensorProgram]


def option(name: str, value: Any) -> Guise:
    """The program compiled with one more option."""
    return lambda program, rng: replace(program, options=(*program.options, (name, value)))


def setting(**changes: Any) -> Guise:
    return lambda program, rng: replace(program, **changes)


def renamed(program: TensorProgram, rng: random.Random) -> TensorProgram:
    """Other names for what it binds."""
    for target in dict.fromkeys(name for line in program.lines for name in line.targets):
        program = program.renamed(target, f"v{rng.randrange(1000)}{target[1:].zfill(3)}", list(program.lines))
    return program


def reordered(program: TensorProgram, rng: random.Random) -> TensorProgram:
    """Neighbours change places that write nothing and do not read each other."""
    lines = list(program.lines)
    for i in rng.choices(range(max(len(lines) - 1, 1)), k=len(lines)):
        if i + 1 < len(lines) and apart(lines[i], lines[i + 1]):
            lines[i], lines[i + 1] = lines[i + 1], lines[i]
    return replace(program, lines=tuple(lines))


def apart(a: Line, b: Line) -> bool:
    """Whether two statements can change places."""
    if not a.targets or not b.targets:
        return False
    return not {*a.targets} & {*b.uses(), *b.targets} and not {*b.targets} & {*a.uses()}


def broken(program: TensorProgram, rng: random.Random) -> TensorProgram:
    """The graph breaks before one statement."""
    place = rng.randrange(len(program.lines) + 1)
    pause = Line((), "braze.graph_break()")
    return replace(program, lines=(*program.lines[:place], pause, *program.lines[place:]))


def nested(program: TensorProgram, rng: random.Random) -> TensorProgram:
    """A statement that binds one name is computed by a function of its own."""
    bound = [i for i, line in enumerate(program.lines) if len(line.targets) == 1 and "\n" not in line.text]
    if not bound:
        return program
    i = rng.choice(bound)
    target, made = program.lines[i].text.split(" = ", 1)
    line = replace(program.lines[i], text=f"{target} = (lambda: {made})()")
    return replace(program, lines=(*program.lines[:i], line, *program.lines[i + 1 :]))


def inference(program: TensorProgram, rng: random.Random) -> TensorProgram:
    """Without gradients."""
    given = tuple(replace(g, grad="") for g in program.given)
    return replace(program, given=given, backward=False, around=rng.choice(("", "no_grad", "inference_mode")))


GUISES: dict[str, Guise] = {
    "fusion off": option("fusion", False),
    "arena off": option("arena", False),
    "two threads": option("threads", 2),
    "no packed products": option("gemm_template", False),
    "nothing hoisted": option("hoist", False),
    "default partition": option("partition", "default"),
    "a third of the memory": option("memory_budget", 0.3),
    "small kernels": option("max_fusion_steps", 2),
    "channels last": option("channels_last", True),
    "kept captures": option("keep_captures", True),
    "symbolic": setting(dynamic=True),
    "not symbolic": setting(dynamic=False),
    "captured only": setting(backend="eager"),
    "ahead of time only": setting(backend="aot_eager"),
    "with kernels": setting(backend="braze"),
    "renamed": renamed,
    "reordered": reordered,
    "broken": broken,
    "nested": nested,
    "inference": inference,
}


#: the guise of programs of half types in which kernels round only what is seen: held to float64, as eager's numbers are
WIDE = "values kept wide"
GUISES_OF_HALVES: dict[str, Guise] = {WIDE: option("numerics", "float32")}


@dataclass(frozen=True)
class Guises:
    """A program in its guises, each by its name."""

    guises: tuple[tuple[str, TensorProgram], ...]

    def source(self) -> str:
        """Of one guise the program itself."""
        if len(self.guises) == 1:
            return self.guises[0][1].source()
        parts = []
        for i, (name, program) in enumerate(self.guises):
            text = program.source().replace("TEXT", f"TEXT_{i}").replace("GIVEN", f"GIVEN_{i}")
            parts.append(f"# {name}\n{text}".replace("def check()", f"def check_{i}()"))
        calls = " or ".join(f"check_{i}()" for i in range(len(self.guises)))
        return "\n\n".join([*parts, f"def check():\n    return {calls}\n"])

    def smaller(self) -> Iterator[Guises]:
        if len(self.guises) > 1:
            yield from (Guises((guise,)) for guise in self.guises)
        else:
            name, program = self.guises[0]
            yield from (Guises(((name, one),)) for one in program.smaller())

    def tags(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.guises)


def generate(seed: int) -> Guises:
    """The program of a seed in three guises, and in one more if it has half types."""
    program = generate_one(seed)
    rng = random.Random(seed)
    names = rng.sample(sorted(GUISES), 3)
    made = [(name, GUISES[name](program, rng)) for name in names]
    if has_halves(program):
        made += [(name, guise(program, rng)) for name, guise in GUISES_OF_HALVES.items()]
    return Guises(tuple(made))


def has_halves(program: TensorProgram) -> bool:
    """Whether some of a program's numbers are of a half type."""
    return (
        re.search(r"bfloat16|float16|autocast", f"{program.around} {program.given!r} {program.text()}")
        is not None
    )


def check(program: Guises) -> Finding | None:
    """The first guise that does not do what eager does."""
    for name, guise in program.guises:
        found = check_one(guise)
        if found is not None:
            return Finding(found.kind, f"{found.text} ({name})")
    return None


MACHINE = Machine(generate, check)
