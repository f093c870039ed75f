"""What fails in a graph that runs as captured, before it has written an input, is raised by Python: the program's handlers see it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze

pytestmark = pytest.mark.usefixtures("fresh")

WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "slice": lambda x: x.__setitem__(slice(2, 5), 3),
    "all": lambda x: x.__setitem__(slice(None), 3),
    "scatter": lambda x: x.scatter_(0, torch.tensor([1]), 3.0),
    "put": lambda x: x.put_(torch.tensor([0]), torch.ones(1)),
    "sum": lambda x: x.index_add_(0, torch.tensor([0]), torch.ones(1)),
    "drawn": lambda x: x.bernoulli_(),
}


@pytest.mark.provokes("BZ6013")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("write", WRITES)
def test_a_handler_sees_that_elements_share_memory(write: str, backend: str, dynamic: bool | None) -> None:
    change = WRITES[write]

    def f(x):
        try:
            change(x)
        except RuntimeError as error:
            return x + 1, str(error)
        return x * 2, ""

    compiled = braze.compile(f, backend=backend, dynamic=dynamic)
    for size in (8, 8, 5):
        x = torch.ones(1).expand(size)
        got, said = compiled(x)
        wanted, expected = f(torch.ones(1).expand(size))
        assert torch.equal(got, wanted) and said.partition(":")[0] == expected.partition(":")[0]
        assert x[0] == 1


def twice(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y.mul_(2)
    return torch.linalg.inv(x), y


def past_its_counter(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y.data.mul_(2)
    return torch.linalg.inv(x), y


@pytest.mark.parametrize("fn", [twice, past_its_counter])
def test_what_was_written_before_an_error_is_written_once(fn) -> None:
    compiled = braze.compile(fn, backend="eager")
    for x, fails in ((torch.eye(2), False), (torch.zeros(2, 2), True), (torch.zeros(2, 2), True)):
        y = torch.ones(2)
        if fails:
            with pytest.raises(torch.linalg.LinAlgError):
                compiled(x, y)
        else:
            compiled(x, y)
        assert y.tolist() == [2, 2]


def test_what_inference_mode_does_not_count_is_written_once() -> None:
    compiled = braze.compile(twice, backend="eager")
    with torch.inference_mode():
        y = torch.ones(2)
        compiled(torch.eye(2), y)
        with pytest.raises(torch.linalg.LinAlgError):
            compiled(torch.zeros(2, 2), y)
        assert y.tolist() == [4, 4]
