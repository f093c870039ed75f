"""Frames of broken calls that run as they are, though tensors may be computed there, are told of once."""

from __future__ import annotations

import gc
import json
import logging
import signal
from collections.abc import Iterator
from typing import Any

import einops
import pytest
import torch

import braze
from braze.support import trace
from tests.helpers import logged

X = torch.arange(3.0)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def parts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield doubled(x)
    yield x + 1


def calls_broken(x: torch.Tensor) -> Any:
    exec("pass")  # what such a frame calls from here on is captured frame by frame
    return sum(parts(x)) + sum(parts(x)), einops.rearrange(x, "a -> a 1")


def test_generators_and_libraries_in_broken_calls_are_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    braze.reset()
    compiled = braze.compile(calls_broken, backend="eager")
    with caplog.at_level(logging.INFO, "braze.graph_breaks"), logged() as said:
        for _ in range(3):
            compiled(X)
    ours = ("parts (", "library einops")  # other tests have other libraries' code run first here
    told = [message for message in said if "as it is" in message and any(name in message for name in ours)]
    assert len(told) == 2
    assert "BZ1009: parts" in told[0] and __file__ in told[0] and "what it calls is captured" in told[0]
    assert "BZ1019" in told[1] and "the library einops" in told[1]


def test_explain_tells_of_them() -> None:
    braze.reset()
    found = braze.explain(calls_broken, backend="eager")(X)
    ours = [text for text in found.uncaptured if "parts" in text or "library einops" in text]
    assert [text.split(":")[0] for text in ours] == ["BZ1009", "BZ1019"]
    assert "Run as it is in broken calls" in str(found)


def test_what_such_a_generator_calls_is_captured() -> None:
    braze.reset()
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    braze.compile(calls_broken, backend=backend)(X)
    assert len(graphs) == 1


class Watching:
    """A callback of the garbage collector that is an object."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        self.seen.append(phase)


def collects(x: torch.Tensor) -> torch.Tensor:
    exec("pass")
    gc.collect()
    return x + 1


def test_what_the_collector_calls_is_captured_in_no_broken_call() -> None:
    """It comes between any two steps: a variant for each of its arguments helps nobody."""
    braze.reset()
    watching, phases = Watching(), []

    def callback(phase: str, info: dict[str, int]) -> None:
        phases.append(phase)

    gc.callbacks.extend([watching, callback])
    try:
        found = braze.explain(collects, backend="eager")(X)
        braze.compile(collects, backend="eager")(X)
    finally:
        gc.callbacks.remove(watching)
        gc.callbacks.remove(callback)
    assert phases == watching.seen and {"start", "stop"} <= set(phases)
    assert "callback" not in str(found) and "Watching" not in str(found)


def interrupted(x: torch.Tensor) -> torch.Tensor:
    exec("pass")
    signal.raise_signal(signal.SIGUSR1)
    return x + 1


def test_a_handler_of_a_signal_is_captured_in_no_broken_call() -> None:
    braze.reset()
    came = []

    def handler(number: int, frame: Any) -> None:
        came.append(number)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        found = braze.explain(interrupted, backend="eager")(X)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came and "handler" not in str(found)


class Row:
    def __init__(self, number: int) -> None:
        self.number, self.name, self.values = number, f"row {number}", torch.ones(3, number % 2 + 2)


def as_text(row: Row) -> Any:
    return row.name.upper()


def with_shape(row: Row) -> Any:
    return row.name.upper(), row.values.shape[0]


def captures_of(default: Any) -> int:
    """How often a function is captured that ``json`` calls with objects which differ from call to call."""
    name = default.__name__

    def program(x: torch.Tensor, rows: list[Row]) -> Any:
        return x + 1, json.dumps(rows, default=default)

    compiled = braze.compile(program, backend="eager")
    with trace.collect() as events:
        for i in range(12):
            rows = [Row(i * 7 + k) for k in range(4)]
            assert compiled(X, rows)[1] == program(X, rows)[1]
    return sum(kind == "capture" and told.name == name for kind, told in events)


def test_a_function_of_a_broken_call_that_meets_no_tensor_is_not_captured_for_each_object() -> None:
    braze.reset()
    assert captures_of(as_text) == 3
    assert captures_of(with_shape) > 3
