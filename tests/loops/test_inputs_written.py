"""Programs that write to their inputs: lowering's are in order, and what is out of order is found."""

from __future__ import annotations

import dataclasses

import torch

from braze.aot import partition
from braze.loops.inputs_written import broken_writes, names_of_inputs, touches
from braze.loops.ir import BufferView, LoopProgram
from braze.loops.verify import verify, writes_of
from braze.lower.stage.program import lower
from braze.symbolic.expr import ZERO
from tests.aot.recording import CONTEXT, record


def program() -> LoopProgram:
    """Reads of an input before, between and after two writes to it."""

    def f(x, y):
        before = x * 2
        x[0] = y[0]
        between = x + 1
        x[1:3] = y[1:3]
        return before, between, x - 1

    gm, made, _ = record(f, [torch.zeros(4, 3), torch.ones(4, 3)])
    return lower(partition(gm, made, CONTEXT), CONTEXT)


def wrong(p: LoopProgram) -> list[str]:
    return [why for _, why in broken_writes(p, touches(p))]


def test_what_lowering_makes_is_in_order() -> None:
    p = program()
    assert [len(names) for names in names_of_inputs(p).values()] == [3]
    assert not wrong(p)
    verify(p)


def test_each_change_of_place_between_a_read_and_a_write_is_found() -> None:
    """Steps that touch the input, two at a time the other way round: each such order is wrong."""
    p = program()
    for k in range(len(p.steps) - 1):
        steps = [*p.steps]
        steps[k], steps[k + 1] = steps[k + 1], steps[k]
        assert wrong(dataclasses.replace(p, steps=tuple(steps))), k


def test_a_write_that_is_missing_is_found() -> None:
    p = program()
    names = {name for name, _ in p.again}
    for step in p.steps:
        if names & set(writes_of(step)):
            assert wrong(dataclasses.replace(p, steps=tuple(s for s in p.steps if s is not step)))


def test_a_result_that_lies_in_the_input_is_found() -> None:
    p = program()
    b = p.buffer(p.again[0][0])
    window = BufferView(b.name, b.sizes, b.strides, ZERO, b.dtype)
    assert wrong(dataclasses.replace(p, outputs=(*p.outputs, window)))


def test_one_step_that_reads_an_input_and_writes_it_is_found() -> None:
    """A reader of what the input held, done by the step that writes the next contents."""
    p = program()
    ((before, *later),) = names_of_inputs(p).values()
    order = [*touches(p)]
    for k, (what, reads, writes) in enumerate(order):
        written = [name for name in later if name in writes]
        if written:
            read = before if written[0] == later[0] else later[0]
            joined = [*order[:k], (what, {*reads, read}, writes), *order[k + 1 :]]
            assert any("which it writes" in why for _, why in broken_writes(p, joined))
