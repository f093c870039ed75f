"""Arguments that hold themselves, lie deep, or cannot be looked through: computed with all the same, and told."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import braze
from braze.capture.facts.policy import may_call_back
from braze.support.errors import CaptureError


def in_a_list() -> Any:
    inner: list[Any] = []
    inner.append(inner)
    return inner


def in_a_dict() -> Any:
    inner: dict[str, Any] = {}
    inner["self"] = inner
    return inner


def both() -> Any:
    return (in_a_list(), {"k": [in_a_dict()]})


def nested(times: int) -> Any:
    inner: list[Any] = []
    for _ in range(times):
        inner = [inner]
    return inner


@pytest.mark.parametrize("make", [in_a_list, in_a_dict, both])
def test_a_container_that_holds_itself_is_captured(make: Any) -> None:
    def f(x: torch.Tensor, held: Any) -> Any:
        return x * len(held), held

    compiled, held = braze.compile(f, backend="eager", fullgraph=True), make()
    result, same = compiled(torch.ones(2), held)
    assert result.tolist() == [len(held)] * 2
    assert same is held


class Unhashed:
    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("argument", "code"), [({Unhashed()}, "BZ1014"), (nested(20_000), "BZ1016")], ids=["set", "deep"]
)
def test_an_argument_that_cannot_be_read_is_told(argument: Any, code: str) -> None:
    def f(x: torch.Tensor, held: Any) -> Any:
        return x * len([*held])

    assert braze.compile(f, backend="eager")(torch.ones(2), argument).tolist() == [1.0, 1.0]
    with pytest.raises(CaptureError) as caught:
        braze.compile(f, backend="eager", fullgraph=True)(torch.ones(2), argument)
    assert caught.value.code == code


def test_deep_lists_are_not_searched_to_their_end_at_each_call_of_c() -> None:
    assert may_call_back((nested(5000),), None)
    assert may_call_back((in_a_list(),), None)
    assert not may_call_back(([1, (2, "a")],), None)


def test_tuples_that_are_not_finished_yet_are_not_looked_into() -> None:
    def f(x: torch.Tensor) -> Any:
        found = gc.get_objects()  # what was frozen is not among them
        return x + 1, len(found) > 0

    compiled = braze.compile(f, backend="eager")

    def values() -> Iterator[bool]:
        yield compiled(torch.ones(2))[1]  # by now the collector knows the tuple that gets this

    assert tuple(values()) == (True,)


def test_an_object_with_fields_that_c_code_alone_fills_is_not_made_again() -> None:
    make = getattr(pytest.importorskip("_testcapi"), "make_vectorcall_class", None)
    if make is None:
        pytest.skip("this Python's _testcapi has no such class")

    class Derived(make()):  # type: ignore[misc]
        pass

    def calls() -> Any:
        made = Derived()
        braze.graph_break()
        return made()

    compiled = braze.compile(calls, backend="eager")
    assert calls() == compiled() == compiled() == "tp_call"


def test_an_iterator_of_itertools_from_outside_goes_on_at_each_call() -> None:
    def take(iterator: Any) -> list[int]:
        return list(itertools.islice(iterator, 4))

    compiled, cycle = braze.compile(take, backend="eager"), itertools.cycle([1, 2, 3])
    assert [compiled(cycle), compiled(cycle)] == [[1, 2, 3, 1], [2, 3, 1, 2]]


@pytest.mark.parametrize("dynamic", [None, True])
def test_new_of_a_shape_is_of_that_shape_and_of_a_tuple_holds_it(dynamic: bool | None) -> None:
    """As torch.distributions draws: for a tuple of the same numbers ``new`` gives these as elements."""

    def f(x: torch.Tensor) -> Any:
        drawn = [
            torch.distributions.Exponential(x).rsample((2,)),
            torch.distributions.Laplace(x, x).rsample(),
        ]
        like = [
            x.new(x.shape),
            x.new(x[0, 0].size()),
            x.long().new(x.shape, device="cpu"),
            x.new(torch.Size([0])),
        ]
        return drawn, [t.zero_() for t in like], x.new(tuple(x.shape))

    compiled = braze.compile(f, backend="eager", dynamic=dynamic)
    for n in (2, 3, 1):
        x = torch.rand(n, 4).requires_grad_()
        torch.manual_seed(n)
        expected = f(x)
        torch.manual_seed(n)
        torch.testing.assert_close(compiled(x), expected)


def test_a_function_that_bears_a_methods_name_is_itself() -> None:
    @braze.allow_in_graph
    def new(x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return x.sum() + torch.ones(shape)

    def f(x: torch.Tensor) -> torch.Tensor:
        return new(x, x.shape)

    x = torch.randn(3, 4)
    torch.testing.assert_close(braze.compile(f, backend="eager")(x), f(x))
