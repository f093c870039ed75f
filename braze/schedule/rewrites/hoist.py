"""Take out what depends on constants only, so that it is computed once and not at each call.

A step is fixed when everything it reads is: parameters and buffers that the program does not write, or results of
fixed steps (also of none: masks and position tables made from static sizes). What the remaining steps need of
that becomes further inputs of the program. The runtime computes it again when a constant changes.
"""

from __future__ import annotations

import dataclasses

from braze.loops.ir import (
    Buffer,
    BufferKind,
    ExternCall,
    LoopNest,
    LoopProgram,
    Step,
    TemplateCall,
)
from braze.loops.rewrite import index_exprs, roots
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.dependences import ORDER, Accesses, accesses, exprs_in, needed_steps
from braze.schedule.memory.memory import storage_bytes


def hoist(program: LoopProgram, kept: set[str], choices: Choices) -> tuple[LoopProgram | None, LoopProgram]:
    """(the program of the fixed steps or None, the program without them)."""
    found = [accesses(step) for step in program.steps]
    steps = _fixed_steps(program, found, kept, choices)
    if not steps:
        return None, program
    # what is cheaper to compute than to load stays in the program as well
    fixed_only = {k for k in steps if found[k].reads or not _cheap(program.steps[k], choices)}
    made = {name for k in fixed_only for name in found[k].writes}
    if program.device != "cpu" and not choices.worth_a_look(len(fixed_only), _bytes(program, made)):
        # what reads no constant needs no look
        steps = _of_nothing(found, steps)
        fixed_only &= steps
        made = {name for k in fixed_only for name in found[k].writes}
    escaping = _escaping(program, found, fixed_only, made)
    if not escaping:
        return None, program
    fixed = _program_of(program, [s for k, s in enumerate(program.steps) if k in steps], escaping)
    rest = [s for k, s in enumerate(program.steps) if k not in fixed_only]
    return fixed, _remainder(program, needed_steps(tuple(rest), kept), escaping)


def _of_nothing(found: list[Accesses], steps: set[int]) -> set[int]:
    """Those of some steps that read nothing but results of each other: masks and tables of positions."""
    made: set[str] = set()
    kept = set()
    for k in sorted(steps):
        if set(found[k].reads) <= made:
            kept.add(k)
            made |= set(found[k].writes)
    return kept


def _bytes(program: LoopProgram, names: set[str]) -> int:
    """Bytes of some buffers, as far as they are known."""
    return sum(storage_bytes(b).value or 0 for b in program.buffers if b.name in names)


def is_repeatable(program: LoopProgram) -> bool:
    """Whether a program may run twice for once: it writes to nothing but its results, and draws no random numbers."""
    return not program.mutated and not any(
        ORDER in accesses(step).writes or (isinstance(step, ExternCall) and step.mutates)
        for step in program.steps
    )


def _cheap(step: Step, choices: Choices) -> bool:
    return isinstance(step, LoopNest) and not step.reductions and all(map(choices.recompute, roots(step)))


def _fixed_steps(program: LoopProgram, found: list[Accesses], kept: set[str], choices: Choices) -> set[int]:
    """Numbers of the steps to take out, within the budget of memory."""
    buffers = {b.name: b for b in program.buffers}
    writes: dict[str, int] = {}
    for a in found:
        for name in a.writes:
            writes[name] = writes.get(name, 0) + 1
    device = program.device  # looked for among all buffers
    constant = {
        b.name
        for b in program.buffers
        if b.kind is BufferKind.CONSTANT and b.name not in writes and b.device == device
    }
    numbers: set[int] = set()
    spent = 0
    for k, (step, a) in enumerate(zip(program.steps, found, strict=True)):
        if (
            step.device != device
            or not set(a.reads) <= constant
            or not _movable(step, a, kept, writes, buffers)
        ):
            continue
        size = sum(storage_bytes(buffers[name]).value or 0 for name in a.writes)
        read = sum(storage_bytes(buffers[name]).value or 0 for name in a.reads)
        # what is hardly larger than its weights (a cast, a fold, some padding) is as cheap to keep as a packed copy
        if size > read + read // 8:
            spent += size
            if spent > choices.fixed_bytes:
                break
        numbers.add(k)
        constant |= set(a.writes)
    return numbers


def _movable(
    step: Step, a: Accesses, kept: set[str], writes: dict[str, int], buffers: dict[str, Buffer]
) -> bool:
    """Whether a step only computes, into temporaries of its own, with known sizes."""
    if ORDER in a.writes or (isinstance(step, ExternCall) and (step.mutates or step.aliases or step.makes)):
        return False
    if any(name in kept or writes[name] > 1 or not _static(buffers[name]) for name in a.writes):
        return False
    if isinstance(step, ExternCall):
        return bool(a.reads) and all(e.is_constant for e in exprs_in((step.args, step.kwargs)))
    if isinstance(step, LoopNest):
        own = {axis.symbol for axis in (*step.axes, *step.reduce_axes)}
        extents = [axis.extent for axis in (*step.axes, *step.reduce_axes)]
        free = {s for e in (*index_exprs(step), *extents) for s in e.symbols()} - own
        return all(s.place is not None for s in free)
    return all(axis.extent.is_constant for axis in step.axes)


def _static(buffer: Buffer) -> bool:
    return all(e.is_constant for e in (*buffer.sizes, *buffer.strides)) and buffer.dtype.is_computable


def _escaping(
    program: LoopProgram, found: list[Accesses], numbers: set[int], made: set[str]
) -> tuple[str, ...]:
    """The fixed buffers that other steps read, in the program's order."""
    read = {name for k, a in enumerate(found) if k not in numbers for name in a.reads}
    return tuple(b.name for b in program.buffers if b.name in made and b.name in read)


def _program_of(program: LoopProgram, steps: list[Step], escaping: tuple[str, ...]) -> LoopProgram:
    """The fixed steps as a program of the constants they read."""
    steps = needed_steps(tuple(steps), set(escaping))
    touched = {name for s in steps for name in accesses(s).touched()}
    buffers = tuple(
        dataclasses.replace(b, kind=BufferKind.OUTPUT) if b.name in escaping else b
        for b in program.buffers
        if b.name in touched
    )
    inputs = tuple(b.name for b in buffers if b.kind is BufferKind.CONSTANT)
    views = tuple(b.whole() for b in buffers if b.name in escaping)
    return LoopProgram(f"{program.name}_fixed", buffers, tuple(steps), inputs, views, rounds=program.rounds)


def _remainder(program: LoopProgram, steps: list[Step], escaping: tuple[str, ...]) -> LoopProgram:
    """The other steps, with what they need of the fixed ones as constants."""
    steps = [
        dataclasses.replace(s, constant_b=True)
        if isinstance(s, TemplateCall) and all(v.buffer in escaping for v in s.args[1:])
        else s
        for s in steps
    ]
    buffers = tuple(
        dataclasses.replace(b, kind=BufferKind.CONSTANT) if b.name in escaping else b for b in program.buffers
    )
    return dataclasses.replace(
        program, buffers=buffers, steps=tuple(steps), inputs=(*program.inputs, *escaping)
    )
