"""A machine with planted failures: programs are rows of numbers, and some numbers are bad."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.fuzz.machine import Finding, Machine
from tests.fuzz.minimise import shorter


@dataclass(frozen=True)
class Numbers:
    """13 is wrong when a 7 comes before it, 66 dies, 77 hangs."""

    items: tuple[int, ...]

    def source(self) -> str:
        return (
            f"from tests.fuzz import toy\n\n\ndef check():\n    return toy.check(toy.Numbers({self.items}))\n"
        )

    def smaller(self) -> Iterator[Numbers]:
        for items in shorter(self.items):
            yield Numbers(items)

    def tags(self) -> tuple[str, ...]:
        return ("even",) if sum(self.items) % 2 == 0 else ()


def generate(seed: int) -> Numbers:
    """Ten numbers below 50; some seeds have a planted failure."""
    rng = random.Random(seed)
    items = [rng.randrange(14, 50) for _ in range(10)]
    planted = {3: (7, 13), 5: (66,), 8: (77,)}.get(seed % 10, ())
    for item in reversed(planted):
        items.insert(4, item)
    return Numbers(tuple(items))


def check(program: Numbers) -> Finding | None:
    if 66 in program.items:
        os.abort()
    if 77 in program.items:
        time.sleep(60)
    if 13 in program.items and 7 in program.items[: program.items.index(13)]:
        return Finding("wrong", f"{program.items.index(13)} has a 13")
    return None


MACHINE = Machine(generate, check)
