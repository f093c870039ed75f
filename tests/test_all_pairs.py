"""Of tests with three axes and more a part is run in which no pair of values is missing."""

from __future__ import annotations

import os
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.all_pairs import chosen

_met: list[tuple[int, str, bool]] = []


def pairs(places: list[tuple[object, ...]]) -> set[object]:
    return {pair for place in places for pair in combinations(enumerate(place), 2)}


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 4), max_size=60))
def test_no_pair_is_missing_and_no_case_is_there_for_nothing(places: list[tuple[object, ...]]) -> None:
    kept = chosen(places)
    assert pairs([places[i] for i in kept]) == pairs(places)
    assert kept == sorted(set(kept))


def test_a_product_shrinks_to_its_two_largest_axes() -> None:
    places: list[tuple[object, ...]] = list(product(range(2), range(5), range(6), range(2)))
    assert 30 <= len(chosen(places)) <= 36


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize(("word", "other"), [("a", 1), ("b", 2)])
@pytest.mark.parametrize("number", [7, 8])
def test_of_three_axes(flag: bool, word: str, other: int, number: int) -> None:
    assert other == {"a": 1, "b": 2}[word]
    _met.append((number, word, flag))


def test_of_three_axes_a_half_was_run() -> None:
    if not _met:
        pytest.skip("chosen alone")
    assert len(_met) == (8 if os.environ.get("BRAZE_SWEEP") == "1" else 4)
    assert len(pairs(list(_met))) == 12
