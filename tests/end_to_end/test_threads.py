"""Compiled functions called, compiled and compiled again from many threads at once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.capture.dispatch import variants

THREADS = 32
SHAPES = 20


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    braze.reset()
    yield
    braze.reset()
    sys.setswitchinterval(interval)


class Counting:
    """A backend that counts its graphs by the shapes of their inputs."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.running = 0
        self.most_at_once = 0

    def __call__(self, gm: Any, examples: Any, options: Any = None) -> Callable[..., Any]:
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        self.graphs.append(tuple(tuple(e.shape) for e in examples if isinstance(e, torch.Tensor)))
        self.running -= 1
        return gm.forward


def run_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Start all at the same time; the first error of any thread is the test's."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            barrier.wait(60)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    if errors:
        raise errors[0]


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(found, wanted), (found.shape, wanted.shape)


def test_each_shape_is_compiled_once() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w).sum(1) * x.shape[0]

    backend = Counting()
    compiled = braze.compile(f, backend=backend, dynamic=False, options={"recompile_limit": 64})
    w = torch.rand(3, 5)
    inputs = [torch.rand(n + 2, 3) for n in range(SHAPES)]
    wanted = [f(x, w) for x in inputs]

    def work(number: int) -> None:
        for turn in range(3):
            for k in range(SHAPES):
                at = (k * (number % 7 + 1) + number + turn) % SHAPES
                same(compiled(inputs[at], w), wanted[at])

    run_threads(work)
    assert sorted(backend.graphs) == sorted(((n + 2, 3), (3, 5)) for n in range(SHAPES))
    assert backend.most_at_once == 1


def test_a_dynamic_one_is_compiled_twice() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x).cumsum(0) + x.shape[0]

    backend = Counting()
    compiled = braze.compile(f, backend=backend)
    inputs = [torch.rand(n + 2, 3) for n in range(SHAPES)]
    wanted = [f(x) for x in inputs]
    run_threads(
        lambda number: [same(compiled(inputs[k]), wanted[k]) for k in (number % SHAPES, *range(SHAPES))]  # type: ignore[func-returns-value, arg-type]
    )
    assert len(backend.graphs) == 2


def test_graph_breaks_and_resumed_frames() -> None:
    def f(x: torch.Tensor, bias: int) -> torch.Tensor:
        x = x * 2
        if x.sum().item() > 0:
            x = x + bias
        else:
            x = x - bias
        return torch.cos(x)

    backend = Counting()
    compiled = braze.compile(f, backend=backend, dynamic=False, options={"recompile_limit": 64})
    inputs = [torch.rand(n // 2 + 2, 3) * (1 if n % 2 else -1) for n in range(SHAPES)]
    wanted = [f(x, 3) for x in inputs]

    def work(number: int) -> None:
        for k in range(SHAPES):
            at = (k + number) % SHAPES
            same(compiled(inputs[at], 3), wanted[at])

    run_threads(work)
    # per size: one graph before the break, and one after it on either side
    assert len(backend.graphs) == 3 * SHAPES // 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x))) * self.scale


def test_one_module_and_many() -> None:
    """Every thread calls a model that all share, and one of its own of the same class."""
    torch.manual_seed(0)
    backend = Counting()
    shared = nn.Sequential(*(Block() for _ in range(3))).eval()
    compiled = braze.compile(shared, backend=backend, dynamic=False, options={"recompile_limit": 64})
    inputs = [torch.rand(n + 2, 4) for n in range(6)]

    def work(number: int) -> None:
        with torch.no_grad():
            own = nn.Sequential(Block(), Block()).eval()
            mine = braze.compile(own, backend="eager", dynamic=False)
            for k in range(6):
                x = inputs[(k + number) % 6]
                same(compiled(x), shared(x))
                same(mine(x), own(x))

    run_threads(work)
    assert len(backend.graphs) == 6


def test_modes_are_those_of_the_calling_thread() -> None:
    """Grad mode and autocast belong to a thread: compiles of one must not be seen by another."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu()

    compiled = braze.compile(f, backend="eager", dynamic=False, options={"recompile_limit": 64})
    w = torch.rand(4, 4, requires_grad=True)

    def work(number: int) -> None:
        for n in range(8):
            x = torch.rand(n % 4 + 2, 4)
            with torch.set_grad_enabled(number % 2 == 0):
                with torch.autocast("cpu", torch.bfloat16, enabled=number % 3 == 0):
                    found, wanted = compiled(x, w), f(x, w)
            assert found.requires_grad == wanted.requires_grad == (number % 2 == 0)
            assert found.dtype is wanted.dtype
            same(found, wanted)

    run_threads(work)


def test_resets_while_others_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 3).amax(1) + 1

    compiled = braze.compile(f, backend="eager", dynamic=False, options={"recompile_limit": 64})
    inputs = [torch.rand(n + 2, 3) for n in range(5)]
    wanted = [f(x) for x in inputs]

    def work(number: int) -> None:
        for k in range(10):
            if number == 0 and k % 3 == 0:
                braze.reset()
            same(compiled(inputs[k % 5]), wanted[k % 5])

    run_threads(work, 12)


def test_kernels_of_ours() -> None:
    """The whole chain: arenas and kernels are each call's own."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.softmax(x @ w, -1)
        return torch.tanh(h @ w.T).cumsum(0) + x

    compiled = braze.compile(f, dynamic=False, options={"recompile_limit": 64})
    w = torch.rand(32, 64)
    inputs = [torch.rand(16 * (n + 1), 32) for n in range(3)]
    with torch.no_grad():
        alone = [compiled(x, w) for x in inputs]
        for x, result in zip(inputs, alone):
            assert torch.allclose(result, f(x, w), atol=1e-4)

    def work(number: int) -> None:
        with torch.no_grad():
            for k in range(30):
                at = (k + number) % 3
                assert torch.allclose(compiled(inputs[at], w), alone[at], atol=1e-5)

    run_threads(work, 16)


def test_first_calls_of_a_kernel_from_all_threads() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(-x).sum(1) * 2

    compiled = braze.compile(f, dynamic=False)
    x = torch.rand(8, 5)
    wanted = f(x)
    from braze.support import trace

    before = trace.snapshot()
    run_threads(lambda number: torch.testing.assert_close(compiled(x), wanted))
    counts = {k: n - before[0].get(k, 0) for k, n in trace.snapshot()[0].items()}
    assert counts["captures"] == 1 and counts["graphs"] == 1


def test_a_reset_inside_a_compile_while_another_thread_waits_to_compile() -> None:
    """A backend of the program's may forget everything: it waits for nobody who waits for it."""
    begun: list[threading.Thread] = []

    def waits(thread: threading.Thread) -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        return frame is not None and frame.f_globals["__name__"] == variants.__name__

    def resetting(gm: Any, examples: Any) -> Callable[..., Any]:
        if not begun:
            begun.append(threading.Thread(target=lambda: second(torch.ones(2)), daemon=True))
            begun[0].start()
            while not waits(begun[0]):
                time.sleep(0.001)
            braze.reset()
        return gm.forward

    first = braze.compile(lambda x: x * 2, backend=resetting)
    second = braze.compile(lambda x: x * 3, backend="eager")
    found: list[torch.Tensor] = []
    caller = threading.Thread(target=lambda: found.append(first(torch.ones(2))), daemon=True)
    caller.start()
    caller.join(60)
    begun[0].join(60)
    assert not caller.is_alive() and not begun[0].is_alive(), "threads wait for each other"
    same(found[0], torch.full((2,), 2.0))
    same(second(torch.ones(2)), torch.full((2,), 3.0))
