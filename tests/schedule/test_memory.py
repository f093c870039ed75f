"""The arena plan: no two live buffers overlap, and the peak is not above eager's."""

from __future__ import annotations

import dataclasses
import itertools
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braze import pipeline
from braze.loops.ir import Buffer, BufferKind, DType, ExternCall, LoopProgram, Op
from braze.runtime.memory.placement import ALIGNMENT, Layouts, best_fit, largest_first
from braze.schedule.memory.memory import LARGE_ON_GPU, Life, _pack_symbolic, inputs_that_may_go, storage_bytes
from braze.schedule.stage import verify
from braze.schedule.stage.verify import check_memory
from braze.support.errors import InternalError
from braze.symbolic.expr import Integer, Symbol
from tests.aot.cuda_fakes import CTX, partition_on_gpu
from tests.schedule.programs import Builder, call, elementwise, load, reversed_, scheduled
from tests.schedule.test_random_programs import programs


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    found = []
    for k in range(draw(st.integers(1, 25))):
        start = draw(st.integers(0, 20))
        stop = start + draw(st.integers(0, 8))
        found.append(Life(f"b{k}", start, stop, Integer(draw(st.integers(0, 2000)))))
    return sorted(found, key=lambda x: (x.start, x.buffer))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=4), st.sampled_from(list(DType)))
def test_storage_reaches_to_the_last_element(axes: list[tuple[int, int]], dtype: DType) -> None:
    """The same for numbers as for symbols of which the numbers are known later."""
    sizes, strides = tuple(s for s, _ in axes), tuple(s for _, s in axes)
    names = tuple(Symbol(f"s{k}", 1) for k in range(len(axes)))
    steps = tuple(map(Integer, strides))
    known, asked = (
        storage_bytes(Buffer("b", dtype, each, steps, "cpu", BufferKind.TEMPORARY))
        for each in (tuple(map(Integer, sizes)), names)
    )
    last = max(
        (sum(map(operator.mul, at, strides)) for at in itertools.product(*map(range, sizes))), default=-1
    )
    assert known.value == (last + 1) * dtype.itemsize
    assert 0 in sizes or asked.evaluate(dict(zip(names, sizes, strict=True))) == known.value


def overlap(a: Life, b: Life) -> bool:
    return a.start <= b.stop and b.start <= a.stop


@settings(max_examples=200, deadline=None)
@given(lives(), st.sampled_from([best_fit, largest_first]))
def test_live_slots_are_disjoint_and_aligned(found: list[Life], rule: object) -> None:
    """Both placement rules keep live buffers apart, inside the arena, on 64-byte lines."""
    placed, total = rule([(x.start, x.stop, x.bytes.value) for x in found])  # type: ignore[operator]
    offsets = dict(zip((x.buffer for x in found), placed, strict=True))
    for k, a in enumerate(found):
        assert offsets[a.buffer] % ALIGNMENT == 0
        assert offsets[a.buffer] + a.bytes.value <= total
        for b in found[k + 1 :]:
            if overlap(a, b) and a.bytes.value and b.bytes.value:
                first, second = sorted((a, b), key=lambda x: offsets[x.buffer])
                assert offsets[first.buffer] + first.bytes.value <= offsets[second.buffer]


@settings(max_examples=100, deadline=None)
@given(lives(), st.integers(1, 50))
def test_symbolic_slots_are_disjoint_for_every_size(found: list[Life], n: int) -> None:
    """Sizes in terms of n: the offsets evaluated at any n keep live buffers apart."""
    symbol = Symbol("n", 1, None)
    symbolic = [dataclasses.replace(x, bytes=symbol * (x.bytes.value or 0)) for x in found]
    offsets, total = _pack_symbolic(symbolic)
    env = {symbol: n}
    places = {x.buffer: (offsets[x.buffer].evaluate(env), x.bytes.evaluate(env)) for x in symbolic}
    for k, a in enumerate(symbolic):
        assert sum(places[a.buffer]) <= total.evaluate(env)
        for b in symbolic[k + 1 :]:
            (p, m), (q, size) = places[a.buffer], places[b.buffer]
            assert not overlap(a, b) or not m or not size or p + m <= q or q + size <= p


@settings(max_examples=100, deadline=None)
@given(programs())
def test_peak_is_not_above_eager(program: LoopProgram) -> None:
    """The arena is no larger than what running the steps one by one, freeing early, would hold (rounded up)."""
    plan = scheduled(program)
    eager = scheduled(program, fusion=False)
    padding = ALIGNMENT * len(program.buffers)
    assert plan.memory.arena_bytes.value <= eager_peak(eager) + padding


