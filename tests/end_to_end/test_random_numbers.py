"""Dropout in compiled code: drawn anew at each call, the same for the same seed, the same in the backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import braze
from braze.runtime.operators import philox
from tests.helpers import logged


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    braze.reset()
    yield
    braze.reset()


def seeded(fn: Callable[..., Any], *args: Any, seed: int = 3) -> Any:
    torch.manual_seed(seed)
    return fn(*args)


DRAWING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3) + 1,
    "dropout1d": lambda x: F.dropout1d(x, 0.3),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.3, training=True),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.3)) * x,
    "bernoulli_in_place": lambda x: torch.empty_like(x).bernoulli_(0.3) * x,
    "bernoulli_of_p": lambda x: torch.bernoulli(x, 0.3) * x,
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
}


@pytest.mark.parametrize("name", DRAWING)
def test_the_same_seed_gives_the_same_numbers_and_calls_differ(name: str) -> None:
    check_seeds(name, torch.randn(4, 64, 33))


def check_seeds(name: str, x: torch.Tensor) -> None:
    """The same numbers for the same seed, others at the next call and for another seed."""
    compiled = braze.compile(DRAWING[name])
    first = seeded(compiled, x)
    second = compiled(x)
    assert torch.equal(seeded(compiled, x), first)
    assert not torch.equal(first, second)
    assert not torch.equal(seeded(compiled, x, seed=4), first)


@pytest.mark.parametrize("name", DRAWING)
def test_fallback_random_gives_eagers_numbers(name: str) -> None:
    check_fallback(name, torch.randn(4, 64, 33))


def check_fallback(name: str, x: torch.Tensor) -> None:
    """With ``fallback_random`` eager's very numbers."""
    compiled = braze.compile(DRAWING[name], options={"fallback_random": True})
    torch.testing.assert_close(seeded(compiled, x), seeded(DRAWING[name], x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_asked_for(p: float, dtype: torch.dtype) -> None:
    x = torch.ones(200, 1001, dtype=dtype)
    y = seeded(braze.compile(lambda x: F.dropout(x, p)), x)
    assert y.dtype is dtype
    assert abs((y == 0).double().mean().item() - p) < 0.005
    torch.testing.assert_close(y[y != 0].unique(), torch.tensor([1 / (1 - p)], dtype=dtype))
    kept = (y != 0).double()
    assert (kept.mean(0) - (1 - p)).abs().max() < 0.2, "no column is dropped as a whole"
    assert (kept.mean(1) - (1 - p)).abs().max() < 0.08, "no row is dropped as a whole"


def test_the_gradient_is_dropped_where_the_value_was() -> None:
    x = torch.randn(64, 100, requires_grad=True)
    compiled = braze.compile(lambda x: F.dropout(F.dropout(torch.sin(x), 0.4) * 2, 0.2))
    y = compiled(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad == 0, y == 0)
    kept = y != 0
    torch.testing.assert_close(x.grad[kept], (x.cos() * 2 / 0.6 / 0.8)[kept])


@pytest.mark.parametrize("p", [0.5, 1.0])
def test_what_is_dropped_is_zero_times_the_value(p: float) -> None:
    """As in eager: nan where the value, or the gradient that comes in, is not finite, and zero with the value's sign."""
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), -1.0, 1.0]).repeat(200)

    def kinds(values: torch.Tensor) -> list[tuple[int, str]]:
        return sorted({(i % 5, str(v)) for i, v in enumerate(values.tolist())})

    def found(fn: Callable[..., torch.Tensor]) -> list[Any]:
        one = torch.ones_like(x, requires_grad=True)
        fn(one, p).backward(x)
        assert one.grad is not None
        return [kinds(fn(x, p)), kinds(one.grad)]

    assert found(braze.compile(lambda x, p: F.dropout(x, p))) == found(F.dropout)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("p", [0.0, 1.0])
@pytest.mark.parametrize("layer", [F.dropout, F.dropout1d, F.alpha_dropout, F.feature_alpha_dropout])
def test_nothing_is_drawn_where_nothing_or_all_is_dropped(layer, p, grad) -> None:
    x = torch.randn(4, 5, 6).requires_grad_(grad)
    for fallback in (False, True):
        for fn in (layer, braze.compile(layer, options={"fallback_random": fallback})):
            before = torch.get_rng_state()
            fn(x, p, training=True)
            assert torch.equal(torch.get_rng_state(), before)


def test_layers_that_drop_draw_apart() -> None:
    x = torch.ones(50, 100)
    a, b = braze.compile(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)))(x)
    assert 0.4 < (a == b).double().mean() < 0.6


