"""The proof of a memory plan: it holds of every plan made, and fails on every plan broken on purpose."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.loops.ir import DType, ExternCall, LoopProgram, Op
from braze.schedule.facts.records import MemoryPlan, Schedule
from braze.schedule.memory.proof import lives_of, prove_memory
from braze.schedule.stage import scheduler
from braze.support.errors import InternalError
from braze.support.trace import COUNTERS
from braze.symbolic.expr import ZERO, Integer
from tests.helpers import logged
from tests.schedule.programs import Builder, at, axes, call, context, elementwise, load, reversed_, scheduled
from tests.schedule.test_random_programs import programs


def chain(*, same: bool) -> Schedule:
    """x -> p -> q -> r -> out; q is read off p at the same places, or at others."""
    exponential = lambda i: call(Op.EXP, load("p", i) if same else reversed_("p")(i))
    program = elementwise(p=reversed_("x"), q=exponential, r=reversed_("q"), out=reversed_("r"))
    return scheduled(program, fusion=False)


def fails(s: Schedule, plan: MemoryPlan, match: str) -> None:
    with pytest.raises(InternalError, match=match) as found:
        prove_memory(s.program, s.groups, plan)
    assert found.value.code == "BZ9041"


def with_slot(plan: MemoryPlan, name: str, **changes: object) -> MemoryPlan:
    slots = [dataclasses.replace(s, **changes) if s.buffer == name else s for s in plan.slots]
    return dataclasses.replace(plan, slots=tuple(slots))


def test_plans_that_use_memory_again_are_proved() -> None:
    for same in (True, False):
        s = chain(same=same)
        assert len({slot.offset for slot in s.memory.slots}) < len(s.memory.slots)
        prove_memory(s.program, s.groups, s.memory)


def test_a_buffer_used_too_early_is_found() -> None:
    s = chain(same=False)
    place = {slot.buffer: slot.offset for slot in s.memory.slots}
    fails(s, with_slot(s.memory, "q", offset=place["p"]), "overlap while both are in use")


def test_a_buffer_partly_over_another_is_found() -> None:
    s = chain(same=False)
    wide = dataclasses.replace(s.memory, arena_bytes=Integer(4096))
    place = {slot.buffer: slot.offset.value for slot in s.memory.slots}
    fails(s, with_slot(wide, "q", offset=Integer(place["p"] + 64)), "overlap")


def test_a_buffer_out_of_the_arena_is_found() -> None:
    s = chain(same=False)
    fails(s, with_slot(s.memory, "r", offset=s.memory.arena_bytes), "out of the arena")


def test_a_slot_given_back_too_early_is_found() -> None:
    """By whoever plans the places from lives alone, as the host does for symbolic sizes."""
    s = chain(same=False)
    (slot,) = (x for x in s.memory.slots if x.buffer == "p")
    fails(s, with_slot(s.memory, "p", stop=slot.start), "is used in groups")
    fails(s, with_slot(s.memory, "r", start=slot.stop + 2), "is used in groups")


def test_writing_over_an_operand_read_elsewhere_is_found() -> None:
    s = chain(same=False)
    fails(s, dataclasses.replace(s.memory, reuse=(("q", "p"),)), "at other places than it is read at")


def test_writing_over_what_is_read_later_is_found() -> None:
    program = elementwise(
        p=reversed_("x"),
        q=lambda i: call(Op.EXP, load("p", i)),
        out=lambda i: call(Op.ADD, reversed_("q")(i), reversed_("p")(i)),
    )
    s = scheduled(program, fusion=False)
    assert not s.memory.reuse
    fails(s, dataclasses.replace(s.memory, reuse=(("q", "p"),)), "which is used until group")


def test_writing_from_several_points_over_an_operand_is_found() -> None:
    b = Builder()
    b.input("x", 16)
    over = axes("i", 4, 4)
    i, j = (a.symbol for a in over)
    one = axes("k", 16)
    b.point("p", one, load("x", 15 - one[0].symbol))
    b.buffer("q", (16,))
    b.point("q", over, load("p", i + j), index=i + j)
    b.point("out", one, load("q", 15 - one[0].symbol))
    s = scheduled(b.program("out"), fusion=False)
    assert not s.memory.reuse
    fails(s, dataclasses.replace(s.memory, reuse=(("q", "p"),)), "by several points")


def one_over_another(outputs: tuple[str, ...] = ("out",)) -> tuple[Schedule, MemoryPlan]:
    """x -> p -> q -> out, where q may be written over p, outside the arena."""
    b = Builder()
    b.input("x", 16)
    over = axes("i", 16)
    i = over[0].symbol
    b.point("p", over, load("x", 15 - i))
    b.point("q", over, call(Op.EXP, load("p", i)))
    b.point("out", over, load("q", 15 - i))
    s = scheduled(b.program(*outputs), fusion=False)
    plan = MemoryPlan((), ZERO, (), (("q", "p"),))
    return s, plan


def with_step(s: Schedule, **changes: object) -> Schedule:
    """The step that makes q, changed."""
    groups = []
    for g in s.groups:
        if "q" in g.writes:
            g = dataclasses.replace(g, steps=(dataclasses.replace(g.steps[0], **changes),))
        groups.append(g)
    return dataclasses.replace(s, groups=tuple(groups))


def test_writing_over_what_the_caller_gets_is_found() -> None:
    s, plan = one_over_another()
    prove_memory(s.program, s.groups, plan)
    s, plan = one_over_another(("out", "p"))
    fails(s, plan, "which is returned")


def test_writing_over_what_the_same_kernel_writes_or_reads_back_is_found() -> None:
    s, plan = one_over_another()
    (step,) = next(g for g in s.groups if "q" in g.writes).steps
    (store,) = step.stores
    again = dataclasses.replace(store, buffer="p")
    fails(with_step(s, stores=(store, again)), plan, "at other places")
    back = dataclasses.replace(store, value=call(Op.ADD, store.value, load("q", store.index)))
    fails(with_step(s, stores=(back,)), plan, "at other places")


def test_writing_over_elements_of_another_size_is_found() -> None:
    s, plan = one_over_another()
    buffers = tuple(
        dataclasses.replace(b, dtype=DType.F64) if b.name == "p" else b for b in s.program.buffers
    )
    other = dataclasses.replace(s, program=dataclasses.replace(s.program, buffers=buffers))
    fails(other, plan, "another size")


def test_a_buffer_only_partly_over_the_one_it_is_written_over_is_found() -> None:
    s = chain(same=True)
    assert ("q", "p") in s.memory.reuse
    place = {slot.buffer: slot.offset.value for slot in s.memory.slots}
    wide = dataclasses.replace(s.memory, arena_bytes=Integer(4096))
    fails(s, with_slot(wide, "q", offset=Integer(place["p"] + 64)), "only partly over p")


def test_writing_over_what_another_kernel_has_read_is_found() -> None:
    """Memory that died before is a matter of slots, not of writing over."""
    s, _ = one_over_another()
    fails(s, MemoryPlan((), ZERO, (), (("out", "p"),)), "which is used until group")


def test_a_buffer_before_the_arena_or_under_the_next_is_found() -> None:
    s = chain(same=False)
    fails(s, with_slot(s.memory, "p", offset=Integer(-64)), "out of the arena")
    places = {slot.buffer: slot for slot in s.memory.slots}
    p, q = places["p"], places["q"]
    apart = dataclasses.replace(s.memory, arena_bytes=Integer(4096))
    for low, high in (("p", "q"), ("q", "p")):
        plan = with_slot(with_slot(apart, low, offset=Integer(1024)), high, offset=Integer(1088))
        assert p.bytes.value == q.bytes.value
        wide = with_slot(plan, low, bytes=Integer(128))
        fails(s, wide, "overlap while both are in use")


def test_new_contents_that_lie_otherwise_than_their_input_are_found() -> None:
    """An input that is renewed gets no copy: a result that is turned, or begins elsewhere, is none of its contents."""
    b = Builder()
    b.input("x", 4, 4)
    over = axes("i", 4, 4)
    place = at(over, (4, 1))
    b.point("out", over, call(Op.EXP, load("x", place)), place)
    program = dataclasses.replace(b.program("out"), renewed=((0, "x"),))
    s = scheduled(program)
    assert s.memory.renewed == (("out", "x"),)
    prove_memory(s.program, s.groups, s.memory)
    (view,) = program.outputs
    for changes in ({"strides": view.strides[::-1]}, {"offset": Integer(1)}):
        turned = dataclasses.replace(program, outputs=(dataclasses.replace(view, **changes),))
        assert not scheduled(turned).memory.renewed
        fails(dataclasses.replace(s, program=turned), s.memory, "whose elements have other places")


def test_the_caller_gets_nothing_from_the_arena() -> None:
    s, _ = one_over_another(("out", "p"))
    slot = chain(same=False).memory.slots[0]
    fails(s, MemoryPlan((dataclasses.replace(slot, buffer="p"),), Integer(64)), "which the caller has")


def test_what_the_caller_gets_is_not_in_the_arena() -> None:
    s = chain(same=False)
    slot = dataclasses.replace(s.memory.slots[0], buffer="out")
    fails(s, dataclasses.replace(s.memory, slots=(*s.memory.slots, slot)), "which the caller has")


def test_what_may_be_a_view_keeps_what_it_views() -> None:
    """A call that may give back a part of its argument: the argument is alive as long as the result."""
    s = chain(same=False)
    aliasing = ExternCall("view", "aten.alias.default", (), (), ("q",), aliases=("p",))
    groups = tuple(dataclasses.replace(g, call=aliasing) if "q" in g.writes else g for g in s.groups)
    assert lives_of(groups)["p"][1] == lives_of(groups)["q"][1] > lives_of(s.groups)["p"][1]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(programs(), st.integers(0, 2**16))
def test_plans_of_random_programs_are_proved_and_their_ruins_are_not(program: LoopProgram, seed: int) -> None:
    """Two slots in use at the same time, laid over each other, are always found."""
    s = scheduled(program)
    prove_memory(s.program, s.groups, s.memory)
    lives = lives_of(s.groups)
    reuse = {*s.memory.reuse, *((b, a) for a, b in s.memory.reuse)}
    pairs = [
        (a, b)
        for k, a in enumerate(s.memory.slots)
        for b in s.memory.slots[k + 1 :]
        if (a.buffer, b.buffer) not in reuse
        and a.bytes.value
        and b.bytes.value
        and lives[a.buffer][0] <= lives[b.buffer][1]
        and lives[b.buffer][0] <= lives[a.buffer][1]
    ]
    if pairs:
        a, b = random.Random(seed).choice(pairs)
        with pytest.raises(InternalError, match="BZ9041"):
            prove_memory(s.program, s.groups, with_slot(s.memory, b.buffer, offset=a.offset))


@pytest.mark.provokes("BZ9041")
def test_a_plan_that_is_disproved_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value has memory of its own then, and braze says so; under verify it is an error."""
    program = elementwise(p=reversed_("x"), q=reversed_("p"), out=reversed_("q"))
    whole = scheduler.plan_memory

    def broken(*args: object, **kwargs: object) -> MemoryPlan:
        plan = whole(*args, **kwargs)
        return dataclasses.replace(plan, slots=tuple(dataclasses.replace(s, offset=ZERO) for s in plan.slots))

    monkeypatch.setattr(scheduler, "plan_memory", broken)
    ctx = context(fusion=False)
    with pytest.raises(InternalError, match="BZ9041"):
        scheduler.schedule(program, ctx)
    before = COUNTERS["memory_plans_disproved"]
    with logged() as said:
        lax = dataclasses.replace(ctx, options=dataclasses.replace(ctx.options, verify=0))
        plan = scheduler.schedule(program, lax).memory
    assert plan.slots == () and COUNTERS["memory_plans_disproved"] == before + 1
    assert any("BZ9041" in m for m in said)
