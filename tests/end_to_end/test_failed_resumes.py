"""A frame that cannot go on behind a break, since its compile raised, is left as Python leaves a frame in which that was raised."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze


class Refused(Exception):
    pass


def second_graph_raises(error: BaseException) -> Callable[..., Any]:
    """A backend that compiles one graph, and raises for the next."""
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        if len(graphs) == 2:
            raise error
        return graph.forward

    return backend


@pytest.fixture(autouse=True)
def as_python_begins() -> Iterator[None]:
    """Gradients on, and Ctrl-C a KeyboardInterrupt, which it is not in a process that was begun in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    torch.set_grad_enabled(True)


def test_a_with_is_left_where_what_follows_a_break_in_it_cannot_be_compiled() -> None:
    """Gradients were off for all that the program did after."""

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x.sin()
            braze.graph_break()
            return y.cos()

    with pytest.raises(Refused):
        braze.compile(program, backend=second_graph_raises(Refused()))(torch.ones(3))
    assert torch.is_grad_enabled()


def test_a_with_whose_beginning_broke_the_graph_is_left() -> None:
    class Entered:
        depth = 0

        def __enter__(self) -> None:
            braze.graph_break()
            Entered.depth += 1

        def __exit__(self, *error: Any) -> None:
            Entered.depth -= 1

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        with Entered():
            return y.cos()

    with pytest.raises(Refused):
        braze.compile(program, backend=second_graph_raises(Refused()))(torch.ones(3))
    assert Entered.depth == 0


def test_an_error_of_the_compile_is_the_callers_though_the_program_handles_errors() -> None:
    seen: list[str] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            y = x.sin()
            braze.graph_break()
            return y.cos()
        except Exception:
            return x
        finally:
            seen.append("left")

    with pytest.raises(Refused):
        braze.compile(program, backend=second_graph_raises(Refused()))(torch.ones(3))
    assert seen == ["left"]


def test_a_frame_that_was_to_raise_is_left_by_the_error_of_the_compile() -> None:
    seen: list[str] = []

    def fails() -> None:
        braze.graph_break()
        raise ValueError

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        try:
            fails()
        except ValueError:
            return y.cos()
        finally:
            seen.append("left")
        return y

    with pytest.raises(Refused):
        braze.compile(program, backend=second_graph_raises(Refused()))(torch.ones(3))
    assert seen == ["left"]


def test_ctrl_c_in_the_compile_of_what_follows_a_break_is_met_by_the_programs_handlers() -> None:
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        if len(graphs) == 2:
            signal.raise_signal(signal.SIGINT)
        return graph.forward

    def program(x: torch.Tensor) -> str:
        y = x.sin()
        try:
            braze.graph_break()
            return str(y.cos())
        except KeyboardInterrupt:
            return "interrupted"

    compiled = braze.compile(program, backend=backend)
    assert compiled(torch.ones(3)) == "interrupted"
    assert compiled(torch.ones(3)) == program(torch.ones(3))


def test_integers_that_require_grad_are_left_to_python() -> None:
    """Floats that require grad, written to integers, make these require it: no fake may (BZ9014)."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[...] = y
        with torch.no_grad():
            braze.graph_break()
        return x >= 3

    y = torch.tensor(3.0, requires_grad=True)
    expected = program(torch.arange(4), y)
    actual = braze.compile(program, backend="eager")(torch.arange(4), y)
    assert torch.equal(actual, expected) and actual.dtype is torch.bool


def ends_with_it(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.data = x.sin()
    return x.cos()


def goes_past_a_branch(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        if x.sum() > 100:
            x = x.sin()
    return x.cos()


def ends_two_blocks(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        with torch.no_grad():
            x.data = x.sin()
        x = x.cos()
    return x


def ends_a_try(x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(False)
    try:
        x.data = x.sin()
    finally:
        torch.set_grad_enabled(True)
    return x.cos()


@pytest.mark.parametrize("program", [ends_with_it, goes_past_a_branch, ends_two_blocks, ends_a_try])
def test_a_block_is_left_where_the_break_was_the_last_that_is_done_in_it(program: Callable[..., Any]) -> None:
    """Gradients were off for all that the program did after: what leaves a block stands outside of it."""
    with pytest.raises(Refused):
        braze.compile(program, backend=second_graph_raises(Refused()))(torch.ones(3))
    assert torch.is_grad_enabled()
