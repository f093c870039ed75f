"""The small grammar of ``shapes=``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braze.support.errors import UserError
from braze.symbolic.shape_rules import SizeRule, parse_rule, parse_shapes


@pytest.mark.parametrize(
    ("text", "low", "high", "multiple"),
    [
        ("B", None, None, 1),
        ("S<=4096 %8", None, 4096, 8),
        ("S < 10", None, 9, 1),
        ("S>=2", 2, None, 1),
        ("S>2<9", 3, 8, 1),
        ("2<=S<64%8", 2, 63, 8),
        ("9 > S", None, 8, 1),
    ],
)
def test_bounds_and_divisors(text: str, low: int | None, high: int | None, multiple: int) -> None:
    rule = parse_rule(text)
    assert (rule.low, rule.high, rule.multiple) == (low, high, multiple)
    assert rule.name in ("B", "S")


@given(low=st.integers(0, 40), span=st.integers(0, 40), multiple=st.integers(1, 9), size=st.integers(0, 100))
def test_a_rule_allows_what_it_says(low: int, span: int, multiple: int, size: int) -> None:
    high = low + span
    expected = low <= size <= high and size % multiple == 0
    if not any(n % multiple == 0 for n in range(low, high + 1)):
        with pytest.raises(UserError, match="no size obeys"):
            parse_rule(f"{low}<=N<={high} %{multiple}")
    else:
        assert parse_rule(f"{low}<=N<={high} %{multiple}").allows(size) == expected
        assert parse_rule(f"N>={low} <{high + 1} % {multiple}").allows(size) == expected


def test_sizes_of_an_argument() -> None:
    x, y = parse_shapes({"x": ("B", 8, None, "4"), "y": ("B", ...)})
    assert x.argument == "x" and not x.open_ended and y.open_ended and len(y.dims) == 1
    assert x.dims[1:] == (
        SizeRule("", 8, 8, text="8"),
        SizeRule(),
        SizeRule("", 4, 4, text="4"),
    )


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("B", "B<=8", "B<=8"),
        ("B<=8", "B", "B<=8"),
        ("4<=B", "B<=8", "4<=B<=8"),
        ("B<=18 %4", "B<=16 %6", "B<=16 %12"),
        ("2<=B<=9", "B>=3 <20 %2", "3<=B<=9 %2"),
    ],
)
def test_rules_of_one_name_are_joined(one: str, other: str, both: str) -> None:
    x, y = parse_shapes({"x": (one, "C"), "y": (2, other)})
    assert x.dims[0] == y.dims[1]
    assert x.dims[0].bounds == parse_rule(both).bounds
    assert x.dims[0].text in (one, other, both) and x.dims[1].text == "C"


def test_rules_of_one_name_that_contradict_each_other_are_refused() -> None:
    for one, other in (("B<4", "B>=4"), ("B<=10 %4", "7<B<=10 %5")):
        with pytest.raises(UserError, match="BZ0020") as caught:
            parse_shapes({"x": (one,), "y": (None, other)})
        for part in (one, other, "x, dimension 0", "y, dimension 1"):
            assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "caret", "why"),
    [
        ("B<=", 3, "a number"),
        ("B*8", 1, "did you mean '%'"),
        ("B==8", 1, "an exact size is a number"),
        ("B=8", 1, "did you mean '<='"),
        ("B <= S", 5, "a number"),
        ("B C", 2, "belongs here"),
        ("<=8", 0, "a name"),
        ("", 0, "a name or a number"),
        ("B %0", 3, "multiples of 1"),
        ("8<=B<4", 0, "no size obeys"),
    ],
)
def test_a_rule_that_cannot_be_read_is_shown_with_a_caret(text: str, caret: int, why: str) -> None:
    with pytest.raises(UserError, match="BZ0020") as caught:
        parse_rule(text, "x, dimension 0")
    shown = str(caught.value).splitlines()
    assert shown[1] == f"    {text}" and shown[2] == f"    {' ' * caret}^"
    assert why in str(caught.value) and "x, dimension 0" in shown[0]


@pytest.mark.parametrize(
    "shapes", [{"x": "B"}, {"x": (..., "B")}, {"x": (1.5,)}, {"x y": ("B",)}, [("x", 1)]]
)
def test_what_is_no_tuple_of_sizes_is_refused(shapes: object) -> None:
    with pytest.raises(UserError, match="BZ0020"):
        parse_shapes(shapes)  # type: ignore[arg-type]
