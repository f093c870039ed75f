"""What an operator's error says of sizes is what it says of these in the call at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "a size": lambda x: x + torch.ones(2),
    "a number of elements": lambda x: x.repeat(2).view(3, 3, 3),
    "a number made of a size": lambda x: x.narrow(0, 1, x.shape[0] * 2),
    "sizes of a list": lambda x: torch.stack([x, torch.ones(2)]),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED.keys())
def test_an_error_tells_the_sizes_of_its_own_call(
    refused: Callable[[torch.Tensor], Any], dynamic: bool | None
) -> None:
    def f(x: torch.Tensor) -> str:
        try:
            refused(x)
        except RuntimeError as error:
            return str(error)
        return ""

    compiled = braze.compile(f, dynamic=dynamic)
    for n in (3, 4, 5, 7):
        assert compiled(torch.ones(n)) == f(torch.ones(n)) != ""


def test_a_text_without_numbers_serves_all_sizes() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def f(x: torch.Tensor) -> tuple[str, torch.Tensor]:
        try:
            (x > 0) - (x > 1)
        except RuntimeError as error:
            return str(error), x + 1
        return "", x

    compiled = braze.compile(f, dynamic=True, backend=backend)
    for n in (3, 4, 5):
        assert compiled(torch.ones(n))[0] == f(torch.ones(n))[0] != ""
    assert len(graphs) == 1


class Told(torch.nn.Module):
    """A module that notes when its text is asked for."""

    asked = 0

    def forward(self, x: torch.Tensor, **words: int) -> torch.Tensor:
        return x + len(words)

    def __repr__(self) -> str:
        Told.asked += 1
        return "{told}"


def test_what_is_called_is_asked_for_its_text_by_an_error_alone() -> None:
    def f(module: torch.nn.Module, x: torch.Tensor, words: Any) -> Any:
        try:
            return module(x, **words)
        except TypeError as error:
            return str(error)

    module, x, asked = Told(), torch.ones(2), Told.asked
    compiled = braze.compile(f, backend="eager")
    assert torch.equal(compiled(module, x, {"a": 1}), x + 1)
    assert Told.asked == asked
    assert compiled(module, x, 3) == f(module, x, 3) == "{told} argument after ** must be a mapping, not int"
    assert Told.asked == asked + 2
