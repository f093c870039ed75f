"""Hold a program, compiled, to what it does in eager."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

import braze
from braze.support import log
from tests import left_behind
from tests.fuzz.machine import Finding
from tests.fuzz.tensors import oracle, watching
from tests.fuzz.tensors.casts import Doubled, Watched
from tests.fuzz.tensors.observe import Seen, observe
from tests.fuzz.tensors.program import Line, TensorProgram

#: what programs are compiled with if they do not say otherwise: their numbers, whole ones too, are eager's in any guise
BASE = {"numerics": "eager"}
#: a compiled graph that failed where Python does not, or a broken invariant
FAULT = re.compile(r"\bBZ(?:6013|9\d{3})\b")
#: errors about what was written since a backward wanted to have it
WRITTEN = re.compile(
    "modified by an inplace operation|its base or another view of its base has been modified inplace"
    "|Recomputed values for the following tensors have different metadata"
    "|A different number of tensors was saved during the original forward and recomputation"
)
#: a write that autograd does not see, be it through a name
UNSEEN = re.compile(r"\.data\.\w+_\(|\b(\w+) = \w+\.data\n(?s:.*)\b\1\b(?:[^\n=]*\.\w+_\(|\[[^\n]*\] \S*= )")
#: bounds that are no numbers, which the kernels of PyTorch before 2.13 pass over in some places
NO_BOUND = re.compile(r"\bclamp\w*\([^)]*\bnan\b")
PASSES_NAN_OVER = torch.__version__ < "2.13"
#: a statement whose derivative computes it again
AGAIN = re.compile(r"checkpoint\(lambda: (.*), use_reentrant=False\)")
#: branches and loops over data, of which a compiled backward computes again what was chosen: of operands that PyTorch's operators keep, too
OVER_DATA = re.compile(r"\b(?:cond|while_loop|scan)\(")
#: what PyTorch's own `torch.cond` raises, behind a graph break, of branches that it cannot compile (functions with a `jvp`, two results that
#: differ in the stride of a dim of one element); eager's programs branch in Python
REFUSED_OVER_DATA = {"UncapturedHigherOrderOpError", "TorchRuntimeError"}
OVER_DATA = re.compile(r"\b(cond|while_loop|scan)\(")
#: eager's pixel_shuffle and channel_shuffle of empty tensors: gradients of another shape, groups of no channels
WRONG_DERIVATIVE = re.compile(
    r"returned an invalid gradient at index|Number of groups to divide channels in must be positive"
)
#: eager's hooks get None where the gradient of another result of their operation comes in alone: ours are called for gradients
NO_GRADIENT = re.compile(r"unsupported operand type\(s\) for .*'NoneType'")
#: what eager says of a view whose storage was set, which it makes again on its base, whose memory it does not fit: in other words of another
#: view. Ours names the operation without a derivative, or meets such a view first, too
SET_ON_BASE = re.compile(
    "^(?:setStorage: sizes .* are out of bounds for storage|Storage size calculation overflowed with sizes="
    "|Tensor: invalid storage offset -)"
)
SET = "derivative for set_ is not implemented"
#: an operation without a derivative, which eager does not come to where a hook on its result, or what was written, has failed before
UNDERIVED = re.compile(r"^(?:the )?derivative for (?:aten::\w+|'\w+') is not implemented\.?$")
#: what eager says of a number that it has saved and that was detached behind the graph; a compiled backward may have kept another
DETACHED = "Trying to use a saved tensor that has been detached in-place"
#: roll's kernel on the CPU is a `cat` that goes through autocast, which asserts that it meets no halves
NOT_ROLLED = "Unexpected floating ScalarType in at::autocast::prioritize"
#: what eager says of the gradient of a leaf that was turned since, where it comes to that
TURNED = re.compile(
    r"^The size of tensor a \(\d+\) must match the size of tensor b \(\d+\) at non-singleton dim"
)
#: what is compared first: the others follow from it
ORDER = (
    "type", "value", "dtype", "shape", "strides", "requires_grad", "grad_fn", "leaf", "aliasing", "changed", "gradient"
)  # fmt: skip
#: what hangs on the history of tensors
HISTORY = ("requires_grad", "grad_fn", "leaf", "gradient")


def check(program: TensorProgram) -> Finding | None:
    """Run the program's calls in eager and compiled; the first thing that differs."""
    braze.reset()
    heard: list[str] = []
    eager = program.function()
    compiled = braze.compile(
        program.function(),
        backend=program.backend,
        dynamic=program.dynamic,
        options={**BASE, **dict(program.options)},
    )
    for call in range(program.calls):
        theirs = seen(program, eager, call)
        if theirs.error and program.device != "cpu":
            return None  # a tensor that the program makes itself is on the CPU
        before = modes()
        with log.listen(heard.append):
            ours = seen(program, compiled, call)
        leave_if_lost(ours)
        found = fault(heard) or left(before) or differs(program, call, ours, theirs)
        torch.set_grad_enabled(before["grad mode"])  # the next program's
        if found is not None:
            return found
    return None