def eager_peak(plan: object) -> int:
    """Bytes alive at once when each step's results are allocated before it and freed after their last use."""
    last: dict[str, int] = {}
    groups = plan.groups  # type: ignore[attr-defined]
    for k, g in enumerate(groups):
        for name in (*g.reads, *g.writes):
            last[name] = k
    sizes = {s.buffer: s.bytes.value for s in plan.memory.slots}  # type: ignore[attr-defined]
    alive: set[str] = set()
    peak = 0
    for k, g in enumerate(groups):
        alive |= {n for n in g.writes if n in sizes}
        peak = max(peak, sum(sizes[n] for n in alive))
        alive = {n for n in alive if last[n] > k}
    return peak


def chain() -> LoopProgram:
    """Pointwise kernels kept apart by reversed reads."""
    return elementwise(p=reversed_("x"), q=reversed_("p"), r=reversed_("q"), out=reversed_("r"))


def test_dead_buffers_are_used_again() -> None:
    """A chain of kernels needs two slots, not three."""
    assert scheduled(chain()).memory.arena_bytes.value == 2 * 256


def test_pointwise_result_takes_its_operands_place() -> None:
    """A kernel whose operand dies at the same index writes over it."""
    program = elementwise(p=reversed_("x"), q=lambda i: call(Op.EXP, load("p", i)), out=reversed_("q"))
    plan = scheduled(program, fusion=False)
    assert plan.memory.reuse == (("q", "p"),)
    assert plan.memory.arena_bytes.value == 256


def test_reader_at_other_points_is_not_overwritten() -> None:
    """An operand read elsewhere than at the written element keeps its place."""
    plan = scheduled(chain(), fusion=False)
    assert plan.memory.reuse == ()


def test_verifier_finds_an_overlap() -> None:
    """Two live buffers put at one offset are reported."""
    plan = scheduled(chain())
    broken = dataclasses.replace(
        plan.memory, slots=tuple(dataclasses.replace(s, offset=Integer(0)) for s in plan.memory.slots)
    )
    with pytest.raises(InternalError, match="overlap"):
        check_memory(plan.groups, broken)


def test_slots_are_not_compared_at_sizes_that_divide_by_zero() -> None:
    """A view of rows of four has sizes that are divided by a quarter of the elements: of three elements that is nothing."""
    n = Symbol("n", 1)
    bytes_ = 4 * (n * n // (n // 4)) * n
    assert verify._disjoint(Integer(0), bytes_, 2 * bytes_, bytes_)
    assert not verify._disjoint(Integer(0), 2 * bytes_, bytes_, bytes_)


def test_layout_is_planned_once_per_sizes() -> None:
    """A graph with symbolic sizes plans its arena when it sees numbers, tightly, and remembers."""
    layouts = Layouts([(0, 1), (1, 2), (2, 3)], lambda n, k: (4 * n * k, 4 * n, 4 * n * k))
    small = layouts(2, 8)
    assert layouts(2, 8) is small
    assert small.bytes == 128
    assert small.sizes == (2, 8, *small.offsets)
    large = layouts(100, 64)
    assert large.bytes == 25600 + 448
    assert large.offsets[0] == large.offsets[2]


def test_halves_of_a_training_step_on_a_gpu_keep_small_temporaries_alone():
    """Large ones come from PyTorch's allocator when they are written and go after their last use, in inference they stay."""

    def f(x, w):
        y = torch.softmax(x @ w, 1)
        return ((y - y.mean(0)).exp() @ w).sum(1)

    inputs = [torch.randn(1024, 1024, dtype=torch.bfloat16) for _ in range(2)]
    partition = partition_on_gpu(f, inputs)
    slots, texts = [], []
    for ctx in (CTX, pipeline.of_forward(CTX)):
        plan = pipeline.schedule_program(pipeline.lower_graph(partition, ctx), ctx)
        slots.append([slot.bytes.value for slot in plan.memory.slots])
        texts.append(pipeline.generate_code(plan, ctx).source)
    assert max(slots[0]) >= LARGE_ON_GPU > max(slots[1])
    assert "(1024, 1024)" not in texts[0].partition("def call")[2]
    assert "take(" in texts[1] and "runtime.arena" not in texts[1]
    assert texts[1].count("empty_strided((1024, 1024)") >= 1 and "del buf" in texts[1]


def test_an_input_of_which_a_call_has_made_the_callers_view_does_not_go() -> None:
    """Also where the view is one of a view; what calls make that is not returned keeps nothing."""
    b = Builder()
    for name in ("seen", "read", "plain"):
        b.input(name, 8)
    for name in ("first", "second", "other"):
        b.buffer(name, (8,))
    for made, of in (("first", "seen"), ("second", "first"), ("other", "read")):
        view = b.buffers[of].whole()
        b.steps.append(ExternCall(f"s_{made}", "aten.view.dtype", (view,), (), (made,), aliases=(of,)))
    assert inputs_that_may_go(b.program("second")) == {"read", "plain"}
