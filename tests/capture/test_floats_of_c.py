"""A float that changes from call to call, of which PyTorch's functions take numbers alone in C++: one variant serves all that are computed with alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze

RISING = [0.05 + 0.07 * i for i in range(12)]
LABELS = torch.arange(6) % 5
KEPT = {"fallback_random": True}

Function = Callable[..., Any]


def _running(x: Any, k: float, training: bool = True) -> Any:
    mean, var = torch.zeros(5, dtype=x.dtype), torch.ones(5, dtype=x.dtype)
    return F.batch_norm(x, mean, var, training=training, momentum=k), mean, var


CALLS: dict[str, Function] = {
    "dropout": lambda x, k: F.dropout(x, k),
    "dropout called in C": lambda x, k: torch.dropout(x, p=k, train=True),
    "dropout in evaluation": lambda x, k: F.dropout(x, k, False),
    "dropout in place": lambda x, k: F.dropout(x * 2, k, inplace=True),
    "dropout of channels": lambda x, k: F.dropout2d(x[None, ..., None], k),
    "dropout and which are kept": lambda x, k: torch.native_dropout(x, k, True),
    "two dropouts": lambda x, k: F.dropout(F.dropout(x, k) + 1, 1 - k),
    "the same twice": lambda x, k: F.dropout(F.dropout(x, k), k) + 0.5,
    "bernoulli": lambda x, k: x * torch.empty_like(x).bernoulli_(k),
    "drop path": lambda x, k: x * x.new_empty(6, 1).bernoulli_(1 - k).div_(1 - k),
    "normal": lambda x, k: x + torch.empty_like(x).normal_(0, k),
    "normal of a mean": lambda x, k: x + torch.empty_like(x).normal_(mean=-k, std=k),
    "normal of a size": lambda x, k: x + torch.normal(k, 1.0, (6, 5)),
    "uniform": lambda x, k: x + torch.empty_like(x).uniform_(-k, k),
    "exponential": lambda x, k: x + torch.empty_like(x).exponential_(k),
    "momentum": _running,
    "eps of batch norm": lambda x, k: F.batch_norm(x, x.new_zeros(5), x.new_ones(5), training=False, eps=k),
    "layer norm": lambda x, k: F.layer_norm(x, (5,), eps=k),
    "group norm": lambda x, k: F.group_norm(x[None], 3, eps=k),
    "instance norm": lambda x, k: F.instance_norm(x[None] * x.abs(), eps=k),
    "smooth l1": lambda x, k: F.smooth_l1_loss(x, x * 2 + 1, beta=k),
    "huber": lambda x, k: F.huber_loss(x, x * 2 + 1, delta=k),
    "smoothed labels": lambda x, k: F.cross_entropy(x, LABELS, label_smoothing=k),
    "smoothed and weighted": lambda x, k: F.cross_entropy(
        x, LABELS, x.detach().abs().sum(0), label_smoothing=k, reduction="sum"
    ),
    "smoothed probabilities": lambda x, k: F.cross_entropy(x, x.detach().softmax(1), label_smoothing=k),
    "margin": lambda x, k: F.margin_ranking_loss(x, x * 2 + 1, x.detach().sign(), margin=k),
    "triplets": lambda x, k: F.triplet_margin_loss(x, x * 2 + 1, x * 3, margin=k),
    "cosines": lambda x, k: F.cosine_embedding_loss(x, x * 2 + 1, LABELS.clamp(max=1) * 2 - 1, margin=k),
    "pad": lambda x, k: F.pad(x, (1, 2), value=k),
    "lerp": lambda x, k: torch.lerp(x, x * 2, k),
    "average": lambda x, k: (x * 1).lerp_(x * 2, 1 - k),
    "power": lambda x, k: x.exp() ** k,
    "double power": lambda x, k: torch.float_power(x.abs() + 0.5, k),
    "power of a number": lambda x, k: float(k) ** x,
    "no numbers": lambda x, k: torch.nan_to_num(x.log(), k, posinf=k * 2, neginf=-k),
    "closeness": lambda x, k: x * torch.isclose(x, x * 2, rtol=k, atol=k / 2),
    "quantile": lambda x, k: torch.quantile(x, k, dim=1),
    "quantile of numbers": lambda x, k: x.log().nanquantile(k),
    "logit": lambda x, k: torch.logit(x.sigmoid(), k if k == k else None),
    "similarity": lambda x, k: F.cosine_similarity(x, x * 2 + 1, eps=k),
    "distance": lambda x, k: F.pairwise_distance(x, x * 2 + 1, eps=k),
    "counts": lambda x, k: F.poisson_nll_loss(x, x.detach().abs(), log_input=False, full=True, eps=k + 5),
    "attention drops": lambda x, k: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=k),
    "attention": lambda x, k: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=k),
    "second derivative": lambda x, k: torch.autograd.grad(
        (torch.lerp(x.exp() ** k, x * x, k)).sum(), x, create_graph=True
    ),
}  # fmt: skip


def outcome(
    f: Function, seed: int, k: Any, dtype: torch.dtype = torch.float64, rows: int = 6, grad: bool = True
) -> Any:
    """What a call gives and leaves: results, gradients, the state of random numbers; or its error."""
    torch.manual_seed(seed)
    x = torch.randn(rows, 5, dtype=torch.float64).to(dtype).requires_grad_(grad)
    try:
        result = f(x, k)
    except Exception as error:
        return type(error), str(error)
    results = list(result) if isinstance(result, tuple) else [result]
    if any(r.requires_grad for r in results):
        sum((r.double() ** 2).sum() for r in results if r.requires_grad).backward()
    return [r.detach() for r in results], x.grad, torch.get_rng_state()


def same(ours: Any, theirs: Any) -> bool:
    """Whether two outcomes are of the same types, strides and numbers but for rounding."""
    if isinstance(theirs, torch.Tensor):
        alike = (
            isinstance(ours, torch.Tensor) and ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
        )
        close = {torch.float64: 1e-9, torch.float32: 1e-4}.get(theirs.dtype, 0)
        return alike and torch.allclose(ours, theirs, rtol=close, atol=close, equal_nan=True)
    if isinstance(theirs, tuple | list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


def told(f: Function, values: Sequence[Any], backend: str, **words: Any) -> int:
    """How often a function is compiled for these floats; each call gives what eager gives."""
    compiled = braze.compile(f, backend=backend, **({} if backend == "eager" else {"options": KEPT}))
    for seed, k in enumerate(values):
        ours, theirs = outcome(compiled, seed, k, **words), outcome(f, seed, k, **words)
        assert same(ours, theirs), (k, ours, theirs)
    return int(compiled.misses)


@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("name", CALLS)
def test_it_is_compiled_for_twice(name: str, backend: str) -> None:
    assert told(CALLS[name], RISING if backend == "eager" else RISING[::2], backend) == 2


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"second derivative"}))
def test_nor_more_often_without_gradients(name: str) -> None:
    assert told(CALLS[name], RISING[:5], "braze", grad=False, dtype=torch.float32) == 2


ODD = (
    0.5,
    0.25,
    0.0,
    1.0,
    0.75,
    -0.0,
    0,
    1,
    True,
    False,
    -0.5,
    1.5,
    math.nan,
    math.inf,
    -math.inf,
    1e-300,
    1 - 2**-53,
    5,
    1e300,
    0.3,
    1e-6,
)
#: those of which each is a kernel of its own, where kernels are built; for one that is nothing special they are built above
APART = (0.0, -0.0, True, math.nan)


@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("name", CALLS)
def test_floats_that_are_treated_otherwise_are_as_in_eager(name: str, backend: str) -> None:
    told(CALLS[name], ODD if backend == "eager" else APART, backend)


class Holder:
    """An object that holds floats."""

    def __init__(self) -> None:
        self.p = 0.0
        self.items = [0.0]


def test_it_may_be_held_anywhere() -> None:
    held, box = Holder(), [0.0]

    def f(x: Any, n: int) -> Any:
        return (
            F.dropout(x, held.p),
            F.dropout(x, held.items[0]),
            F.dropout(x, box[0] * 0.9**2),
            F.dropout(x, 0.2 * (1 + math.cos(n / 100))),
            F.dropout(x, 0.3 * (1 - n / 100)),
        )

    for backend in ("eager", "braze"):
        compiled = braze.compile(f, backend=backend, **({} if backend == "eager" else {"options": KEPT}))
        for n in range(3, 15):
            held.p, held.items[0], box[0] = 0.01 * n, 0.02 * n, 0.03 * n
            assert same(outcome(compiled, n, n), outcome(f, n, n))
        assert compiled.misses == 2


def test_it_may_be_made_of_an_integer_where_nobody_asks_for_gradients() -> None:
    def f(x: Any, n: int) -> Any:
        return F.dropout(x, 0.9**n), F.dropout(x, 0.5 * 0.9**n)

    for backend in ("aot_eager", "braze"):
        compiled = braze.compile(f, backend=backend, **({} if backend == "aot_eager" else {"options": KEPT}))
        for n in (2, 3, 5, 7, 50, 100):
            assert same(outcome(compiled, n, n, grad=False), outcome(f, n, n, grad=False))
        assert compiled.misses == 2
        for n in (0, 1, -1, 1000, 10**6):
            assert same(outcome(compiled, n, n, grad=False), outcome(f, n, n, grad=False))


def test_random_numbers_of_ours_are_those_of_a_graph_for_that_float_alone() -> None:
    def f(x: Any, k: float) -> Any:
        return F.dropout(x, k) + torch.empty_like(x).bernoulli_(k)

    compiled = braze.compile(f)
    for seed, k in enumerate(RISING):
        assert same(outcome(compiled, seed, k), outcome(braze.compile(f, dynamic=False), seed, k))
    assert compiled.misses == 2


def test_sizes_may_change_beside_it() -> None:
    def f(x: Any, k: float) -> Any:
        return F.dropout(F.layer_norm(x, (5,), eps=k), k)

    for backend in ("eager", "braze"):
        compiled = braze.compile(f, backend=backend, **({} if backend == "eager" else {"options": KEPT}))
        for n, k in enumerate(RISING):
            assert same(outcome(compiled, n, k, rows=3 + n), outcome(f, n, k, rows=3 + n))
        assert compiled.misses == 2


def test_smoothing_over_as_many_classes_as_vary_is_right() -> None:
    def f(x: Any, k: float) -> Any:
        return F.cross_entropy(x.t(), torch.arange(5) % 3, label_smoothing=k)

    compiled = braze.compile(f)
    for n, k in enumerate(RISING[::3]):
        assert same(outcome(compiled, n, k, rows=3 + n), outcome(f, n, k, rows=3 + n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["rms norm", "dropout", "power", "lerp"])
def test_what_cpp_rounds_to_another_type_is_right(name: str, dtype: torch.dtype) -> None:
    """The eps of an RMS norm is rounded to the type: of such nothing is known, and each has a variant."""
    f = CALLS.get(name, lambda x, k: F.rms_norm(x, (5,), eps=k))
    compiled = braze.compile(f, options={**KEPT, "numerics": "eager"})
    for seed, k in enumerate(RISING[:6]):
        ours, theirs = outcome(compiled, seed, k, dtype), outcome(f, seed, k, dtype)
        assert all(map(same, ours[0], theirs[0])) and torch.equal(ours[2], theirs[2]), (k, ours, theirs)


def test_a_checkpoint_draws_the_same_again() -> None:
    def f(x: Any, k: float) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda y: F.dropout(y, k).exp(), x, use_reentrant=False)

    assert told(f, RISING[:5], "braze") == 2
