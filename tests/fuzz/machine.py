"""What a machine is: it makes a program from a seed, and says what is wrong with it when it runs.

A machine is a module with a ``MACHINE``, and one row in :data:`MACHINES`. The frame does the rest: seeds, processes,
programs that die or hang, smaller programs that fail alike, a file for each failure, counts.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Finding:
    """What is wrong with a program. ``kind`` is a word or two; a smaller program must fail in the same kind."""

    kind: str
    text: str

    def signature(self) -> str:
        """Findings of one signature are taken for one bug, until it is mended."""
        first = self.text.strip().split("\n")[0]
        return re.sub(r"\d[\d.e+-]*", "#", f"{self.kind}: {first}")[:160]


class Program(Protocol):
    """What a machine makes from a seed."""

    def source(self) -> str:
        """Python text that defines ``check() -> Finding | None``, with imports and all, readable by who mends the bug."""

    def smaller(self) -> Iterator[Any]:
        """Programs with a part left out or made simpler, the boldest first; they need not be valid."""

    def tags(self) -> tuple[str, ...]:
        """What the ledger counts besides programs ("gradients", "changing sizes")."""


@dataclass(frozen=True)
class Machine:
    """``generate`` gives the same program for the same seed, in each process; ``check`` runs it in this one."""

    generate: Callable[[int], Any]
    check: Callable[[Any], Finding | None]


@dataclass(frozen=True)
class Row:
    """One machine: where it is, what it does, the environment of its processes, its share of the minutes of all."""

    module: str
    about: str
    environment: Mapping[str, str] = field(default_factory=dict)
    share: float = 1.0
    #: a program that takes longer hangs
    seconds: float = 60.0
    #: one of its programs takes as long as so many of another machine: where so many of each are asked for, it runs fewer
    cost: int = 1

    def load(self) -> Machine:
        machine = importlib.import_module(self.module).MACHINE
        assert isinstance(machine, Machine)
        return machine


#: Fresh memory holds 0x7f (huge as a float, nan as a half), freed memory 0x80: what reads either is seen. glibc's own
#: switch; its per-thread lists of freed blocks go past it, so they are off.
POISON = {"MALLOC_PERTURB_": "128", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
#: one thread each, since as many processes run as there are cores
ALONE = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
#: some threads, more than there may be cores: a program's options say how many of them its kernels take
TEAM = {"OMP_NUM_THREADS": "5"}

MACHINES: dict[str, Row] = {
    "tensors": Row(
        "tests.fuzz.tensors.machine", "views, writes, operators and their gradients", POISON, share=2
    ),
    "rare": Row(
        "tests.fuzz.tensors.rare",
        "tensor programs with sizes in indices, lists, complex numbers and what few programs call",
        POISON,
    ),
    "places": Row(
        "tests.fuzz.tensors.places",
        "positions and masks that are joined, turned, padded and compared",
        POISON,
    ),
    "operators": Row(
        "tests.fuzz.tensors.operators",
        "tensor programs of operators that the other machines do not call",
        POISON,
        cost=3,
    ),
    "large": Row(
        "tests.fuzz.tensors.large",
        "tensors of up to millions of elements, whose kernels have tasks, tiles and remainders",
        POISON | TEAM,
        seconds=600,
        cost=12,
    ),
    "derived": Row(
        "tests.fuzz.tensors.derived",
        "tensor programs that take derivatives themselves, put hooks, and branch and loop over data",
        POISON,
    ),
    "metamorphic": Row("tests.fuzz.metamorphic", "tensor programs in guises that must not matter", POISON),
    "cudagraphs": Row(
        "tests.fuzz.cudagraphs", "calls that are recorded and replayed, whoever holds what", POISON
    ),
    "toy": Row("tests.fuzz.toy", "a machine with planted failures, for the tests of the frame", share=0),
    "faults": Row(
        "tests.fuzz.faults", "memory, signals, disks, compilers, hooks, forks and threads that fail"
    ),
    "hooked": Row("tests.fuzz.hooked", "errors of the program's own code, wherever it is called"),
    "modules": Row(
        "tests.fuzz.modules.machine",
        "models that are trained, frozen, loaded and hooked between calls",
        POISON,
    ),
    "models": Row(
        "tests.fuzz.modules.rare",
        "models of rarer layers, of which weights are averaged, tied, cast, copied and called in turn",
        POISON,
    ),
    "programs": Row(
        "tests.fuzz.programs.machine", "Python programs whose surroundings change between calls", share=2
    ),
}
