"""Leaves of nested values."""

from __future__ import annotations

from braze.support.nested import every, leaves


def test_leaves_come_in_order_out_of_tuples_lists_and_dicts():
    assert leaves((1, [2, (3,)], {"a": [4], "b": "five"}, ())) == [1, 2, 3, 4, "five"]


def test_what_holds_nothing_is_its_own_leaf():
    assert leaves("text") == ["text"] and leaves(None) == [None]


def test_every_leaf_of_a_kind():
    assert every(str, (1, ["a", ("b", None)])) == ["a", "b"]
    assert every(int, "text") == []
