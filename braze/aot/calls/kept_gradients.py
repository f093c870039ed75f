"""Results that keep their gradients, each the only one of an operation of autograd's.

PyTorch looks for what keeps a tensor's gradient at the place that the tensor has among its operation's results; once the tensor is written in
place it has the first of another operation's, and is looked for there. So a result that keeps its gradient and is not the first of its operation
is handed out by one more, which does nothing: in the same memory, counting the same writes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from braze.native.torch_state import hidden_from_dynamo
from braze.runtime.call.boxed import Boxed, boxed


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: torch.Tensor) -> torch.Tensor:
        return result.detach()

    @staticmethod
    @hidden_from_dynamo
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def on_its_own(result: torch.Tensor) -> torch.Tensor:
    """A result as the only one of an operation."""
    return _Own.apply(result)  # type: ignore[no-any-return]


def with_results_on_their_own(run: Boxed, places: Collection[int]) -> Boxed:
    """``run``, whose results at these places are each of an operation of their own; grad mode is on."""

    @boxed
    def call(inputs: Sequence[Any]) -> Sequence[Any]:
        found = list(run(inputs))
        for place in places:
            found[place] = on_its_own(found[place])
        return found

    return call
