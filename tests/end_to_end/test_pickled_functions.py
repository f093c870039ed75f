"""A compiled function pickles as its original does, and comes back compiled."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
import torch

import braze
from braze import native

X = torch.arange(4.0)


@braze.compile(backend="eager")
def decorated(x: Any) -> Any:
    return x + 1


def plain(x: Any) -> Any:
    return x * 2


class Scaled:
    """An object whose method is compiled."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def call(self, x: Any) -> Any:
        return x * self.factor


def test_one_that_stands_under_its_name_is_found_there() -> None:
    assert pickle.loads(pickle.dumps(decorated)) is decorated


@pytest.mark.parametrize(
    ("original", "expected"),
    [(plain, X * 2), (functools.partial(plain, X * 3), X * 6), (Scaled(5).call, X * 5)],
    ids=["function", "partial", "method"],
)
def test_any_other_is_made_again_of_its_original(original: Any, expected: torch.Tensor) -> None:
    compiled = braze.compile(original, backend="eager", dynamic=True)
    loaded = pickle.loads(pickle.dumps(compiled))
    assert type(loaded) is native.Entry
    arguments = () if isinstance(original, functools.partial) else (X,)
    assert torch.equal(loaded(*arguments), expected)
    assert torch.equal(loaded(*arguments), expected)
    assert loaded.hits == 1


def test_what_the_original_cannot_do_it_cannot_either() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(braze.compile(lambda x: x))


def test_copies_are_the_function_itself_and_its_attributes_are_the_originals() -> None:
    assert copy.copy(decorated) is copy.deepcopy(decorated) is decorated
    assert decorated.__code__ is decorated.__wrapped__.__code__
    assert decorated.__annotations__ == {"x": "Any", "return": "Any"}


def test_a_compiled_function_compiled_again_is_its_original_compiled() -> None:
    again = braze.compile(decorated, backend="eager")
    assert again.__wrapped__ is decorated.__wrapped__


def test_what_wraps_a_function_is_explained_with_what_it_adds() -> None:
    @functools.wraps(plain)
    def around(x: Any) -> Any:
        return plain(x).sin().cos()

    assert braze.explain(around, backend="eager")(X).graphs[0].size == 3
