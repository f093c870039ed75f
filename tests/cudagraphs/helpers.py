"""What tests of recordings say in the words of the domain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

import braze
from braze.support import trace


class Place:
    """The device on which tests make their tensors: tests/gpu takes the same tests to a GPU."""

    device = "cpu"
    #: what the test has made: held, so that no later input lies by chance where an earlier one lay, and is read there
    made: list[torch.Tensor] = []


def numbers(*shape: int) -> torch.Tensor:
    """Numbers of the standard normal distribution."""
    return held(torch.randn(*shape, device=Place.device))


def filled(value: float, *shape: int) -> torch.Tensor:
    """A tensor of one value."""
    return held(torch.full(shape, value, device=Place.device))


def tensor(data: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of these values."""
    return held(torch.tensor(data, dtype=dtype, device=Place.device))


def held(x: torch.Tensor) -> torch.Tensor:
    Place.made.append(x)
    return x


def placed(module: torch.nn.Module) -> Any:
    """A module on the tests' device."""
    return module.to(Place.device)


def recording(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``fn`` compiled, its calls recorded, however little there is to record."""
    return braze.compile(fn, options={"cudagraphs": True, "cudagraph_launches": 1, **options})


@contextlib.contextmanager
def recordings() -> Iterator[Callable[[], int]]:
    """A function that tells how many recordings were made inside the block so far."""
    before = trace.COUNTERS["cudagraph_recordings"]
    yield lambda: trace.COUNTERS["cudagraph_recordings"] - before


@contextlib.contextmanager
def noted() -> Iterator[Callable[[], list[str]]]:
    """A function that tells the codes of what was noted inside the block, in order."""
    with trace.collect() as events:
        yield lambda: [note.code for kind, note in events if kind == "cudagraph"]


def run(
    program: Callable[..., Any],
    times: int = 6,
    make: Callable[[], torch.Tensor] = lambda: numbers(4, 4),
    **options: Any,
) -> tuple[int, list[str]]:
    """Call a program and its recorded form beside each other; how many recordings were made, and the codes noted."""
    f = recording(program, **options)
    with recordings() as made, noted() as codes:
        for _ in range(times):
            x = make()
            assert_equal(f(held(x.clone())), program(x.clone()))
        return made(), codes()


def assert_equal(ours: Any, theirs: Any) -> None:
    """Two results are the same, in type and layout too; kernels may round otherwise."""
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_equal(a, b)
    else:
        assert ours == theirs
