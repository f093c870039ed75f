"""Relations between sizes: the native program says what the Python expression says."""

from __future__ import annotations

import ast
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braze import native
from braze.native.relation import DEPTH, Relation, postfix
from braze.native.walk import bits_of, float_of

NAMES = {"a": 0, "b": 1, "c": 2}


def frame(a: int, b: int, c: int) -> None:
    """Only its arguments matter."""


def relation(text: str) -> Relation:
    function = eval(f"lambda values: (lambda a, b, c: {text})(*values)")
    return Relation(text, function, postfix(ast.parse(text, mode="eval").body, NAMES))


def program(checked: Any) -> Any:
    nodes = [(-1, "local", i) for i in range(3)]
    checks: list[Any] = [(i, "int", ("sym", i)) for i in range(3)]
    return native.GuardProgram(nodes, [*checks, (-1, "range", checked)], [0], 3)


def holds(checked: Any, *values: int) -> bool:
    return program(checked).match(frame, values) is not None


def expressions(leaves: Any) -> Any:
    arithmetic = st.tuples(leaves, st.sampled_from("+ - * // %".split()), leaves).map(
        lambda t: f"({t[0]} {t[1]} {t[2]})"
    )
    return arithmetic | st.tuples(st.sampled_from(["min", "max"]), leaves, leaves).map(
        lambda t: f"{t[0]}({t[1]}, {t[2]})"
    )


SIZES = st.recursive(
    st.sampled_from(["a", "b", "c"]) | st.integers(-9, 9).map(str), expressions, max_leaves=6
)
RELATIONS = st.tuples(SIZES, st.sampled_from("== != < <= > >=".split()), SIZES).map(" ".join)
BOTH = st.tuples(RELATIONS, st.sampled_from(["and", "or"]), RELATIONS).map(
    lambda t: f"({t[0]}) {t[1]} not ({t[2]})"
)


@given(text=RELATIONS | BOTH, values=st.tuples(*[st.integers(-50, 5000)] * 3))
def test_native_and_python_agree(text: str, values: tuple[int, int, int]) -> None:
    checked = relation(text)
    assert checked.code is not None
    try:
        expected = bool(checked(values))
    except ZeroDivisionError:
        expected = False  # such a guard does not hold
    assert holds(checked, *values) == expected


@pytest.mark.skipif(not native.hook_available(), reason="needs the C core")
def test_no_python_runs_where_integers_suffice() -> None:
    checked = relation("a % 2 == 0 and a * b <= c + 7")
    checked.function = None  # type: ignore[assignment]
    assert holds(checked, 4, 5, 13) and not holds(checked, 4, 5, 12) and not holds(checked, 3, 1, 50)


def test_what_overflows_is_left_to_python() -> None:
    assert holds(relation("a * b * c > 2 ** 70"), 2**40, 2**40, 2**40)
    big = relation("a * b * c > 1")
    assert big.code is not None and holds(big, 2**40, 2**40, 2**40)


@pytest.mark.parametrize("text", ["a / b > 1", "a ** 2 > 4", "a > 1.5", "round(a) > 0", "a < b < c"])
def test_what_integers_cannot_say_runs_in_python(text: str) -> None:
    checked = relation(text)
    assert checked.code is None and holds(checked, 3, 2, 1) == bool(checked((3, 2, 1)))


def test_what_needs_a_deeper_stack_than_there_is_runs_in_python() -> None:
    """Operands on the right wait for those before them; from the left there is one at a time."""
    from_left = " + ".join(["a"] * 40)
    deep, edge = ("(a + " * n + "b" + ")" * n for n in (DEPTH, DEPTH - 1))
    for text, native_code in ((from_left, True), (edge, True), (deep, False)):
        checked = relation(f"{text} > 40")
        assert (checked.code is not None) == native_code
        assert holds(checked, 2, 1, 1) and not holds(checked, 1, -1, 1)
        assert (relation(f"0 + ({text}) * 1 > 40").code is not None) == (text is from_left)


