"""An error of a call or of its compile keeps nothing of its callers, once it is handled: no cycle has the frames that it passed, with all tensors in them."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from braze.aot.stage import partition
from tests.helpers import logged


class Held:
    """What a caller has in a variable."""


def raising_at(number: int) -> Callable[..., Any]:
    """A backend that raises for one of its graphs."""
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        if len(graphs) == number:
            raise RuntimeError("no backend for this graph")
        return graph.forward

    return backend


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    braze.graph_break()
    return y.cos()


def broken_in_a_block(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.sin()
        braze.graph_break()
        return y.cos()


def generated(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x


def looked_up(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i]


def without_cycles(call: Callable[[], Any]) -> bool:
    """Whether what the caller had is gone where nobody looks for cycles."""

    def caller() -> weakref.ref[Held]:
        held = Held()
        with contextlib.suppress(Exception):
            call()
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        return caller()() is None
    finally:
        gc.enable()


ARGUMENT = torch.ones(3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: braze.compile(broken, backend=raising_at(1))(ARGUMENT),
        lambda: braze.compile(broken, backend=raising_at(2))(ARGUMENT),
        lambda: braze.compile(broken_in_a_block, backend=raising_at(2))(ARGUMENT),
        lambda: braze.compile(broken, fullgraph=True)(ARGUMENT),
        lambda: braze.compile(generated, fullgraph=True)(ARGUMENT),
        lambda: braze.compile(looked_up)(ARGUMENT, torch.tensor([9])),
    ],
    ids=["a backend", "a backend behind a break", "in a block", "a break", "a generator", "an index"],
)
def test_an_error_that_was_handled_keeps_nothing_of_who_handled_it(call: Callable[[], Any]) -> None:
    with pytest.raises(Exception):
        call()
    assert without_cycles(call)


@pytest.mark.provokes("BZ9025")
def test_a_stage_that_failed_keeps_nothing_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.utils.swap_tensors`` of a weight was refused behind it, since a result held the weight until cycles were collected."""
    monkeypatch.setattr(partition, "_partition", len)  # which takes no such arguments
    with logged() as lines:
        compiled = braze.compile(lambda x: x.sin(), backend="aot_eager", options={"verify": 0})
        assert without_cycles(lambda: compiled(ARGUMENT))
    assert "BZ9025" in "\n".join(lines)
