"""What stands around a graph's calls of ATen, in C: grad mode off, and results in the layout that was planned."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from braze import native


class Graph:
    """What came where, and in which mode."""

    def __init__(self) -> None:
        self.modes: list[bool] = []
        self.general: list[Any] = []
        self.call = native.grad_off(self._graph, self._general)

    def _graph(self, inputs: Any) -> Any:
        self.modes.append(torch.is_grad_enabled())
        if not inputs:
            raise ValueError("none given")
        return inputs

    def _general(self, inputs: Any) -> str:
        self.general.append(inputs)
        return "general"


needs_core = pytest.mark.skipif(not native.native_available, reason="of the C core")


@needs_core
@pytest.mark.parametrize("mode", [True, False])
def test_a_graph_is_called_with_grad_mode_off_and_leaves_it_as_it_was(mode: bool) -> None:
    graph = Graph()
    with torch.set_grad_enabled(mode):
        assert graph.call([1]) == [1]
        assert torch.is_grad_enabled() is mode
        with pytest.raises(ValueError, match="none given"):
            graph.call([])
        assert torch.is_grad_enabled() is mode
    assert (graph.modes, graph.general) == ([False, False], [])


@needs_core
def test_under_autocast_it_is_called_the_general_way() -> None:
    graph = Graph()
    with torch.autocast("cpu", torch.bfloat16):
        assert graph.call([1]) == "general"
    assert graph.modes == []


LAYOUT = ((2, 3), (3, 1), torch.float32)


def planned() -> Any:
    return native.planned(*LAYOUT, lambda *given: given)


def test_a_tensor_that_lies_as_planned_is_itself() -> None:
    x = torch.ones(2, 3)
    assert planned()(x) is x


@pytest.mark.parametrize(
    "other",
    [torch.ones(3, 2), torch.ones(3, 2).t(), torch.ones(2, 3).double(), torch.ones(2, 3, 1), torch.ones(2)],
)
def test_one_that_does_not_is_laid_out_anew(other: torch.Tensor) -> None:
    given = planned()(other)
    assert given[0] is other
    assert given[1:] == LAYOUT


def test_a_result_whose_memory_cannot_be_read_meets_the_general_way_and_its_error() -> None:
    with pytest.raises(RuntimeError, match="sizes"):
        native.planned(*LAYOUT, _refuse)(torch.eye(3).to_sparse())


def _refuse(tensor: torch.Tensor, *layout: Any) -> None:
    raise RuntimeError(f"an operator returned sizes {tuple(tensor.shape)}")
