"""When a compiled function is compiled again, and when it is not."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from braze.support import trace


class Compiled:
    """A compiled function that counts the graphs its backend got."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.graphs = 0
        self.misses: list[str] = []
        self.compiled = braze.compile(fn, backend=self.backend, **options)

    def backend(self, gm: Any, examples: Any) -> Any:
        self.graphs += 1
        return gm.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with trace.collect() as events:
            result = self.compiled(*args, **kwargs)
        self.misses += [p.misses[0].text for kind, p in events if kind == "recompile" and p.misses]
        return result


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    braze.reset()
    yield
    braze.reset()


def test_the_same_shapes_compile_once() -> None:
    f = Compiled(lambda x, k: x * k)
    for _ in range(3):
        f(torch.rand(2, 3), 2)
    assert f.graphs == 1


def test_a_second_batch_size_makes_it_dynamic() -> None:
    def mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w).sum(1)

    f, w = Compiled(mlp), torch.rand(3, 5)
    for n in (4, 7, 9, 30, 2, 4):
        x = torch.rand(n, 3)
        assert torch.allclose(f(x, w), mlp(x, w))
    assert f.graphs == 2
    assert "x is float32[4, 3]" in f.misses[0] and "now float32[7, 3]" in f.misses[0]


def test_sizes_zero_and_one_are_their_own() -> None:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x / x.shape[0] if x.shape[0] else x

    f = Compiled(scale)
    for n in (3, 4, 1, 0, 5, 1, 0):
        x = torch.rand(n, 2)
        assert torch.equal(f(x), scale(x))
    assert f.graphs <= 4


def test_a_condition_on_a_symbolic_size_is_a_guard() -> None:
    def either(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 8 else x - 1

    f = Compiled(either)
    for n in (4, 5, 6, 12, 13, 7, 20):
        x = torch.rand(n)
        assert torch.equal(f(x), either(x))
    assert f.graphs == 3


def test_strided_inputs_are_told_apart() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    f = Compiled(double)
    for x in (torch.rand(4, 4), torch.rand(4, 4).t(), torch.rand(8, 4)[::2], torch.rand(1, 4).expand(4, 4)):
        assert torch.equal(f(x), x + x)
        assert f(x).stride() == double(x).stride()


def test_dtype_grad_mode_and_requires_grad_are_guarded() -> None:
    f = Compiled(lambda x: x * 2)
    x = torch.rand(3)
    f(x)
    assert f(x.double()).dtype == torch.float64
    with torch.no_grad():
        assert not f(x).requires_grad
    assert f(x.clone().requires_grad_()).requires_grad
    assert f.graphs == 4


def test_arguments_that_alias_are_told_apart() -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    f = Compiled(write)
    a, b = torch.zeros(2), torch.zeros(2)
    assert torch.equal(f(a, b), torch.zeros(2))
    assert torch.equal(f(b, b), torch.full((2,), 2.0))
    assert torch.equal(f(a, b), torch.full((2,), 2.0))


class Scaled(torch.nn.Module):
    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k


def test_a_changed_attribute_is_named() -> None:
    module = Scaled(2.0)
    f = Compiled(module)
    f(torch.ones(1))
    module.k = 3.0
    assert f(torch.ones(1)).item() == 3
    assert f.graphs == 2 and "self.k == 2.0; now 3.0" in f.misses[0]


FACTOR = 2


def test_a_changed_global_is_seen() -> None:
    global FACTOR
    FACTOR = 2
    f = Compiled(lambda x: x * FACTOR)
    assert f(torch.ones(1)).item() == 2
    FACTOR = 5
    assert f(torch.ones(1)).item() == 5
    assert f.graphs == 2


class Heard(logging.Handler):
    """Keeps the messages of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def heard() -> Iterator[list[str]]:
    handler, log = Heard(), logging.getLogger("braze.recompiles")
    log.addHandler(handler)
    yield handler.messages
    log.removeHandler(handler)


def test_past_the_limit_it_stays_compiled(heard: list[str]) -> None:
    compiled = braze.compile(lambda x, k: x * float(k), backend="eager", options={"recompile_limit": 3})
    with trace.collect() as events:
        for i in range(8):
            assert compiled(torch.ones(2), f"{i}.5")[0].item() == i + 0.5
    assert sum(kind == "capture" for kind, _ in events) == 8 and len(compiled.variants) <= 4
    loud = [message for message in heard if "BZ1101" in message]
    assert len(loud) == 1 and "k == " in loud[0]


def test_many_layers_with_a_break_each_are_no_recompiles_of_one() -> None:
    hidden = braze.disable(lambda x: x)

    class Layer(torch.nn.Module):
        def __init__(self, k: int) -> None:
            super().__init__()
            self.k = k
            self.fc = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return hidden(self.fc(x)) * self.k

    model = torch.nn.Sequential(*[Layer(i) for i in range(12)]).eval()
    x = torch.rand(3, 2)
    f = Compiled(model)
    for _ in range(3):
        assert torch.allclose(f(x), model(x))
    graphs = f.graphs
    f(x)
    assert f.graphs == graphs


def test_a_dropped_function_frees_its_variants() -> None:
    module = Scaled(2.0)
    f = Compiled(module)
    f(torch.ones(1))
    alive = weakref.ref(module)
    del module, f
    gc.collect()
    assert alive() is None


def test_threads_share_one_compile() -> None:
    f = Compiled(lambda x: torch.relu(x) + 1)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(f(torch.ones(2)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert f.graphs == 1 and all(torch.equal(r, torch.full((2,), 2.0)) for r in results) and len(results) == 8


def test_reset_compiles_afresh() -> None:
    f = Compiled(lambda x: x + 1)
    f(torch.ones(1))
    braze.reset()
    f(torch.ones(1))
    assert f.graphs == 2
