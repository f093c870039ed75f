"""Integer expressions mean what integer arithmetic means, whatever the normal form does to them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.symbolic.expr import (
    ONE,
    ZERO,
    Expr,
    Integer,
    Symbol,
    as_expr,
    axis_symbol,
    indirect,
    known_le,
    linear,
    maximum,
    minimum,
)

S0, S1 = Symbol("s0", 1), Symbol("s1", 2, 64)
AXES = [
    axis_symbol("i0", 4),
    axis_symbol("i1", 16),
    axis_symbol("i2", 7),
    axis_symbol("i3", S0),
    axis_symbol("i4", S1),
]
FREE = Symbol("x")
SYMBOLS = [*AXES, S0, S1, FREE]


def numbers() -> st.SearchStrategy[int]:
    return st.integers(-12, 12) | st.sampled_from([16, 32, 48, 64, 112, -16])


def divisors() -> st.SearchStrategy[Expr | int]:
    return st.sampled_from([1, 2, 3, 4, 7, 8, 16, 28, 64, 112, S0, S1, S0 * S1, S0 * 4, S1 * 2, S0 + 1])


def build(op: str, a: Expr, b: Expr | int) -> Expr:
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
        case "%":
            return a % b
        case "max":
            return maximum(a, b)
        case _:
            return minimum(a, b)


def apply(op: str, a: int, b: int) -> int:
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "max": lambda: max(a, b),
        "min": lambda: min(a, b),
    }[op]()


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, object, object]]:
    """Steps of a small straight-line calculation; operands are symbols, numbers or earlier results."""
    steps = []
    for k in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from(["+", "+", "-", "*", "*", "//", "//", "%", "%", "max", "min"]))
        leaf = st.sampled_from(SYMBOLS) | numbers()
        operand = leaf | st.integers(0, k - 1).map(lambda j: ("step", j)) if k else leaf
        a = draw(operand)
        b = draw(divisors()) if op in ("//", "%") else draw(operand)
        steps.append((op, a, b))
    return steps


@st.composite
def assignments(draw: st.DrawFn) -> dict[Symbol, int]:
    s0, s1 = draw(st.integers(1, 9)), draw(st.integers(2, 64))
    env = {S0: s0, S1: s1, FREE: draw(st.integers(-100, 100))}
    for axis, extent in zip(AXES, [4, 16, 7, s0, s1], strict=True):
        env[axis] = draw(st.integers(0, extent - 1))
    return env


def run(program: list, env: dict[Symbol, int]) -> list[tuple[Expr, int]]:
    done: list[tuple[Expr, int]] = []

    def operand(x: object) -> tuple[Expr, int]:
        if isinstance(x, tuple):
            return done[x[1]]
        e = as_expr(x)  # type: ignore[arg-type]
        return e, e.evaluate(env)

    for op, a, b in program:
        (ea, va), (eb, vb) = operand(a), operand(b)
        done.append((build(op, ea, eb), apply(op, va, vb)))
    return done


@settings(max_examples=250, deadline=None)
@given(programs(), assignments())
def test_normal_form_keeps_the_value(program: list, env: dict[Symbol, int]) -> None:
    """Every intermediate of a random calculation evaluates to what Python's integers give."""
    for e, value in run(program, env):
        assert e.evaluate(env) == value, e


@settings(max_examples=250, deadline=None)
@given(programs(), assignments())
def test_value_lies_in_bounds(program: list, env: dict[Symbol, int]) -> None:
    """Bounds hold for every assignment in range."""
    for e, value in run(program, env):
        low, high = e.bounds()
        assert low is None or low <= value
        assert high is None or value <= high


@settings(max_examples=250, deadline=None)
@given(programs(), assignments(), st.data())
def test_substitution_commutes_with_evaluation(
    program: list, env: dict[Symbol, int], data: st.DataObject
) -> None:
    """Replacing some symbols by their values, or by expressions of the same value, changes nothing."""
    e, value = run(program, env)[-1]
    some = data.draw(st.lists(st.sampled_from(SYMBOLS), unique=True))
    assert e.subs({s: env[s] for s in some}).evaluate(env) == value
    t = Symbol("t", 0)
    shifted = e.subs({s: t + (env[s] - 3) for s in some})
    assert shifted.evaluate({**env, t: 3}) == value


