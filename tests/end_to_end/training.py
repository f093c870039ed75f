"""Small programs with gradients, run compiled beside eager: results, gradients, contents of inputs, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

import braze


def flat(values: Any) -> list[torch.Tensor]:
    """The tensors in a result."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    if isinstance(values, (list, tuple)) or hasattr(values, "__iter__"):
        return [t for value in values for t in flat(value)]
    return []


def loss_of(outputs: Any) -> torch.Tensor:
    """One number that weighs every element of every differentiable output differently."""
    total = torch.zeros((), dtype=torch.float64)
    for k, out in enumerate(flat(outputs)):
        if out.requires_grad:
            out = torch.view_as_real(out) if out.is_complex() else out
            weights = torch.linspace(0.5, 1.5, max(1, out.numel()), dtype=torch.float64)[: out.numel()]
            weights = weights.to(out.device).reshape(out.shape)
            total = total + (k + 1) * (out.double() * weights).sum().cpu()
    return total


class Ran:
    """What a run left: detached outputs, requires_grad of each, gradients and contents of the inputs."""

    def __init__(self, function: Callable[..., Any], inputs: Sequence[Any]) -> None:
        self.inputs = [fresh(x) for x in inputs]
        used = [
            x * 1 if isinstance(x, torch.Tensor) and getattr(x, "is_result", False) else x
            for x in self.inputs
        ]
        outputs = function(*used)
        self.needs = [t.requires_grad for t in flat(outputs)]
        self.outputs = [t.detach().clone() for t in flat(outputs)]
        loss = loss_of(outputs)
        # what an in-place write gave a history is part of what gradients come from
        loss = loss + loss_of([t for t in used if isinstance(t, torch.Tensor) and t.grad_fn is not None])
        if loss.requires_grad:
            loss.backward()
        self.contents = [t.detach().clone() for t in used if isinstance(t, torch.Tensor)]
        self.gradients = [t.grad for t in self.inputs if isinstance(t, torch.Tensor) and t.is_leaf]


def fresh(x: Any) -> Any:
    """A copy of an input: a leaf, with its strides."""
    if isinstance(x, torch.Tensor):
        made = x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad)
        if getattr(x, "is_result", False):
            made.is_result = True
        return made
    return copy.deepcopy(x)


def result(x: torch.Tensor) -> torch.Tensor:
    """Mark an input as the result of an operation rather than a leaf: it may be written in place."""
    x.is_result = True
    return x


def check(function: Callable[..., Any], inputs: Sequence[Any], backend: str = "braze", **options: Any) -> Any:
    """Hold a compiled function to eager, with its gradients; twice, since the second call comes from the guards."""
    braze.reset()
    compiled = braze.compile(function, backend=backend, fullgraph=True, **options)
    want = Ran(function, inputs)
    for _ in range(2):
        have = Ran(compiled, inputs)
        assert have.needs == want.needs
        for ours, theirs in zip(have.outputs, want.outputs, strict=True):
            torch.testing.assert_close(ours, theirs)
        for ours, theirs in zip(have.contents, want.contents, strict=True):
            torch.testing.assert_close(ours, theirs)
        for ours, theirs in zip(have.gradients, want.gradients, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs)
    return compiled
