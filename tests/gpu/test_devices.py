"""What a program asks of its GPUs while it is captured: it gets eager's answers in one graph, and another device is noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from tests.helpers import logged

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def _asks(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
    facts = torch.cuda.get_device_properties(x.device)
    told = (
        torch.cuda.is_initialized(),
        torch.cuda.current_device(),
        torch.cuda.device_count(),
        torch.accelerator.current_device_index(),
        torch.cuda.get_device_capability(),
        torch.cuda.get_device_capability(x.device) >= (8, 0),
        torch.cuda.get_device_name("cuda:0"),
        facts.multi_processor_count,
        facts.total_memory // 2**30,
        (facts.name, facts.major, facts.minor),
    )
    return x * facts.warp_size + facts.minor, told


def test_what_a_gpu_is_like_is_known_in_one_graph() -> None:
    x = torch.randn(8, device="cuda")
    fn = braze.compile(_asks, fullgraph=True)
    for _ in range(2):
        made, told = fn(x)
        wanted, known = _asks(x)
        assert torch.equal(made, wanted)
        assert told == known


def test_a_gpu_that_is_kept_tells_the_same() -> None:
    facts = torch.cuda.get_device_properties(0)
    fn = braze.compile(lambda x: x * facts.major + facts.multi_processor_count, fullgraph=True)
    x = torch.ones(4, device="cuda")
    assert torch.equal(fn(x), x * facts.major + facts.multi_processor_count)


def test_what_a_gpu_is_like_is_kept_across_a_break() -> None:
    def asks(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        facts = torch.cuda.get_device_properties(0)
        x = x * facts.major
        braze.graph_break()
        return x + facts.minor, facts

    x = torch.ones(4, device="cuda")
    made, facts = braze.compile(asks)(x)
    wanted, known = asks(x)
    assert torch.equal(made, wanted)
    assert (facts.name, facts.total_memory) == (known.name, known.total_memory)


def test_a_gpu_that_is_not_there_is_refused_in_eagers_words() -> None:
    def asks(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        try:
            torch.cuda.get_device_capability(torch.cuda.device_count())
        except AssertionError as error:
            return x + 1, str(error)
        return x, ""

    x = torch.ones(4, device="cuda")
    made, text = braze.compile(asks)(x)
    assert text == asks(x)[1] != ""
    assert torch.equal(made, x + 1)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_is_noticed() -> None:
    def asks(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x + 1, torch.cuda.current_device()

    fn = braze.compile(asks)
    assert fn(torch.ones(2))[1] == 0
    with torch.cuda.device(1):
        assert fn(torch.ones(2))[1] == 1
    assert fn(torch.ones(2))[1] == 0


def test_what_repeats_its_memory_is_written_to_new_memory_of_another_device() -> None:
    """An error in the graph (more than one element refers to a single memory location): the copy was planned to repeat its memory, too."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.shape).copy_(x)

    x = torch.arange(3.0, device="cuda").expand(2, 3)
    with logged() as lines:
        actual = braze.compile(program, fullgraph=True)(x)
    assert torch.equal(actual, x.cpu()) and actual.stride() == program(x).stride()
    assert "BZ6013" not in "\n".join(lines)
