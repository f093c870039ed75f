"""The C call of a graph that writes inputs: plain calls go to the graph, all others the general way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from braze import native

pytestmark = pytest.mark.skipif(not native.native_available, reason="of the C core")


class Calls:
    """What came where."""

    def __init__(
        self, *looked: tuple[int, int, bool], again: tuple[int, ...] = (), results: tuple[int, ...] = ()
    ) -> None:
        self.graph: list[int] = []
        self.counted: list[int] = []
        self.general: list[int] = []
        self.call = native.written_call(
            self._graph, self._count, lambda *_: None, self._general, looked, again, results
        )

    def _graph(self, inputs: Any) -> tuple[Any, ...]:
        self.graph.append(len(inputs))
        return None, "first", "second"

    def _count(self, written: Any) -> None:
        self.counted.append(len(written))

    def _general(self, inputs: Any) -> list[str]:
        self.general.append(len(inputs))
        return ["general"]


def test_a_plain_call_is_counted_and_gets_its_results_in_order() -> None:
    calls = Calls((0, 4, True), (1, 4, False), again=(0,), results=(2, 1))
    assert calls.call([torch.ones(3), torch.ones(3), 7]) == ["second", "first"]
    assert (calls.graph, calls.counted, calls.general) == ([4], [1], [])
    assert calls.call.boxed


@pytest.mark.parametrize(
    ("a", "b", "apart"), [(0, 4, True), (4, 0, True), (0, 3, False), (3, 0, False), (2, 2, False)]
)
def test_memory_that_a_written_input_may_share_is_looked_at_the_general_way(
    a: int, b: int, apart: bool
) -> None:
    calls, memory = Calls((0, 4, True), (1, 4, False)), torch.zeros(8)
    calls.call([memory[a : a + 4], memory[b : b + 4]])
    assert (len(calls.graph), len(calls.general)) == (apart, not apart)


def test_inputs_that_are_only_read_may_share_memory_and_empty_ones_share_none() -> None:
    calls, x = Calls((0, 4, True), (1, 4, False), (2, 4, False)), torch.zeros(4)
    calls.call([torch.zeros(4), x, x])
    calls.call([x, x[:0], x[:0]])
    assert (len(calls.graph), calls.general) == (2, [])


def test_a_column_ends_where_its_last_element_does() -> None:
    calls, memory = Calls((0, 4, True), (1, 4, False)), torch.zeros(4, 2)
    calls.call([memory[:2, 0], memory[2:, 1]])
    calls.call([memory[:3, 0], memory[2:, 1]])
    calls.call([memory[:, 0], memory[:, 1]])
    assert (len(calls.graph), len(calls.general)) == (2, 1)


def test_inference_tensors_and_what_is_no_tensor_go_the_general_way() -> None:
    calls = Calls((0, 4, True))
    with torch.inference_mode():
        calls.call([torch.ones(3)])
    calls.call([None])
    calls.call([])
    assert (calls.graph, calls.counted, len(calls.general)) == ([], [], 3)


def test_errors_of_the_graph_and_of_the_counter_come_through() -> None:
    def fails(_: Any) -> Any:
        raise KeyError("mine")

    x, looked = torch.ones(3), ((0, 4, True),)

    def nothing(*_: Any) -> tuple[Any, ...]:
        return ()

    for graph, count in ((fails, nothing), (nothing, fails)):
        with pytest.raises(KeyError, match="mine"):
            native.written_call(graph, count, nothing, lambda inputs: [], looked, (), ())([x])
    with pytest.raises(IndexError):
        native.written_call(nothing, nothing, nothing, lambda inputs: [], looked, (), (0,))([x])


def test_an_error_of_the_graph_is_told_with_what_was_counted_but_not_what_ends_the_program() -> None:
    told: list[Any] = []
    x, y = torch.ones(3), torch.ones(3)
    for error in (KeyError("mine"), KeyboardInterrupt("mine")):

        def fails(_: Any, error: BaseException = error) -> Any:
            raise error

        call = native.written_call(
            fails, lambda written: None, lambda *what: told.append(what), lambda inputs: [], ((0, 4, True), (1, 4, False)), (), ()
        )  # fmt: skip
        with pytest.raises(type(error), match="mine"):
            call([x, y])
    ((error, written),) = told
    assert type(error) is KeyError and len(written) == 1 and written[0] is x


def test_more_inputs_than_fit_are_looked_at_in_python() -> None:
    looked = tuple((k, 4, False) for k in range(33))

    def general(inputs: Any) -> list[Any]:
        return []

    assert native.written_call(general, general, general, general, looked, (), ()) is general
