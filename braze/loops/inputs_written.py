"""Inputs that a program writes: the rule that makes it sound, looked at for steps and again for kernels in their order.

Each write to an input has a name of its own for the input's memory (``LoopProgram.again``): reads of that name see the memory
as of that write, reads of an earlier name as it was before. All names are one piece of memory, so
a name must not be read or written once a later one has been written, and what writes one must read none. Nor may what a call has
made that shares the memory of a name, as a view that ATen takes does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from braze.loops.ir import BufferView, ExternCall, LoopNest, LoopProgram, Op, Step
from braze.loops.rewrite import roots, store_roots, walk
from braze.loops.verify import reads_of, writes_of

#: what touches memory: its name, what it reads, what it writes
Touch = tuple[str, Iterable[str], Iterable[str]]


def names_of_inputs(program: LoopProgram) -> dict[str, list[str]]:
    """Of each input that is written: its name, and its further names in the order of the writes."""
    found: dict[str, list[str]] = {}
    for name, root in program.again:
        found.setdefault(root, [root]).append(name)
    return found


def views_by_calls(program: LoopProgram, names: Iterable[str]) -> dict[str, str]:
    """What calls have made that may share the memory of one of some ``names``, with that name."""
    found = {name: name for name in names}
    for step in program.steps:
        if isinstance(step, ExternCall):
            shared = next((found[a] for a in step.aliases if a in found), None)
            if shared is not None:
                found.update(dict.fromkeys(filter(None, step.outputs), shared))
    return {view: name for view, name in found.items() if view != name}


def touches(program: LoopProgram) -> list[Touch]:
    """The steps, as what they read and write."""
    return [(step.name, reads_of(step), writes_of(step)) for step in program.steps]


def may_fail_by_data(step: Step) -> bool:
    """Whether a step looks up a place that may not exist, or calls what may refuse numbers.

    What is written straight into memory that is planned for it (a product, a convolution) takes any.
    """
    if isinstance(step, ExternCall):
        return not step.out_variant
    found = roots(step) if isinstance(step, LoopNest) else store_roots(step.epilogue)
    more = [] if isinstance(step, LoopNest) else [r for nest in step.prologue for r in roots(nest)]
    return any(node.op is Op.CHECK_INDEX for node in walk(*found, *more))


def broken_writes(program: LoopProgram, order: Sequence[Touch]) -> Iterator[tuple[str, str]]:
    """(input, what is wrong with the writes to it): none, if every reader sees what it is to see."""
    inputs = names_of_inputs(program)
    views = views_by_calls(program, [name for names in inputs.values() for name in names])
    for root, names in inputs.items():
        own = {name: k for k, name in enumerate(names)}
        place = own | {view: own[name] for view, name in views.items() if name in own}
        now = 0
        for what, reads, writes in order:
            written = [own[name] for name in writes if name in own]
            if len(set(written)) > 1 or any(k != now + 1 for k in written):
                yield root, f"{what} writes {root} out of turn"
            # a call that writes is given what it writes as an argument
            read = {place[name] for name in reads if name in place} - set(written)
            if any(k != now for k in read):
                yield root, f"{what} reads {root} as it is not at that time"
            elif read and written:
                yield root, f"{what} reads {root}, which it writes"
            now = max([now, *written])
        if now != len(names) - 1:
            yield root, f"a write to {root} is missing"
        if any(isinstance(o, BufferView) and o.buffer in place for o in program.outputs):
            yield root, f"a result is a window on {root}"
