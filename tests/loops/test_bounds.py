"""Accesses inside their buffers: what is proved holds at all sizes, what is checked holds where it is needed, nothing passes unseen."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.loops import build
from braze.loops.bounds import guarded, open_questions
from braze.loops.ir import (
    Axis,
    Buffer,
    BufferKind,
    BufferView,
    DType,
    ExternCall,
    LoopNest,
    LoopProgram,
    SizeSource,
    Store,
)
from braze.loops.verify import verify
from braze.support.errors import InternalError
from braze.symbolic.expr import ONE, ZERO, Expr, Symbol, as_expr, axis_symbol, indirect
from tests.loops.interpret import holds

N, M = Symbol("s0", 0), Symbol("s1", -4)


def program(
    read: Expr, axes: tuple[Axis, ...], size: Expr | int, *, store: Expr | None = None
) -> LoopProgram:
    """A loop that reads a row of ``size`` elements, and writes one as long as itself."""
    count, position = ONE, ZERO
    for axis in axes:
        position = position * axis.extent + axis.symbol
        count = count * axis.extent
    buffers = (
        Buffer("x", DType.F32, (as_expr(size),), (ONE,), "cpu", BufferKind.INPUT),
        Buffer("out", DType.F32, (count,), (ONE,), "cpu", BufferKind.OUTPUT),
    )
    store = position if store is None else store
    nest = LoopNest("n", axes, (), (), (Store("out", store, build.load("x", DType.F32, read)),), "cpu")
    outputs = (BufferView("out", (count,), (ONE,), ZERO, DType.F32),)
    sizes = (SizeSource(N, 0, 0), SizeSource(M, 1, -1))
    return LoopProgram("p", buffers, (nest,), ("x", ""), outputs, sizes=sizes)


def axis(name: str, extent: Expr | int) -> Axis:
    return Axis(axis_symbol(name, extent), as_expr(extent))


def is_inside(made: LoopProgram, read: Expr, env: dict[Symbol, int]) -> bool:
    """Whether every point of the loop reads an element that is there, by looking at each."""
    (nest,) = made.steps
    assert isinstance(nest, LoopNest)
    ranges = [range(max(a.extent.evaluate(env), 0)) for a in nest.axes]
    size = made.buffers[0].sizes[0].evaluate(env)
    symbols = [a.symbol for a in nest.axes]
    points = (dict(zip(symbols, point, strict=True)) for point in itertools.product(*ranges))
    return all(0 <= read.evaluate({**env, **point}) < size for point in points)


def drawn(data: st.DataObject, *symbols: Expr) -> Expr:
    """A sum of symbols with small factors."""
    total = as_expr(data.draw(st.integers(-2, 4)))
    for s in symbols:
        total = total + s * data.draw(st.integers(-2, 2))
    return total


@settings(max_examples=150)
@given(st.data())
def test_reads_are_inside_exactly_where_the_checks_hold(data: st.DataObject) -> None:
    """Of linear indices over loops whose lengths are sizes, negative ones among them."""
    axes = (axis("i0", drawn(data, N, M)), axis("i1", drawn(data, M)))[: data.draw(st.integers(1, 2))]
    read = drawn(data, *(a.symbol for a in axes), N, M)
    made = program(read, axes, drawn(data, N))
    checks = guarded(made).checks
    wrong = [q for a, q in open_questions(made) if isinstance(q, str) and a.buffer == "x"]
    reads = [q for a, q in open_questions(made) if not isinstance(q, str) and a.buffer == "x"]
    assert set(reads) <= set(checks)
    for n, m in itertools.product(range(5), range(-3, 5)):
        env = {N: n, M: m}
        passes = not wrong and all(holds(q.condition, env) for q in reads)
        assert passes == is_inside(made, read, env) or bool(wrong), (str(read), axes, env, reads)
        if wrong:
            assert not is_inside(made, read, env)


@settings(max_examples=150)
@given(st.data())
def test_rows_whose_strides_are_sums_of_sizes_pass_only_where_they_are_inside(data: st.DataObject) -> None:
    """Whether or not another loop runs along such rows, or along twice as many elements as a row has of one size."""
    i, j = axis("i0", drawn(data, N)), axis("i1", drawn(data, N, M))
    read = i.symbol * drawn(data, N, M) + j.symbol * data.draw(st.integers(0, 2))
    made = program(read, (i, j), drawn(data, N, N * M))
    open_ones = [q for a, q in open_questions(made) if a.buffer == "x"]
    checks = [q for q in open_ones if q is not None and not isinstance(q, str)]
    for n, m in itertools.product(range(4), range(-3, 4)):
        env = {N: n, M: m}
        if len(checks) == len(open_ones) and all(holds(q.condition, env) for q in checks):
            assert is_inside(made, read, env), (str(read), made, env)


@settings(max_examples=100)
@given(st.data())
def test_quotients_and_remainders_are_proved_or_looked_at(data: st.DataObject) -> None:
    """Of an index that is not linear nothing is checked that might be right; where sizes are known the verifier looks."""
    n = data.draw(st.integers(1, 12))
    i = axis("i0", n)
    k = data.draw(st.sampled_from([as_expr(2), as_expr(3), as_expr(5)]))
    read = (i.symbol // k) * data.draw(st.integers(-1, 2)) + (i.symbol % k) * data.draw(st.integers(0, 2))
    made = program(read, (i,), data.draw(st.integers(1, 12)))
    if is_inside(made, read, {}):
        verify(made)
    else:
        with pytest.raises(InternalError, match="BZ9002"):
            verify(made)


MUTATIONS = {
    "one further": lambda e, i: e + 1,
    "one before": lambda e, i: e - 1,
    "twice": lambda e, i: e * 2,
    "turned": lambda e, i: -e,
    "a size further": lambda e, i: e + N,
    "from the end": lambda e, i: e - M,
    "no bound": lambda e, i: e * i,
}


@pytest.mark.parametrize("how", MUTATIONS)
@pytest.mark.parametrize("which", ["load", "store"])
@pytest.mark.parametrize("size", [6, N + 2], ids=["known", "symbolic"])
def test_a_changed_index_is_noticed(how: str, which: str, size: Expr | int) -> None:
    """By the verifier, in the program as it was lowered; with checks put in, by a check at each call."""
    i = axis("i0", size)
    verify(guarded(program(i.symbol, (i,), size)))
    assert not guarded(program(i.symbol, (i,), size)).checks
    changed = MUTATIONS[how](i.symbol, i.symbol)
    made = program(
        changed if which == "load" else i.symbol, (i,), size, store=changed if which == "store" else None
    )
    with pytest.raises(InternalError) as caught:
        verify(made)
    assert "accesses_are_in_bounds" in caught.value.why
    wrong = any(isinstance(q, str) for _, q in open_questions(made))
    env = {N: 3, M: -2 if how != "from the end" else 1}
    assert wrong or not all(holds(c.condition, env) for c in guarded(made).checks)


def test_windows_that_calls_are_given_are_inside_too() -> None:
    x = Buffer("x", DType.F32, (N,), (ONE,), "cpu", BufferKind.INPUT)
    out = Buffer("out", DType.F32, (), (), "cpu", BufferKind.OUTPUT)

    def given_a_window(offset: Expr, size: Expr) -> LoopProgram:
        view = BufferView("x", (size,), (ONE,), offset, DType.F32)
        call = ExternCall("c", "aten.sum.default", (view,), (), ("out",))
        return LoopProgram("p", (x, out), (call,), ("x",), (BufferView("out", (), (), ZERO, DType.F32),))

    assert not guarded(given_a_window(ZERO, N)).checks
    (check,) = guarded(given_a_window(N - M, M)).checks
    assert holds(check.condition, {N: 5, M: 3}) and not holds(check.condition, {N: 5, M: 7})


def test_steps_of_half_of_what_half_of_a_size_leaves_are_bounded() -> None:
    """Columns 0, 2, ... of the right half of a matrix: rows as long as there are such columns."""
    columns = (N + 1 - (N + 1) // 2) // 2
    rows, along = axis("i0", M), axis("i1", columns)
    made = program(rows.symbol * columns + along.symbol, (rows, along), M * columns)
    assert [q for a, q in open_questions(made) if a.buffer == "x"] == []


@pytest.mark.parametrize("width", [as_expr(2), (M + 4) // 2 + 2, (N - M) // 3 + 1])
def test_strides_are_counted_in_rows_whose_length_is_a_difference_of_sizes(width: Expr) -> None:
    """As of a convolution whose weight is as large as a picture: rows of no length would have no points to ask of."""
    height, channels = (N - M) // 2 + 2, Symbol("s2", 0)
    planes = axis("i0", N), axis("i1", channels), axis("i2", height), axis("i3", width)
    at, size = ZERO, ONE
    for each in reversed(planes):
        at, size = at + each.symbol * size, size * each.extent
    assert [q for a, q in open_questions(program(at, planes, size)) if a.buffer == "x"] == []


HALF = (N - M) // 2


@pytest.mark.parametrize("dims", [
    (ONE, HALF), (M, HALF), (HALF, HALF), (ONE, HALF, M, HALF), (N - M, N - M, N - M), (N, HALF + 1, HALF + 1),
])  # fmt: skip
def test_rows_of_a_length_of_unknown_sign_are_bounded(dims: tuple[Expr, ...]) -> None:
    """As what a slice leaves, or half of that: without a row's elements there is no point, and one row has no stride."""
    axes = tuple(axis(f"i{k}", each) for k, each in enumerate(dims))
    at, size = ZERO, ONE
    for each in reversed(axes):
        at, size = at + each.symbol * size, size * each.extent
    inside = [q for a, q in open_questions(program(at, axes, size)) if a.buffer == "x"]
    assert not any(isinstance(q, str) for q in inside)
    behind = program(at + size, axes, size)
    env = {N: 5, M: 1}
    assert not is_inside(behind, at + size, env)
    assert [q for a, q in open_questions(behind) if a.buffer == "x"]


def test_a_stride_of_unknown_sign_has_no_bounds() -> None:
    """Of which no loop says that there are as many rows."""
    along = axis("i0", N)
    made = program(along.symbol * ((N - M) // 2 + 2), (along,), N)
    assert any("has no bounds" in str(q) for a, q in open_questions(made) if a.buffer == "x")


def test_a_place_that_the_data_tell_may_be_any_of_its_range() -> None:
    """Bounds of it that leave the buffer say nothing of a run; with one bound alone nothing is known."""
    (i,) = (axis("i0", 5),)

    def asked(place: Symbol) -> list[object]:
        return [q for a, q in open_questions(program(place, (i,), 4)) if a.buffer == "x"]

    assert asked(indirect(0, limit=as_expr(4))) == asked(indirect(0, 0, 3)) == []
    assert (
        asked(indirect(0, limit=as_expr(8))) == asked(indirect(0, 0, 7)) == asked(indirect(0, 4, 5)) == [None]
    )
    for place in (indirect(0), indirect(0, 0), indirect(0, None, 3)):
        (question,) = asked(place)
        assert "has no bounds" in str(question)