def test_in_eval_nothing_is_drawn() -> None:
    layer = torch.nn.Dropout(0.5).eval()
    x = torch.randn(9)
    state = torch.get_rng_state()
    assert torch.equal(braze.compile(layer)(x), x)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_generator_of_the_users_own_gives_its_numbers() -> None:
    def draw(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.bernoulli(x, generator=generator)

    x = torch.full((40, 40), 0.4)
    ours = braze.compile(draw)(x, torch.Generator().manual_seed(5))
    assert torch.equal(ours, draw(x, torch.Generator().manual_seed(5)))


@pytest.mark.parametrize("shape", [(7,), (3, 17), (5, 1, 40), ()])
def test_kernels_give_the_numbers_of_the_reference(shape: tuple[int, ...]) -> None:
    seed = torch.tensor(-(2**62) + 12345)
    ours = braze.compile(lambda s: philox.UNIFORM(s, shape) * 1)(seed)
    assert torch.equal(ours, philox.UNIFORM(seed, shape))


def test_the_numbers_are_those_of_philox() -> None:
    """The known answers of Salmon et al.'s library for counters and keys of zeros and of ones."""
    assert philox.philox(0, np.zeros(1))[0].tolist() == [0x6627E8D5]
    assert philox.philox(0, np.zeros(1))[1].tolist() == [0xE169C58D]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_fallback_random_draws_by_place_in_memory(grad: bool, dynamic: bool | None, inplace: bool) -> None:
    """Eager draws a mask in the order of memory, which is not that of rows after a transpose."""

    def dropped(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.transpose(0, 1) * 2, 0.5, True, inplace)

    x = torch.ones(3, 4, 5).requires_grad_(grad)
    torch.manual_seed(3)
    expected = dropped(x)
    torch.manual_seed(3)
    found = braze.compile(dropped, dynamic=dynamic, options={"fallback_random": True})(x)
    assert torch.equal(found, expected)


def test_fallback_random_in_a_layer_of_a_transformer() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    x = torch.linspace(-1, 1, 80).reshape(2, 5, 8)
    torch.manual_seed(3)
    expected = layer(x)
    torch.manual_seed(3)
    with logged() as told:
        torch.testing.assert_close(braze.compile(layer, options={"fallback_random": True})(x), expected)
    assert not told


@pytest.mark.parametrize("p", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.int64])
def test_as_many_are_drawn_as_asked_for(p: float, dtype: torch.dtype) -> None:
    x = torch.zeros(200, 1001, dtype=dtype)
    for fn in (lambda x: torch.bernoulli(x, p), lambda x: x.clone().bernoulli_(p)):
        y = seeded(braze.compile(fn), x)
        assert y.dtype is dtype
        assert set(y.unique().tolist()) <= {0, 1}
        share = y.double().mean().item()
        assert abs(share - p) < 0.005 and (share == p or p == 0.2)


BY_GENERATOR: dict[str, Callable[..., torch.Tensor]] = {
    "of p": lambda x, g: torch.bernoulli(x, 0.4, generator=g),
    "in place": lambda x, g: x.clone().bernoulli_(0.4, generator=g),
    "in place by a tensor": lambda x, g: x.clone().bernoulli_(x, generator=g),
}


@pytest.mark.parametrize("name", BY_GENERATOR)
def test_a_generator_of_the_users_own_is_drawn_from(name: str) -> None:
    fn, x = BY_GENERATOR[name], torch.full((40, 40), 0.4)
    ours, theirs = (torch.Generator().manual_seed(5) for _ in range(2))
    before = torch.get_rng_state()
    compiled = braze.compile(fn)
    for _ in range(2):
        assert torch.equal(compiled(x, ours), fn(x, theirs))
    assert torch.equal(ours.get_state(), theirs.get_state())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_call_that_only_fakes_refuse_draws_from_a_generator_once() -> None:
    """Fakes take no varying sizes beside a generator, so that the call is tried while tracing, to hear what eager says of it."""

    def draw(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(x.shape[0], 2, generator=generator)

    ours, theirs = (torch.Generator().manual_seed(5) for _ in range(2))
    compiled = braze.compile(draw, dynamic=True)
    for rows in (3, 3, 4):
        x = torch.ones(rows)
        assert torch.equal(compiled(x, ours), draw(x, theirs))
    assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
@pytest.mark.parametrize("name", ["of p", "in place", "native_dropout"])
def test_what_is_no_probability_is_eagers_error(name: str, p: float) -> None:
    fns = {
        "of p": lambda x: torch.bernoulli(x, p),
        "in place": lambda x: x.clone().bernoulli_(p),
        "native_dropout": lambda x: torch.native_dropout(x, p, True)[0],
    }
    told = []
    for fn in (fns[name], braze.compile(fns[name])):
        with pytest.raises(RuntimeError) as error:
            fn(torch.zeros(5))
        told.append(str(error.value).split("\n")[0])
    assert told[1] == told[0]


@pytest.mark.parametrize(("p", "train"), [(0.0, True), (1.0, True), (0.3, False), (1.0, False)])
def test_native_dropout_where_nothing_is_drawn(p: float, train: bool) -> None:
    def dropped(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.native_dropout(x, p, train)

    x = torch.tensor([1.0, -2.0, 0.0, 3.0])
    for ours, theirs in zip(braze.compile(dropped)(x), dropped(x), strict=True):
        torch.testing.assert_close(ours, theirs)
