"""Programs that write to tensors, run compiled beside eager: all that a caller can see of the memory afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
Make = Callable[[], Sequence[Tensor]]
#: why eager refuses to write to a part of what ``chunk`` and its like give
MANY = "the output of a function that returns multiple views"


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """The same numbers at each call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def relations(tensors: Sequence[Tensor]) -> list[tuple[bool, int | None]]:
    """Of each two tensors: whether they are one object, and how far apart they begin if they share memory."""
    found = []
    for i, a in enumerate(tensors):
        for b in tensors[:i]:
            shared = bool(a.numel() and b.numel()) and (
                a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
            )
            found.append((a is b, a.data_ptr() - b.data_ptr() if shared else None))
    return found


def result_like(leaf: Tensor) -> Tensor:
    """The result of an operation on a leaf, with its place in memory: in a window, gaps and all."""
    made = leaf * 1
    if made.stride() == leaf.stride():
        return made
    reach = 1 + sum((n - 1) * step for n, step in zip(leaf.shape, leaf.stride(), strict=True))
    memory = torch.zeros(leaf.storage_offset() + reach, dtype=leaf.dtype)
    place = leaf.shape, leaf.stride(), leaf.storage_offset()
    return memory.as_strided_scatter(made, *place).as_strided(*place)


class Seen:
    """What a call left: results, contents of the arguments, who shares whose memory, who was marked as changed, gradients."""

    def __init__(self, call: Callable[..., Any], make: Make, grad: bool = False) -> None:
        leaves = list(make())
        given = leaves
        if grad:
            leaves = [t.requires_grad_() if t.is_floating_point() else t for t in leaves]
            given = [result_like(t) if t.requires_grad else t for t in leaves]
        versions = [t._version for t in given]
        self.error: tuple[str, str] | None = None
        self.values: list[Tensor] = []
        self.facts: dict[str, Any] = {}
        try:
            with torch.set_grad_enabled(grad):
                made = call(*given)
        except RuntimeError as error:
            self.error = type(error).__name__, str(error).split("\n")[0]
            return
        results = [t for t in (made if isinstance(made, (tuple, list)) else (made,)) if isinstance(t, Tensor)]
        self.facts = {
            "relations": relations([*results, *given]),
            "changed": [t._version > before for t, before in zip(given, versions, strict=True)],
            "layouts": [(t.dtype, t.shape, _steps(t)) for t in (*results, *given)],
            "requires_grad": [t.requires_grad for t in (*results, *given)],
        }
        self.values = [t.detach().clone() for t in (*results, *given)]
        if grad:
            ends = [t for t in (*results, *given) if t.requires_grad]
            weights = [torch.linspace(0.5, 1.5, max(t.numel(), 1), dtype=t.dtype)[: t.numel()] for t in ends]
            try:
                loss = sum((w.reshape(t.shape) * t).sum() for w, t in zip(weights, ends, strict=True))
                if isinstance(loss, Tensor):
                    loss.real.backward()
            except (
                RuntimeError
            ) as error:  # what a gradient needs, or the base of a view, was changed in place
                self.error = type(error).__name__, str(error).split(":")[0]
                return
            self.facts["without gradient"] = [t.grad is None for t in leaves]
            self.values += [t.grad for t in leaves if t.grad is not None]


def _steps(t: Tensor) -> list[int]:
    """The strides that reach an element."""
    return [step for size, step in zip(t.shape, t.stride(), strict=True) if size != 1]


def hold_to_eager(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    make: Make,
    grad: bool = False,
    *,
    may_succeed: bool = False,
) -> None:
    """A compiled call leaves behind what an eager one does; ``may_succeed``: where that fails, the compiled one need not."""
    want, have = Seen(eager, make, grad), Seen(compiled, make, grad)
    if want.error is not None and (MANY in want.error[1] or (may_succeed and have.error is None)):
        return  # a view that a compiled function gives was made alone
    assert have.error == want.error
    assert have.facts == want.facts
    for ours, theirs in zip(have.values, want.values, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11, equal_nan=True)