def test_a_malformed_program_is_not_run() -> None:
    for code in (((2, 0),), ((1, 9),), ((0, 1), (0, 1)), (("x", 0),), ((99, 0),), ()):
        checked = Relation("True", lambda values: True, code)  # type: ignore[arg-type]
        assert holds(checked, 1, 2, 3)


def test_a_walk_inside_a_relation_leaves_the_outer_ones_sizes_alone() -> None:
    """Python code of one relation may walk the same program over others (another thread has its turn, an object ends)."""
    inner: list[Any] = []

    def walks(sizes: Any) -> bool:
        if len(inner) < 1:
            inner.append(None)
            inner[0] = made.match(frame, (7, 7, 7))
        return True

    nodes = [(-1, "local", i) for i in range(3)]
    checks: list[Any] = [(i, "int", ("sym", i)) for i in range(3)]
    ranges = [(-1, "range", walks), (-1, "range", relation("a == b"))]
    made = native.GuardProgram(nodes, [*checks, *ranges], [0], 3)
    assert made.match(frame, (1, 2, 3)) is None
    assert inner == [(7,)]
    assert made.match(frame, (4, 4, 3)) == (4,)


# -- of floats, by their bits

FLOATS = st.floats(width=64) | st.sampled_from(
    [0.0, -0.0, 0.5, 1.0, -3.25, 709.0, 1e308, math.inf, -math.inf, math.nan]
)
NUMBER = st.sampled_from(["float_of(a)", "float_of(b)", "float_of(c)", "2", "0.5", "-1.25", "1e300"])
OF_FLOATS = st.recursive(
    NUMBER,
    lambda leaves: (
        st.tuples(leaves, st.sampled_from("+ - * / **".split()), leaves).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        )
        | st.tuples(st.sampled_from(["-", "abs", "math.sqrt", "math.exp", "math.log"]), leaves).map(
            lambda t: f"{t[0]}({t[1]})"
        )
    ),
    max_leaves=5,
)
ABOUT_FLOATS = st.tuples(
    st.just("float_of(a)") | OF_FLOATS, st.sampled_from("== != < <= > >=".split()), OF_FLOATS
).map(" ".join)


@given(
    text=ABOUT_FLOATS.filter(lambda t: "float_of" in t)
    | ABOUT_FLOATS.filter(lambda t: "float_of" in t).map("({}) == False".format)
    | OF_FLOATS.filter(lambda t: "float_of" in t).map("math.isfinite({})".format),
    values=st.tuples(FLOATS, FLOATS, FLOATS),
)
def test_native_and_python_agree_about_floats(text: str, values: tuple[float, float, float]) -> None:
    function = eval(f"lambda values: (lambda a, b, c: {text})(*values)", {"float_of": float_of, "math": math})
    checked = Relation(text, function, postfix(ast.parse(text, mode="eval").body, NAMES))
    assert checked.code is not None
    try:
        expected = bool(function([bits_of(v) for v in values]))
    except (ArithmeticError, ValueError, TypeError):  # of complex numbers there are no roots
        expected = False
    nodes = [(-1, "local", i) for i in range(3)]
    checks: list[Any] = [(i, "float", ("sym", i)) for i in range(3)]
    found = native.GuardProgram(nodes, [*checks, (-1, "range", checked)], [0], 3)
    assert (found.match(frame, values) is not None) == expected


def test_floats_are_computed_without_python() -> None:
    checked = Relation(
        "-", lambda values: 1 / 0, postfix(ast.parse("float_of(a) * 2 > 5.5", mode="eval").body, NAMES)
    )
    found = native.GuardProgram(
        [(-1, "local", 0)], [(0, "float", ("sym", 0)), (-1, "range", checked)], [0], 1
    )
    matched = [found.match(lambda a: a, (number,)) is not None for number in (2.0, 3.0)]
    assert matched == ([False, True] if native.native_available else [False, False])