def seen(
    program: TensorProgram,
    fn: Callable[..., Any],
    call: int,
    double: bool = False,
    casts: AbstractContextManager[Any] | None = None,
) -> Seen:
    with (
        _disable_current_modes()
    ):  # the numbers that a program is given are what they are: nothing rounds them
        arguments = program.arguments(call, double)
    around = "" if double and program.around == "autocast" else program.around
    with casts or nullcontext():
        return observe(fn, arguments, program.given, around, program.backward)


def modes() -> dict[str, Any]:
    """PyTorch's state in this process."""
    return {name: ask(torch) for name, ask in left_behind.OF_TORCH.items()}


def left(before: dict[str, Any]) -> Finding | None:
    """What a compiled call has changed for all that comes after: with grad mode off, no later program would have a gradient to compare."""
    now = modes()
    changed = [f"{name} is {now[name]!r}, was {was!r}" for name, was in before.items() if now[name] != was]
    return Finding("left", "; ".join(changed)) if changed else None


def leave_if_lost(seen_: Seen) -> None:
    """After a failure on a GPU nothing runs there any more in this process, which ends as a finding."""
    if any("CUDA error" in text for error in (seen_.error, seen_.backward_error) if error for text in error):
        print(seen_.error or seen_.backward_error, file=sys.stderr, flush=True)
        os.abort()


def fault(heard: list[str]) -> Finding | None:
    """What braze reported of its own faults."""
    for message in heard:
        for code in FAULT.findall(message):
            return Finding(code, message)
    return None


def differs(program: TensorProgram, call: int, ours: Seen, theirs: Seen) -> Finding | None:
    """The first thing that differs between two calls."""
    if ours.error is None and theirs.error == ("RuntimeError", NOT_ROLLED) and ".roll(" in program.text():
        return None
    refused = theirs.error is None and ours.error is not None and ours.error[0] in REFUSED_OVER_DATA
    if refused and OVER_DATA.search(program.text()):
        return None
    made, expected = ((s.backward_error, *map(s.facts.get, HISTORY)) for s in (ours, theirs))
    if made != expected and ".detach_()" in program.text():
        program = looked_at(program)
        theirs = seen(program, program.function(), call)
    if theirs.backward_error is None and watching.UNWATCHED.search(program.text()):
        watched = seen(program, program.function(), call, casts=watching.Watching()).backward_error
        theirs.backward_error = watched if watched and WRITTEN.search(watched[1]) else None
    refused = ours.backward_error and theirs.backward_error and WRITTEN.search(ours.backward_error[1])
    if refused and AGAIN.search(
        program.text()
    ):  # eager may fail in what it computes of what was turned since
        once = without_checkpoints(program)
        theirs.backward_error = seen(once, once.function(), call).backward_error
    again = "checkpoint(" in program.text() or OVER_DATA.search(program.text()) is not None
    excuse(ours, theirs, again)
    for kind, mine, its in (
        ("error", ours.error, theirs.error),
        ("backward error", ours.backward_error, theirs.backward_error),
    ):
        if mine != its:
            codes = FAULT.findall(" ".join(mine)) if mine else []
            return Finding(codes[0] if codes else kind, f"{mine}, eager {its}, at call {call}")
    for name in ORDER:
        if ours.facts.get(name) != theirs.facts.get(name):
            return Finding(name, f"{parts(ours.facts.get(name), theirs.facts.get(name))}, at call {call}")
    return numbers_differ(program, call, ours, theirs)


