"""Which seeded places this process has come by, and where the bug would have made a difference. Imported by any Python
process of a probed tree, before anything else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
#: numbers of places, since they were last taken; ``~n`` of those where the bug would change a value
seen: set[int] = set()
#: a test's own process says so and takes what it has seen itself; others write it down as they come by
in_test_process = False
#: what another process was at when it last came by a place
_at = ""
#: values of these types are compared; of others a bug is taken to change them
_COMPARED = (bool, int, float, complex, str, bytes, type(None))


def note(number: int) -> None:
    if number not in seen:
        seen.add(number)
        if not in_test_process:
            write(number)


def fresh(number: int) -> bool:
    """Whether it has not been seen yet that the bug would make a difference here."""
    global _at
    if not in_test_process and (now := at_work()) != _at:
        _at = now
        seen.clear()
    return ~number not in seen


def hit(number: int) -> bool:
    """A place in the probed tree calls this, and goes on with its own value since this one is false."""
    if fresh(number):
        note(number)
        note(~number)
    return False


def taken(number: int, condition: T) -> T:
    """A condition whose branch the bug leaves out: it makes a difference where the condition holds."""
    if fresh(number):
        note(number)
        if condition:
            note(~number)
    return condition


def compared(number: int, value: T, mutated: Callable[[], Any]) -> T:
    """A value that has no effect besides: it is computed as the bug would, too."""
    if fresh(number):
        note(number)
        try:
            same = alike(value, mutated())
        except Exception:
            same = False
        if not same:
            note(~number)
    return value


def alike(one: Any, other: Any) -> bool:
    """Whether nothing can come of it that one value is the other."""
    if type(one) is not type(other):
        return False
    if type(one) in (tuple, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one is other or (type(one) in _COMPARED and one == other)


def at_work() -> str:
    """The test, or the program of a machine, that this process works for."""
    return os.environ.get("PYTEST_CURRENT_TEST") or os.environ.get("FUZZ_PROGRAM", "")


def write(number: int) -> None:
    """One line for a process that a test has started: the place, and the test."""
    with open(os.environ["MUTANTS_HITS"], "a") as file:
        file.write(f"{number}\t{at_work()}\n")


def install() -> None:
    if "MUTANTS_HITS" in os.environ:
        sys.braze_mutants = hit, taken, compared  # type: ignore[attr-defined]
