"""Losses of models and the gradients of their parameters, through braze's own kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.inspect.explain import observe
from tests.helpers import as_double
from tests.models.test_catalogue import TRANSFORMERS

NAMES = (
    "bert-classify bert-masked electra-tokens gpt2-labels llama-labels qwen3 t5-labels bart-labels modernbert-tokens"
    " vit swin resnet wav2vec2-classify whisper-classify distilbert-questions"
).split()
CASES = [case for case in TRANSFORMERS if case.name in NAMES]


@pytest.fixture(autouse=True)
def fresh():
    yield
    braze.reset()


def gradients(call: Any, model: nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor | None]:
    """The loss and the gradient of each parameter."""
    model.zero_grad()
    loss = call(**inputs).loss
    loss.backward()
    return [loss.detach().clone(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_are_as_exact_as_eagers(case):
    if case.missing():
        pytest.skip(case.missing())
    model, inputs = case.make(), case.inputs(2)
    theirs = gradients(model, model, inputs)
    ours: list[Any] = []
    compiled = braze.compile(model)
    found = observe(lambda: ours.extend(gradients(compiled, model, inputs)), case.name)
    double = as_double(case.make())
    exact = gradients(double, double, as_double(inputs))
    assert not found.breaks and len(found.graphs) == 1
    assert found.kernels
    # a gradient that is zero by symmetry (a bias of keys) is as exact as the others are large
    largest = max(float(c.abs().max()) for c in exact if c is not None)
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert (a is None) == (b is None) == (c is None)
        if a is None or b is None or c is None:
            continue
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        error, eager = (a.double() - c).square().mean().sqrt(), (b.double() - c).square().mean().sqrt()
        room = torch.finfo(b.dtype).eps * (16 * float(c.abs().max()) + largest)
        assert float(error) <= 2 * float(eager) + room, (float(error), float(eager), float(c.abs().max()))


def test_all_are_there():
    assert len(CASES) == len(NAMES)
