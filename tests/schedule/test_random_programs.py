"""Random programs: the fused schedule computes what the steps one by one compute."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from braze.loops.ir import LoopProgram, Node, Op, ReduceKind
from braze.loops.rewrite import rewrite
from braze.schedule.facts.printer import print_schedule
from braze.schedule.facts.records import GroupKind, Schedule
from braze.schedule.stage.verify import verify_schedule
from braze.support.errors import InternalError
from tests.schedule.programs import Builder, as_program, at, axes, call, load, run, scheduled, strides

SHAPE = (3, 4, 6)
FULL = 72
#: ways to cut the same 72 elements into axes
CUTS = [(3, 4, 6), (12, 6), (3, 24), (72,), (3, 4, 2, 3), (6, 12)]
OPS = [Op.ADD, Op.MUL, Op.MAXIMUM, Op.SUB]


@st.composite
def programs(draw: st.DrawFn) -> LoopProgram:
    b = Builder()
    full = [b.input("a", *SHAPE), b.input("b", *SHAPE)]
    weights = b.input("w", 6, 6)
    rows = [b.input("row", 12)]  # one per (3, 4)
    columns = [b.input("column", 6)]
    count = draw(st.integers(2, 9))
    for k in range(count):
        kind = draw(
            st.sampled_from(
                ["point", "point", "row", "column", "reduce", "reduce", "spread", "turn", "inplace", "gemm"]
            )
        )
        x, y = draw(st.sampled_from(full)), draw(st.sampled_from(full))
        op = draw(st.sampled_from(OPS))
        if kind == "point":
            over = axes("i", *draw(st.sampled_from(CUTS)))
            index = at(over, strides([a.extent for a in over]))
            full.append(b.point(f"t{k}", over, call(op, load(x, index), load(y, index))))
        elif kind == "row":
            over = axes("i", *draw(st.sampled_from([(12,), (3, 4)])))
            index = at(over, strides([a.extent for a in over]))
            value = call(
                op, load(draw(st.sampled_from(rows)), index), load(draw(st.sampled_from(rows)), index)
            )
            if draw(st.booleans()):
                value = call(Op.TANH, value)  # too costly to compute again
            rows.append(b.point(f"t{k}", over, value))
        elif kind == "reduce":
            over, row = axes("i", *draw(st.sampled_from([(12,), (3, 4)]))), axes("r", 6)
            base = at(over, [s * 6 for s in strides([a.extent for a in over])])
            value = call(op, load(x, base + row[0].symbol), load(y, base + row[0].symbol))
            if draw(st.booleans()):
                value = call(
                    Op.SUB,
                    value,
                    load(draw(st.sampled_from(rows)), at(over, strides([a.extent for a in over]))),
                )
            rows.append(
                b.reduce(f"t{k}", over, row, draw(st.sampled_from([ReduceKind.SUM, ReduceKind.MAX])), value)
            )
        elif kind == "column":
            over, row = axes("i", 6), axes("r", *draw(st.sampled_from([(12,), (3, 4)])))
            index = at(row, [s * 6 for s in strides([a.extent for a in row])]) + over[0].symbol
            columns.append(b.reduce(f"t{k}", over, row, ReduceKind.MAX, load(x, index)))
        elif kind == "spread":
            over = axes("i", 12, 6)
            index = at(over, (6, 1))
            small = draw(st.sampled_from([*rows, *columns]))
            other = over[0].symbol if small in rows else over[1].symbol
            full.append(b.point(f"t{k}", over, call(op, load(x, index), load(small, other))))
        elif kind == "turn":
            # a transposed read of the middle and last dimension
            over = axes("i", 3, 6, 4)
            turned = at(over, (24, 1, 6))
            value = call(op, load(x, turned), load(y, turned))
            if draw(st.booleans()):
                full.append(
                    b.point(f"t{k}", over, value, turned)
                    if f"t{k}" in b.buffers
                    else b.point(b.buffer(f"t{k}", SHAPE), over, value, turned)
                )
            else:
                full.append(b.point(f"t{k}", over, value))
        elif kind == "gemm":
            full.append(b.gemm(f"t{k}", x, weights, 12, 6, 6))
        else:
            over = axes("i", *draw(st.sampled_from(CUTS)))
            index = at(over, strides([a.extent for a in over]))
            b.point("a", over, call(Op.ADD, load("a", index), load(y, index)))
    made = [n for n in b.buffers if n.startswith("t")]
    chosen = draw(st.sets(st.sampled_from(made), min_size=1)) if made else {"a"}
    return b.program(*sorted(chosen))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_fused_schedule_computes_the_same(program: LoopProgram) -> None:
    """Bit for bit: fusion only moves and repeats computations (sums of rows keep their order)."""
    fused = scheduled(program)
    note(print_schedule(dataclasses.replace(fused, groups=scheduled(program, fusion=False).groups)))
    note(print_schedule(fused))
    for expected, found in zip(run(program), run(as_program(fused)), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_no_more_groups_than_steps(program: LoopProgram) -> None:
    """Fusion never adds kernels, and one without fusion has one group a step that is needed."""
    fused, plain = scheduled(program), scheduled(program, fusion=False)
    assert len(fused.groups) <= len(plain.groups) <= len(program.steps)
    for group in fused.groups:
        assert (group.kind is GroupKind.POINTWISE) == (
            bool(group.steps) and not group.row_axes and not any(s.reductions for s in group.steps)
        )


@st.composite
def broken(draw: st.DrawFn) -> tuple[LoopProgram, Schedule]:
    """A program, and its schedule with two groups or two steps exchanged, or a load moved within its kernel."""
    program = draw(programs().filter(lambda p: sum(step.name == "s_a" for step in p.steps) < 2))
    plan = scheduled(program)
    groups = list(plan.groups)
    how = draw(st.sampled_from(["groups", "steps", "load"]))
    if how == "groups":
        i, j = draw(st.integers(0, len(groups) - 1)), draw(st.integers(0, len(groups) - 1))
        groups[i], groups[j] = groups[j], groups[i]
        return program, dataclasses.replace(plan, groups=tuple(groups))
    k = draw(st.integers(0, len(groups) - 1))
    steps = list(groups[k].steps)
    if steps and how == "steps":
        i, j = draw(st.integers(0, len(steps) - 1)), draw(st.integers(0, len(steps) - 1))
        steps[i], steps[j] = steps[j], steps[i]
    elif steps:
        own = {s.buffer for step in steps for s in step.stores}

        def moved(node: Node) -> Node:
            if node.op is not Op.LOAD or node.attr[0] not in own:
                return node
            # within the buffer, so that it can be run
            return Node(node.op, node.dtype, (), (node.attr[0], (node.attr[1] + 1) % 6))

        i = draw(st.integers(0, len(steps) - 1))
        stores = tuple(dataclasses.replace(s, value=rewrite(s.value, moved, {})) for s in steps[i].stores)
        reductions = tuple(
            dataclasses.replace(r, value=rewrite(r.value, moved, {})) for r in steps[i].reductions
        )
        steps[i] = dataclasses.replace(steps[i], stores=stores, reductions=reductions)
    groups[k] = dataclasses.replace(groups[k], steps=tuple(steps))
    return program, dataclasses.replace(plan, groups=tuple(groups))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(broken())
def test_what_passes_the_verifier_computes_the_same(made: tuple[LoopProgram, Schedule]) -> None:
    """Of schedules with an error planted in their order or in an index."""
    program, plan = made
    try:
        verify_schedule(plan)
    except InternalError:
        return
    for expected, found in zip(run(program), run(as_program(plan)), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