def excuse(ours: Seen, theirs: Seen, checkpoints: bool = False) -> None:
    """Eager refuses a backward that needs a number which was written over; a compiled one has kept the number, or needs another.

    Nor do both name the same tensor. A region that is computed again reads whatever its variables hold by then: eager
    cannot tell that it has been written. And some of eager's derivatives are wrong for tensors without elements: what a
    compiled one makes of these is not compared, nor what it makes of a hook that in eager gets no gradient, be it that it refuses the operation
    itself. Two may refuse `set_` in words of their own, and either for what was written over, or turned, on the way there. What was saved and then detached in place is as what was saved and written.
    A backward that eager refuses for what was written may come to a leaf that was turned since.
    """
    mine, its = ours.backward_error, theirs.backward_error
    if its and WRONG_DERIVATIVE.search(its[1]):
        ours.backward_error = theirs.backward_error = None
    elif (
        mine
        and its
        and WRITTEN.search(its[1])
        and any(pattern.search(mine[1]) for pattern in (WRITTEN, TURNED, UNDERIVED))
    ):
        theirs.backward_error = mine
    elif mine and its and WRITTEN.search(mine[1]) and its[1].startswith(DETACHED):
        theirs.backward_error = mine
    elif (
        its
        and its[0] == "TypeError"
        and NO_GRADIENT.search(its[1])
        and (not mine or UNDERIVED.search(mine[1]))
    ):
        ours.backward_error = theirs.backward_error = None
    elif mine and its and SET_ON_BASE.search(mine[1]) and SET_ON_BASE.search(its[1]):
        theirs.backward_error = mine
    elif mine and its and mine[1] == SET and (SET_ON_BASE.search(its[1]) or WRITTEN.search(its[1])):
        theirs.backward_error = mine
    elif mine and its and WRITTEN.search(mine[1]) and (its[1] == SET or SET_ON_BASE.search(its[1])):
        theirs.backward_error = mine
    elif mine and checkpoints and its is None and WRITTEN.search(mine[1]):
        ours.backward_error = None
    elif not (mine is None and its and (WRITTEN.search(its[1]) or its[1].startswith(DETACHED))):
        return
    else:
        theirs.backward_error = None
    for seen_ in (ours, theirs):
        seen_.facts.pop("gradient", None)
        seen_.values = {n: v for n, v in seen_.values.items() if not n.startswith("gradient")}


def parts(mine: Any, its: Any) -> str:
    """What differs in a fact."""
    if not isinstance(mine, dict) or not isinstance(its, dict):
        return f"{mine}, eager {its}"
    keys = [key for key in {**its, **mine} if mine.get(key) != its.get(key)]
    return "; ".join(f"{key}: {mine.get(key)}, eager {its.get(key)}" for key in keys)


def numbers_differ(program: TensorProgram, call: int, ours: Seen, theirs: Seen) -> Finding | None:
    """Numbers that are neither eager's nor as near to float64's."""
    suspects = [name for name, value in ours.values.items() if not oracle.same(value, theirs.values[name])]
    if UNSEEN.search(
        program.text()
    ):  # such a write reaches what a backward has kept: eager's, and ours, which keeps other things
        suspects = [name for name in suspects if not name.startswith("gradient")]
    if PASSES_NAN_OVER and NO_BOUND.search(program.text()):
        return None
    if any(name.startswith("gradient") for name in suspects) and AGAIN.search(program.text()):
        once = without_checkpoints(program)
        theirs = seen(once, once.function(), call)
        if theirs.backward_error:
            suspects = [name for name in suspects if not name.startswith("gradient")]
        program = once
    if not suspects:
        return None
    dtype = smallest(program, theirs)
    rounds = dict(program.options).get("numerics") == "float32"
    wide = in_double(program, call, dtype)
    # whole numbers are eager's, but where those differ that its open choices make
    whole = any(not theirs.values[name].is_floating_point() for name in suspects)
    chosen = in_double(program, call, dtype, rounds=False) if whole and not rounds else wide
    for name in suspects:
        floats = theirs.values[name].is_floating_point()
        found = differs_from(name, ours, theirs, wide if floats else chosen, rounds)
        if found:
            kind = "gradient values" if name.startswith("gradient") else "values"
            return Finding(kind, f"{name} at call {call}: {found}")
    return None


