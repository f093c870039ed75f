"""Node constructors simplify only what is the same bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.loops import build
from braze.loops.dtypes import compute_type, from_torch, integer_range, round_float, wrap_integer
from braze.loops.ir import DType, Node, Op
from braze.support.errors import Unsupported
from braze.symbolic.expr import ZERO, Expr, Symbol, axis_symbol, floor_div, maximum, minimum, modulo
from tests.loops.interpret import NUMPY, apply, from_storage, to_storage

X = build.load("x", DType.F32, axis_symbol("i", 8))
N = build.load("n", DType.I32, axis_symbol("i", 8))
B = build.load("b", DType.BOOL, axis_symbol("i", 8))
INTEGERS = [DType.U8, DType.I8, DType.I16, DType.I32, DType.I64]


def f(value: float) -> Node:
    return build.const(value, DType.F32)


def test_neutral_operands_go() -> None:
    assert build.mul(X, f(1.0)) is X
    assert build.div(X, f(1.0)) is X
    assert build.sub(X, f(0.0)) is X
    assert build.add(X, f(-0.0)) is X
    assert build.add(N, build.const(0, DType.I32)) is N
    assert build.mul(N, build.const(0, DType.I32)).attr == 0


def test_operands_that_matter_stay() -> None:
    """x + 0.0 turns -0.0 into 0.0, x * 0.0 keeps nan and signs, x - (-0.0) is x + 0.0."""
    assert build.add(X, f(0.0)).op is Op.ADD
    assert build.mul(X, f(0.0)).op is Op.MUL
    assert build.sub(X, f(-0.0)).op is Op.SUB
    assert build.sub(X, X).op is Op.SUB
    assert build.binary(Op.EQ, X, X).op is Op.EQ


def test_choices_that_are_decided() -> None:
    yes = build.const(True, DType.BOOL)
    assert build.where(yes, X, f(0.0)) is X
    assert build.where(B, X, X) is X
    assert build.where(build.invert(B), X, f(2.0)) is build.where(B, f(2.0), X)
    assert build.masked(build.invert(yes), X, f(0.0)) is f(0.0)
    assert build.both(B, yes) is B
    assert build.either(B, yes) is yes


def test_twice_the_other_way_is_as_it_was() -> None:
    assert build.invert(build.invert(B)) is B
    assert build.invert(build.invert(N)) is N
    assert build.invert(build.const(5, DType.I32)) is build.const(-6, DType.I32)


def test_numbers_are_computed_where_that_is_exact_enough() -> None:
    """Not divided by zero, whose sign decides, and no numbers of half types, which are rounded twice."""
    assert build.binary(Op.DIV, f(1.0), f(4.0)) is f(0.25)
    assert build.binary(Op.DIV, f(1.0), f(0.0)).op is Op.DIV
    half = [build.const(v, DType.BF16) for v in (1.0, 3.0)]
    assert build.binary(Op.DIV, *half).op is Op.DIV
    assert build.add(*half).op is Op.ADD


def test_casts() -> None:
    """Exact conversions are passed through; those that round stay."""
    assert build.cast(build.cast(X, DType.F64), DType.F32) is X
    half = build.cast(X, DType.BF16)
    assert build.cast(half, DType.F32).op is Op.CAST
    assert build.cast(build.cast(half, DType.F32), DType.BF16) is half
    assert build.cast(build.cast(N, DType.F32), DType.F64).args[0].dtype is DType.F32
    assert build.cast(build.cast(N, DType.I64), DType.F32) is build.cast(N, DType.F32)
    assert build.cast(f(300.0), DType.I32).attr == 300
    assert build.cast(f(math.nan), DType.I32) == build.const(-(2**31), DType.I32)


def test_types_are_checked() -> None:
    with pytest.raises(TypeError):
        build.add(X, N)
    with pytest.raises(TypeError):
        build.where(X, X, X)
    assert build.lt(X, f(1.0)).dtype is DType.BOOL


def test_index_conditions_are_decided_by_ranges() -> None:
    i = axis_symbol("i", 8)
    assert build.index_condition(Op.LT, i, 8).attr is True
    assert build.index_condition(Op.GE, i, 8).attr is False
    assert build.index_condition(Op.LT, i, 7).op is Op.LT
    assert build.index_condition(Op.NE, i, 8).attr is True
    assert build.index_condition(Op.EQ, i, 7).op is Op.EQ
    assert build.check_index(build.index(i), ZERO + 8).op is Op.INDEX
    assert build.check_index(build.index(i), ZERO + 7).op is Op.CHECK_INDEX


@given(
    st.sampled_from([Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE]),
    st.integers(1, 9),
    st.integers(-3, 3),
    st.integers(-12, 12),
)
def test_a_decided_comparison_holds_for_every_index(op: Op, size: int, step: int, bound: int) -> None:
    i = axis_symbol("i", size)
    for turned in (False, True):
        x, y = build.index(i * step), build.const(bound, DType.I64)
        node = build.binary(op, y, x) if turned else build.binary(op, x, y)
        pairs = [(bound, k * step) if turned else (k * step, bound) for k in range(size)]
        truth = {build.COMPARISONS[op](a, b) for a, b in pairs}
        if node.op is Op.CONST:
            assert truth == {node.attr}


NUMBERS = st.floats(width=32) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, 2.0])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAXIMUM, Op.MINIMUM, Op.LT, Op.EQ]), NUMBERS, NUMBERS
)
def test_folding_floats_is_what_the_machine_does(op: Op, a: float, b: float) -> None:
    folded = build.binary(op, f(a), f(b))
    if folded.op is not Op.CONST:
        return
    dtype = DType.BOOL if op in build.TESTS else DType.F32
    with np.errstate(all="ignore"):
        (want,) = apply(Node(op, dtype, (), None), [np.float32([a]), np.float32([b])])
    got = np.asarray([folded.attr], dtype=NUMPY[dtype])[0]
    assert np.array_equal(got, want, equal_nan=dtype is DType.F32)
    assert dtype is DType.BOOL or np.isnan(want) or np.signbit(got) == np.signbit(want)


WRAPPING = [Op.ADD, Op.SUB, Op.MUL, Op.AND, Op.OR, Op.XOR]
OF_INTEGERS = [*WRAPPING, Op.FLOORDIV, Op.TRUNCDIV, Op.REMAINDER, Op.FMOD, Op.MAXIMUM, Op.MINIMUM, Op.SHL, Op.SHR, *build.COMPARISONS]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(OF_INTEGERS), st.sampled_from(INTEGERS), st.data())
def test_folding_integers_is_what_the_machine_does(op: Op, dtype: DType, data: st.DataObject) -> None:
    """It wraps; what is not folded, as a quotient, is left to the machine."""
    low, high = integer_range(dtype)
    a, b = (data.draw(st.integers(low, high) | st.integers(0, 3)) for _ in range(2))
    folded = build.binary(op, build.const(a, dtype), build.const(b, dtype))
    made = Node(op, DType.BOOL if op in build.TESTS else dtype, (), None)
    if folded.op is not Op.CONST:
        assert op not in WRAPPING and folded.args == tuple(build.const(v, dtype) for v in (a, b))
        return
    with np.errstate(all="ignore"):
        (want,) = apply(made, [np.array([v], NUMPY[dtype]) for v in (a, b)])
    assert folded.attr == want and folded.dtype is made.dtype


PLACES = [axis_symbol(name, 9) for name in "ij"]
PARTS = st.sampled_from(PLACES) | st.integers(-3, 3).map(lambda k: ZERO + k)
JOINED = [Expr.__add__, Expr.__sub__, Expr.__mul__, maximum, minimum]


def joined(parts: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    two = st.builds(lambda how, a, b: how(a, b), st.sampled_from(JOINED), parts, parts)
    divided = st.builds(
        lambda how, a, k: how(a, ZERO + k), st.sampled_from([floor_div, modulo]), parts, st.integers(1, 4)
    )
    return two | divided


def value_of(node: Node, env: dict[Symbol, int]) -> int:
    """What a node without loads of floats is."""
    if node.op is Op.CONST:
        return int(node.attr)
    if node.op is Op.INDEX:
        return node.attr.evaluate(env)
    if node.op is Op.LOAD:
        return env[node.attr[1]]
    args = [np.array([value_of(a, env)]) for a in node.args]
    return int(apply(node, args)[0])


@settings(max_examples=300, deadline=None)
@given(st.recursive(PARTS, joined, max_leaves=6), st.integers(0, 8), st.integers(0, 8), st.integers(1, 3))
def test_an_index_of_computed_places_is_the_same_number(e: Expr, i: int, j: int, which: int) -> None:
    """Of sums, products, quotients, remainders, the least and the greatest of places, of which some are values that are read."""
    read = {s: build.load("at", DType.I64, s) for k, s in enumerate(PLACES) if which >> k & 1}
    env = dict(zip(PLACES, (i, j), strict=True))
    assert value_of(build.arithmetic(e, read), env) == e.evaluate(env)


@settings(max_examples=300, deadline=None)
@given(st.floats() | st.floats(width=32), st.sampled_from([torch.bfloat16, torch.float16, torch.float32]))
def test_rounding_is_torchs(value: float, dtype: torch.dtype) -> None:
    """Constants are rounded to their type as torch rounds them."""
    want = float(torch.tensor(value, dtype=torch.float64).to(torch.float32).to(dtype))
    source = round_float(value, DType.F32)
    got = round_float(source, from_torch(dtype))
    assert got == want or (math.isnan(got) and math.isnan(want))
    if from_torch(dtype) is DType.BF16:
        raw = to_storage(np.float32([source]), DType.BF16)
        stored = from_storage(raw, DType.BF16)[0]
        assert stored == want or (np.isnan(stored) and math.isnan(want))


@given(st.integers(-(2**70), 2**70), st.sampled_from(INTEGERS))
def test_wrapping_keeps_the_low_bits(value: int, dtype: DType) -> None:
    wrapped = wrap_integer(value, dtype)
    low, high = integer_range(dtype)
    assert low <= wrapped <= high
    assert (wrapped - value) % (1 << 8 * dtype.itemsize) == 0


def test_every_torch_type_of_ours_is_known() -> None:
    assert from_torch(torch.bfloat16) is DType.BF16
    assert compute_type(DType.F16) is DType.F32
    assert compute_type(DType.I8) is DType.I8
    assert not DType.C64.is_computable
    with pytest.raises(Unsupported):
        from_torch(torch.qint8)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
@pytest.mark.parametrize("source", [torch.float32, torch.float64])
def test_a_constant_beyond_the_range_of_a_type_is_what_eager_makes_of_it(dtype, source):
    for value in (math.inf, -math.inf, math.nan, 1e30, -1e30, 3e9, 1e10, -3e9, 300.7, -300.2):
        eager = torch.tensor(value, dtype=source).to(dtype).item()
        made = build.cast(build.const(value, from_torch(source)), from_torch(dtype))
        assert (made.op, made.attr) == (Op.CONST, eager)
