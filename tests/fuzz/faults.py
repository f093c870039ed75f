"""Faults at the n-th chance while a model is compiled and run: it is as if nothing had been, or the fault reaches the caller.

A program is a kind of fault, the place where it strikes, a backend, and whether a step of training runs. After the fault the
same compiled model is called again, and gives what it gives uncompiled.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import grad_mode

import braze
from braze.graph.private.torch_compat import is_out_of_memory
from tests.fuzz import fault_kinds
from tests.fuzz.fault_kinds import KINDS, Fault
from tests.fuzz.machine import Finding, Machine
from tests.helpers import logged

X = torch.linspace(-1, 1, 6).reshape(2, 3)


@dataclass(frozen=True)
class Struck:
    """One compile that is struck. ``by``: a number in the program, which gives it kernels of its own."""

    kind: str
    at: int
    backend: str
    training: bool
    by: float

    def source(self) -> str:
        return f"from tests.fuzz import faults\n\n\ndef check():\n    return faults.check(faults.{self!r})"

    def smaller(self) -> Iterator[Struck]:
        if self.backend != "eager":
            yield replace(self, backend="eager")
        if self.training:
            yield replace(self, training=False)
        for at in (0, self.at // 2, self.at - 1):
            if 0 <= at < self.at:
                yield replace(self, at=at)

    def tags(self) -> tuple[str, ...]:
        return (self.kind,)


class Subject(nn.Module):
    """Layers, a buffer that is written, a list that grows, a mode, a break, a closure, a method of the program's."""

    def __init__(self, by: float, hook: Callable[[], None]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.by = by
        self.log: list[int] = []
        self.register_buffer("count", torch.zeros(()))
        self.hook = hook
        #: whether the call that is struck runs, and whether an exception of the program's was raised in it
        self.at_work = self.raised = False

    def forward(self, x: torch.Tensor, n: int) -> dict[str, Any]:
        y = self.layer(x) * self.by
        self.count.add_(1)
        self.log.append(n)
        with torch.no_grad():
            twice = x * 2
        print(end="")
        self.hook()

        def inner(z: torch.Tensor) -> torch.Tensor:
            return z.sin() + n + twice

        return {"a": inner(y), "b": [y.sum(), n]}


def subject(by: float, hook: Callable[[], None] = lambda: None) -> Subject:
    torch.manual_seed(0)
    return Subject(by, hook)


def step(model: Subject, call: Callable[..., Any], training: bool) -> list[Any]:
    """What one call leaves: results and gradients, rounded as kernels may."""
    model.zero_grad()
    result = call(X, 3)
    if training:
        (result["a"].square().sum() + result["b"][0]).backward()
    gradients = [p.grad if p.grad is not None else torch.zeros(()) for p in model.parameters()]
    return [result["a"].detach(), result["b"][0].detach(), torch.tensor(result["b"][1]), *gradients]


def generate(seed: int) -> Struck:
    rng = random.Random(seed)
    kind = rng.choice(sorted(KINDS))
    fault = KINDS[kind]
    backend = "braze" if fault.kernels else rng.choice(["eager", "eager", "aot_eager", "braze"])
    # early places are as likely as late ones
    at = int(2 ** rng.uniform(0, fault.places)) - 1
    return Struck(kind, at, backend, rng.random() < 0.4, round(rng.uniform(0.5, 2.0), 6))


def check(program: Struck) -> Finding | None:
    """Strike, then call twice more."""
    fault = KINDS[program.kind]
    braze.reset()
    plain, model = subject(program.by), subject(program.by)
    wanted = step(plain, plain, program.training)
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        logged() as said,
    ):
        warnings.simplefilter("ignore")
        compiled = braze.compile(model, backend=program.backend)
        found = struck(program, fault, Path(folder), model, compiled, wanted)
    return found or internal(said, program.kind)


def struck(
    program: Struck, fault: Fault, folder: Path, model: Subject, compiled: Any, wanted: list[Any]
) -> Finding | None:
    """The call that is struck and those after it."""
    begun = int(fault.warm)
    if fault.warm:
        step(model, compiled, program.training)
    with ignored_by_python() as ignored, fault.context(program.at, folder, model) as expected:
        try:
            model.at_work = True
            first: Any = step(model, compiled, program.training)
            model.at_work = False
        except expected as error:
            first = error
        except BaseException as error:
            if program.kind != "memory" or not is_out_of_memory(error):
                return Finding("error", f"{type(error).__name__}: {error}")
            first = error
    if not isinstance(first, BaseException):
        if what := difference(first, wanted):
            return Finding("wrong", f"the call that was struck: {what}")
        if model.raised and not ignored:
            return Finding("swallowed", "the program's exception reached nobody")
    if (what := changed_settings()) and not in_eagers_switch(first):
        return Finding("settings", what)
    before = len(model.log), float(model.count)
    if max(before) > 1 + begun:
        return Finding("wrong", f"the call that was struck left {before}")
    for time in (1, 2):
        try:
            after = step(model, compiled, program.training)
        except Exception as error:
            return Finding("error after", f"{type(error).__name__}: {error}")
        if what := difference(after, wanted):
            return Finding("wrong after", f"call {time}: {what}")
        if (len(model.log), float(model.count)) != (before[0] + time, before[1] + time):
            return Finding("wrong after", f"call {time} left {len(model.log)}, {float(model.count)}")
    return None


def difference(ours: list[Any], theirs: list[Any]) -> str:
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape or not torch.allclose(a, b, rtol=1e-4, atol=1e-5):
            return f"result {k} is {a.tolist()}, not {b.tolist()}"
    return ""


def changed_settings() -> str:
    """What a compile sets for its time and must put back, whatever ends it; put back for the next program."""
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        return "grad mode is off"
    left = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    return f"modes are left: {left}" if any(left) else ""


@contextlib.contextmanager
def ignored_by_python() -> Iterator[list[object]]:
    """Exceptions that Python itself lets reach nobody: a handler's that runs while a generator that nobody holds ends."""
    found: list[object] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda told: found.append(told.exc_type)
    try:
        yield found
    finally:
        sys.unraisablehook = before


def in_eagers_switch(error: Any) -> bool:
    """Whether an error came while the program's own ``with torch.no_grad()`` began: PyTorch sets the mode before Python is in the block, so that eager leaves it so, too."""
    if not isinstance(error, BaseException):
        return False
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != fault_kinds.__file__]
    within = next((k for k, f in enumerate(frames) if f.filename == grad_mode.__file__), len(frames))
    caller = frames[within - 1]
    switches = within < len(frames) or (caller.line or "").startswith("with torch.no_grad()")
    return switches and not caller.filename.startswith(str(Path(braze.__file__).parent))


def internal(said: list[str], kind: str) -> Finding | None:
    """What braze reports of itself; a graph may fail for want of memory."""
    for message in said:
        failed = "BZ6013" in message and not (kind == "memory" and "MemoryError" in message)
        if "BZ9" in message or failed:
            return Finding("internal error", message[message.index("BZ") :])
    return None


MACHINE = Machine(generate, check)
