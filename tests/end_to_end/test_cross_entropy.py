"""Cross entropy over many classes: no log-probabilities in memory, and eager's numbers in every setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.inspect.memory import peak_bytes
from braze.runtime.memory.arena import clear_arenas

ROWS, CLASSES = 96, 2048
WHOLE = {"chunk_losses": False}


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, classes (some ignored), weights of classes, probabilities."""
    torch.manual_seed(0)
    targets = torch.randint(0, CLASSES, (ROWS,))
    targets[::5] = -100
    weights = torch.rand(CLASSES)
    return torch.randn(ROWS, CLASSES), targets, weights, torch.softmax(torch.randn(ROWS, CLASSES), -1)


SETTINGS: dict[str, Callable[..., torch.Tensor]] = {
    "mean": lambda x, t, w, p: F.cross_entropy(x, t),
    "sum": lambda x, t, w, p: F.cross_entropy(x, t, reduction="sum"),
    "none": lambda x, t, w, p: F.cross_entropy(x, t, reduction="none").square().sum(),
    "weights": lambda x, t, w, p: F.cross_entropy(x, t, weight=w),
    "smoothed": lambda x, t, w, p: F.cross_entropy(x, t, label_smoothing=0.1),
    "both": lambda x, t, w, p: F.cross_entropy(x, t, weight=w, label_smoothing=0.1),
    "probabilities": lambda x, t, w, p: F.cross_entropy(x, p),
    "probabilities and both": lambda x, t, w, p: F.cross_entropy(x, p, weight=w, label_smoothing=0.1),
}


def results(fn: Callable[..., torch.Tensor], x: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    loss = fn(x, *rest)
    return [loss.detach(), *torch.autograd.grad(loss, x)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_only_the_gradient_is_as_large_as_the_logits(setting):
    fn, (x, *rest) = SETTINGS[setting], drawn()
    x.requires_grad_()
    compiled = braze.compile(fn, options=WHOLE)
    compiled(x, *rest).backward()
    x.grad = None
    clear_arenas()
    assert peak_bytes(lambda: compiled(x, *rest).backward()) < 1.25 * x.nbytes


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_further_from_float64_than_eager(setting):
    fn, (x, t, w, p) = SETTINGS[setting], drawn()
    ours, eager = results(braze.compile(fn, options=WHOLE), x, t, w, p), results(fn, x, t, w, p)
    exact = results(fn, x.double(), t, w.double(), p.double())
    for mine, theirs, true in zip(ours, eager, exact, strict=True):
        scale = float(true.abs().max())
        assert float((mine - true).abs().max()) <= 2 * float((theirs - true).abs().max()) + 1e-6 * scale


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("special", ["inf", "-inf", "nan", "all -inf", "all ignored"])
def test_special_values_are_eagers(setting, special):
    fn, (x, t, w, p) = SETTINGS[setting], drawn()
    if special == "all ignored":
        t.fill_(-100)
    elif special == "all -inf":
        x[3] = -torch.inf
    else:
        x[3, 7] = x[5, int(t[5].clamp_min(0))] = float(special)
    ours, eager = results(braze.compile(fn, options=WHOLE), x, t, w, p), results(fn, x, t, w, p)
    for mine, theirs in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6, equal_nan=True)


def test_logits_that_a_layer_makes_are_there_once_and_their_gradient_once():
    """Made whole and kept for the backward, which makes their gradient beside them."""
    torch.manual_seed(0)
    h, w = torch.randn(512, 16, requires_grad=True), torch.randn(CLASSES, 16, requires_grad=True)
    t = torch.randint(0, CLASSES, (512,))
    compiled = braze.compile(lambda h, w: F.cross_entropy(F.linear(h, w), t), options=WHOLE)
    compiled(h, w).backward()
    h.grad = w.grad = None
    clear_arenas()
    assert peak_bytes(lambda: compiled(h, w).backward()) < 2.1 * 512 * CLASSES * 4


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16])
def test_targets_of_other_types_are_refused_as_in_eager(dtype: torch.dtype) -> None:
    def run(compile: Any) -> str:
        with pytest.raises(RuntimeError) as info:
            compile(F.cross_entropy)(torch.zeros(4, 5), torch.zeros(4, dtype=dtype))
        return str(info.value).split("\n")[0]

    assert run(braze.compile) == run(lambda fn: fn)


def test_a_function_of_the_losses_of_rows():
    """A focal loss: the backward's kernel reads what it has computed of a row before, and not what was in memory."""
    x, t, _, _ = drawn()

    def focal(x: torch.Tensor) -> torch.Tensor:
        def loss() -> torch.Tensor:
            return F.cross_entropy(x, t, reduction="none")

        return ((1 - torch.exp(-loss())) ** 2 * loss()).mean()

    ours = results(braze.compile(focal, options={"verify": 1}), x.double())
    for mine, theirs in zip(ours, results(focal, x.double()), strict=True):
        torch.testing.assert_close(mine, theirs)