def differs_from(name: str, ours: Seen, theirs: Seen, samples: oracle.Samples, rounds: bool) -> str:
    """What is wrong with one of the program's numbers, whatever the runs in float64 leave room for: as many of them as it takes."""
    wrong, its = "", theirs.values[name]
    looks = oracle.LOOKS if its.is_floating_point() else oracle.LOOKS[-1:]
    for count in looks + oracle.MORE_LOOKS if its.numel() > oracle.MANY else looks:
        wrong = judged(name, ours, theirs, samples, samples.first(count), rounds)
        if not wrong:
            break
    return wrong


def judged(
    name: str, ours: Seen, theirs: Seen, samples: oracle.Samples, rounded: list[dict[str, Any]], rounds: bool
) -> str:
    """What is wrong with one of the program's numbers, with so many of the rounded runs."""
    mine, its, best = ours.values[name], theirs.values[name], samples.exact.get(name)
    floats = its.is_floating_point()
    if best is not None and (best.shape != its.shape or best.is_floating_point() != floats):
        best = None
    others = [sample[name] for sample in rounded if name in sample and best is not None]
    # a returned view has a gradient of its own, zeros around what comes in, which is added to the graph's
    signs = not (name.startswith("gradient") and theirs.returns_view)
    doubled = [o.double() for o in others if o.shape == its.shape]
    if not signs and name in theirs.in_parts:
        mine, its = oracle.as_wholes(mine), oracle.as_wholes(its)
        best = None if best is None else oracle.as_wholes(best)
        doubled = [oracle.as_wholes(o) for o in doubled]
    if not floats:
        return (oracle.decided if rounds else oracle.settled)(mine, its, doubled)
    return oracle.verdict(mine, its, best, doubled, signs, samples.dtype, name in theirs.in_parts)


def looked_at(program: TensorProgram) -> TensorProgram:
    """The program with all histories looked at behind each line.

    What a view comes of, whose base was written since, autograd finds out when it is asked: a base that is detached in between has no
    history by then. So in eager a gradient hangs on whether somebody looked, as a graph that ends there does.
    """
    look = "[v.grad_fn for v in list(locals().values()) if isinstance(v, torch.Tensor)]"
    lines = [line for each in program.lines for line in (each, Line((), look))]
    return replace(program, lines=tuple(lines))


def without_checkpoints(program: TensorProgram) -> TensorProgram:
    """The program with nothing computed again: eager does that of whatever variables hold by then, which may be others' numbers."""
    lines = [replace(line, text=AGAIN.sub(r"(\1)", line.text)) for line in program.lines]
    return replace(program, lines=tuple(lines))


def smallest(program: TensorProgram, theirs: Seen) -> torch.dtype:
    """The type of a program that rounds most."""
    dtypes = [value.dtype for value in theirs.values.values()]
    if program.around == "autocast" or "autocast" in program.text():
        dtypes.append(torch.bfloat16)
    text = repr(program.given) + program.text().replace(".float()", "float32")
    dtypes += [getattr(torch, name) for name in re.findall(r"bfloat16|float16|float32", text)]
    return oracle.smallest(dtypes)


def copies_of_saved() -> AbstractContextManager[Any]:
    """What autograd saves is a copy, which no write reaches."""
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)


def in_double(program: TensorProgram, call: int, dtype: torch.dtype, rounds: bool = True) -> oracle.Samples:
    """The program's numbers in float64, if it runs in that.

    What is cast on the way to a saved tensor is a copy in eager, and the number itself in float64: where that was written
    since, only the backward in float64 is refused, and keeps copies of what it saves.
    """
    fn, watched = program.function(double=True), Watched()
    narrow = seen(program, program.function(), call, casts=watched)

    def run(kept: AbstractContextManager[Any] | None = None) -> Seen:
        with kept or nullcontext():
            return seen(program, fn, call, double=True, casts=Doubled(watched.kept))

    refused = run().backward_error if narrow.backward_error is None else None
    copied = bool(refused and WRITTEN.search(refused[1]))

    def values() -> dict[str, Any]:
        made = run(copies_of_saved()) if copied else None
        if (
            made is None or made.error
        ):  # transforms take no hooks on what is saved: results are known without a backward
            made = run()
        return made.values

    return oracle.Samples(values, dtype, rounds)