@settings(max_examples=250, deadline=None)
@given(programs(), assignments())
def test_coefficient_is_the_slope(program: list, env: dict[Symbol, int]) -> None:
    """Where an expression is linear in a symbol, a step of the symbol adds the coefficient."""
    e, value = run(program, env)[-1]
    for s in SYMBOLS:
        c = e.coefficient(s)
        if c is not None:
            assert e.subs({s: s + 1}).evaluate(env) == value + c.evaluate(env)


@settings(max_examples=80, deadline=None)
@given(programs(), assignments())
def test_equal_expressions_are_identical(program: list, env: dict[Symbol, int]) -> None:
    """Building the same calculation twice gives the same object, and its text is stable."""
    first, second = run(program, env)[-1][0], run(program, env)[-1][0]
    assert first is second
    assert str(first) == str(second)


@settings(max_examples=80, deadline=None)
@given(programs(), assignments())
def test_text_is_python(program: list, env: dict[Symbol, int]) -> None:
    """The text of an expression evaluates, as Python, to its value."""
    e, value = run(program, env)[-1]
    assert eval(str(e), {"max": max, "min": min}, {s.name: v for s, v in env.items()}) == value


def test_reshape_indices_cancel() -> None:
    """Splitting a joined index gives back the parts."""
    i, j = axis_symbol("i", 8), axis_symbol("j", 16)
    flat = i * 16 + j
    assert flat // 16 is i
    assert flat % 16 is j
    assert (flat // 4) % 4 is j // 4
    assert (flat // 16) * 16 + flat % 16 is flat


def test_what_is_too_small_for_a_quotient_is_left_out() -> None:
    """A group of a picture's channel is not told by the pixel."""
    c, h, w = axis_symbol("c", 64), axis_symbol("h", 16), axis_symbol("w", 16)
    assert (c * 256 + h * 16 + w) // 2048 is c // 8
    assert (c * 256 + h * 16 + w + 255) // 2048 is not c // 8
    assert (c * 256 + h * 32 + w) // 2048 is not c // 8


def test_symbolic_reshape_indices_cancel() -> None:
    """The same with a symbolic inner size."""
    i, j = axis_symbol("i", 8), axis_symbol("j", S0)
    flat = i * S0 + j
    assert flat // S0 is i
    assert flat % S0 is j


def test_three_way_symbolic_reshape_cancels() -> None:
    """A joined index of three dimensions splits by products of sizes."""
    i, j, k = axis_symbol("i", S1), axis_symbol("j", S0), axis_symbol("k", 4)
    flat = i * S0 * 4 + j * 4 + k
    assert flat % 4 is k
    assert (flat // 4) % S0 is j
    assert (flat // 4) // S0 is i


def test_quotient_and_remainder_rejoin() -> None:
    """k*d*(x//d) + k*(x%d) is k*x."""
    x = Symbol("x", 0)
    assert (x // 6) * 6 + x % 6 is x
    assert (x // 6) * 12 + (x % 6) * 2 is x * 2


def test_bounds_decide_extrema() -> None:
    i = axis_symbol("i", 8)
    assert minimum(i, 8) is i
    assert maximum(i, 8) is Integer(8)
    assert known_le(i, 7)
    assert not known_le(i, 6)


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(ZeroDivisionError):
        FREE // 0
    with pytest.raises(ZeroDivisionError):
        FREE % 0


def test_linear_is_the_sum_of_products() -> None:
    i, j = axis_symbol("i", 8), axis_symbol("j", 3)
    assert linear([i, j], [S0, ONE], Integer(5)) is i * S0 + j + 5
    assert linear([i, j], [ZERO, ZERO], ZERO) is ZERO


def test_indirect_symbols_are_named_by_position() -> None:
    assert indirect(3, 0, 9).bounds() == (0, 9)
    assert str(indirect(3)) == "ind3"
