"""An error of the program's own code at its n-th call: it reaches the caller as in eager, nothing is left behind, and the next calls are right.

A program is a place where the program's code is called (``fault_hooks``), which call raises, what it raises, and whether that is in a first call.
"""

from __future__ import annotations

import random
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import braze
from braze.capture.dispatch import variants
from braze.support import interrupts, trace
from tests import left_behind
from tests.fuzz.fault_hooks import ERRORS, PLACES, TRACED, Strike, as_it_is
from tests.fuzz.machine import Finding, Machine
from tests.helpers import logged

BY_NAME = {error.__name__: error for error in ERRORS}


@dataclass(frozen=True)
class Hooked:
    place: str
    at: int
    error: str
    warm: bool

    def source(self) -> str:
        return f"from tests.fuzz import hooked\n\n\ndef check():\n    return hooked.check(hooked.{self!r})"

    def smaller(self) -> Iterator[Hooked]:
        if self.warm:
            yield replace(self, warm=False)
        yield from (replace(self, at=at) for at in range(self.at))

    def tags(self) -> tuple[str, ...]:
        return (self.place,)


def generate(seed: int) -> Hooked:
    rng = random.Random(seed)
    at = int(2 ** rng.uniform(0, 4)) - 1
    return Hooked(rng.choice(sorted(PLACES)), at, rng.choice(sorted(BY_NAME)), rng.random() < 0.5)


def outcome(step: Callable[[], list[torch.Tensor]], strike: Strike, armed: bool) -> Any:
    """Tensors, or what was raised."""
    strike.armed = armed
    try:
        return step()
    except BaseException as error:
        # what its frames have entered is left when they end: PyTorch 2.11 enters a checkpoint's modes in a generator
        traceback.clear_frames(error.__traceback__)
        return error
    finally:
        strike.armed = False


def check(program: Hooked) -> Finding | None:
    """The program in eager and compiled, struck in one call, then called twice."""
    braze.reset()
    plain, strike = (Strike(program.at, BY_NAME[program.error]("planted")) for _ in range(2))
    with warnings.catch_warnings(), logged() as said:
        warnings.simplefilter("ignore")
        eager = PLACES[program.place](plain, as_it_is)
        compiled = PLACES[program.place](strike, braze.compile)
        before = left_behind.found(), signal.getsignal(signal.SIGINT)
        for number, armed in enumerate([False] * program.warm + [True, False, False]):
            wanted, found = outcome(eager, plain, armed), outcome(compiled, strike, armed)
            what = compared(program, wanted, found, plain, strike) if armed else difference(found, wanted)
            if what:
                return Finding("wrong", f"call {number}: {what}")
            if what := left(before):
                return Finding("left", f"call {number}: {what}")
    internal = [m[m.index("BZ") :] for m in said if "BZ9" in m or "BZ6013" in m]
    return Finding("internal error", internal[0]) if internal else None


def compared(program: Hooked, wanted: Any, found: Any, plain: Strike, strike: Strike) -> str:
    """The call that was struck. Where only the compiler called that code so often, what it raises is the compile's, and its caller's."""
    if found is strike.error:
        return ""
    if not isinstance(found, BaseException) and program.place in TRACED:
        return "" if isinstance(wanted, BaseException) else difference(found, wanted)
    # memory that ends while compiling leaves the function in eager
    if program.error == "MemoryError" and trace.snapshot()[0].get("compiles_out_of_memory"):
        return difference(found, wanted)
    if strike.raised and not plain.raised:
        return f"{program.error} became {found!r}"
    return difference(found, wanted)


def difference(found: Any, wanted: Any) -> str:
    if isinstance(found, BaseException) or isinstance(wanted, BaseException):
        return "" if type(found) is type(wanted) else f"{found!r}, not {wanted!r}"
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-4, atol=1e-5):
            return f"result {k} is {a.tolist()}, not {b.tolist()}"
    return ""


def left(before: tuple[dict[str, Any], Any]) -> str:
    """What the process is otherwise than before, or another thread could not do."""
    now = left_behind.found()
    changed = [f"{name} is {now[name]!r}, was {was!r}" for name, was in before[0].items() if now[name] != was]
    if signal.getsignal(signal.SIGINT) is not before[1] or interrupts.deferring.depth:
        changed.append("handlers of signals wait")
    if not free():
        changed.append("the lock of compiles is held")
    return "; ".join(changed)


def free() -> bool:
    """Whether another thread may compile."""
    answers: list[bool] = []

    def ask() -> None:
        answers.append(variants._compiling.acquire(timeout=20))
        if answers[0]:
            variants._compiling.release()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return answers[0]


MACHINE = Machine(generate, check)
