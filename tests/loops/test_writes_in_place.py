"""Calls that write in place write buffers made for them: what lowering makes is so, and what breaks it is found."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from braze.aot import partition
from braze.loops.ir import BufferKind, ExternCall, LoopProgram
from braze.loops.verify import require_fresh_writes
from braze.lower.stage.program import lower
from braze.support.errors import InternalError
from tests.aot.recording import CONTEXT, record


def program() -> LoopProgram:
    """Two scatters into copies of one value, which is read besides."""

    def f(x, i):
        y = x * 2
        return y.index_add(0, i, x), y.index_add(0, i, y), y + 1

    gm, made, _ = record(f, [torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)])
    return lower(partition(gm, made, CONTEXT), CONTEXT)


def writers(p: LoopProgram) -> list[ExternCall]:
    return [s for s in p.steps if isinstance(s, ExternCall) and s.mutates]


def into(p: LoopProgram, step: ExternCall, buffer: str) -> LoopProgram:
    """The program with a call that writes another buffer than its own."""
    old = step.mutates[0]
    args = tuple(
        dataclasses.replace(a, buffer=buffer) if getattr(a, "buffer", "") == old else a for a in step.args
    )
    changed = dataclasses.replace(step, args=args, mutates=(buffer,))
    return dataclasses.replace(p, steps=tuple(changed if s is step else s for s in p.steps))


def fails(p: LoopProgram, match: str) -> None:
    with pytest.raises(InternalError, match=match) as found:
        require_fresh_writes(p)
    assert found.value.code == "BZ9006"


def test_what_lowering_makes_writes_fresh_buffers() -> None:
    p = program()
    assert len(writers(p)) == 2 and len({w.mutates for w in writers(p)}) == 2
    require_fresh_writes(p)


def test_a_write_to_what_was_read_before_is_found() -> None:
    """The copy before the call was dropped: the call would write its source."""
    p = program()
    source = next(b.name for b in p.buffers if b.kind is BufferKind.TEMPORARY and b.name not in
                  {n for w in writers(p) for n in w.mutates})  # fmt: skip
    fails(into(p, writers(p)[-1], source), "reads before")


def test_a_write_to_an_input_is_found() -> None:
    p = program()
    fails(into(p, writers(p)[0], p.inputs[0]), "writes to the input")


def test_two_calls_into_one_buffer_are_found() -> None:
    p = program()
    first, second = writers(p)
    fails(into(p, second, first.mutates[0]), "BZ9006")


def test_a_call_given_what_it_writes_is_found() -> None:
    p = program()
    step = writers(p)[0]
    own = next(a for a in step.args if getattr(a, "buffer", "") == step.mutates[0])
    again = dataclasses.replace(step, args=(*step.args[:-1], own))
    fails(dataclasses.replace(p, steps=tuple(again if s is step else s for s in p.steps)), "given twice")
