"""What a compiled forward keeps for its backward: what is in memory anyway, where the rest can be made again from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze

X = torch.randn(64, 200, requires_grad=True)
CLASSES = torch.randint(0, 200, (64,))
WEIGHT = torch.randn(200, requires_grad=True)


def kept(fn: Callable[..., Any], *args: Any) -> list[torch.Tensor]:
    """The tensors that autograd holds for the backward of a compiled call; its gradients are eager's."""
    braze.reset()
    compiled, saved = braze.compile(fn), []
    compiled(*args)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        out = compiled(*args)
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    ours = torch.autograd.grad(out.sum(), wanted)
    eager = torch.autograd.grad(fn(*args).sum(), wanted)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    return saved


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (F.cross_entropy, (X, CLASSES)),
        (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), (X, CLASSES)),
        (lambda x: F.gelu(x) * 2, (X,)),
        (lambda x: torch.square(torch.relu(x) * 3 + 1), (X,)),
        (lambda x, w: F.layer_norm(x, (200,), w), (X, WEIGHT)),
    ],
    ids=["cross_entropy", "label_smoothing", "gelu", "chain", "layer_norm"],
)
def test_the_argument_is_kept_and_little_else(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    large = [t for t in kept(fn, *args) if t.numel() >= X.numel()]
    assert [t.data_ptr() for t in large] == [X.data_ptr()]


def test_of_a_chain_of_costly_functions_the_result_is_kept_too_and_nothing_between() -> None:
    """Both functions would be computed again, which takes a processor longer than to read what it returned."""
    large = [t for t in kept(lambda x: torch.sigmoid(torch.sin(x) * 3 + 1), X) if t.numel() >= X.numel()]
    assert len(large) == 2 and any(t.data_ptr() == X.data_ptr() for t in large)


def test_a_softmax_that_is_returned_is_kept_itself() -> None:
    saved = kept(lambda x: torch.softmax(x * 2, -1), X)
    assert sum(t.numel() for t in saved) <= X.numel()


def test_what_a_product_reads_is_kept_as_it_is() -> None:
    a, b = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    saved = kept(lambda a, b: torch.relu(a) @ b, a, b)
    assert sum(t.numel() for t in saved) <= 3 * a.numel()
