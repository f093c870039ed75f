"""What a caller can tell of the tensors that a call leaves: where they lie, whose memory they share, what autograd says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor


class Sighting:
    """One call: its results and arguments, as a caller finds them."""

    def __init__(self, call: Callable[..., Any], given: Sequence[Any]) -> None:
        arguments = [t for t in given if isinstance(t, Tensor)]
        versions = [t._version for t in arguments]
        self.error = ""
        made: Any = ()
        try:
            made = call(*given)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        self.results = [made] if isinstance(made, Tensor) else [t for t in made if isinstance(t, Tensor)]
        self.tensors = [*self.results, *arguments]
        self.layouts = [(t.dtype, tuple(t.shape), steps(t)) for t in self.tensors]
        self.refused = ""
        self.autograd = [told_by_autograd(t) for t in self.tensors]
        self.relations = [self._relation(i, j) for i in range(len(self.tensors)) for j in range(i)]
        self.changed = [
            now != was for now, was in zip([t._version for t in arguments], versions, strict=True)
        ]
        memory = {t.untyped_storage().data_ptr(): t.detach() for t in arguments}
        everything = [*self.tensors, *[torch.empty(0).set_(t.untyped_storage()) if t.dtype is torch.float32 else t for t in memory.values()]]  # fmt: skip
        self.values = [t.detach().clone() for t in everything]
        try:
            self.gradients = self._gradients(arguments)
        except RuntimeError as error:  # what autograd refuses
            self.gradients = []
            self.refused = str(error)

    def _relation(self, i: int, j: int) -> tuple[Any, ...]:
        """Whether two are one object, how far apart they begin if they share memory, and which is a view of which."""
        a, b = self.tensors[i], self.tensors[j]
        shared = bool(a.numel() and b.numel()) and (
            a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        )
        bases = (a._base is b, b._base is a, a._base is not None and a._base is b._base)
        return a is b, a.data_ptr() - b.data_ptr() if shared else None, bases if shared else None

    def _gradients(self, arguments: Sequence[Tensor]) -> list[Any]:
        leaves = {id(t): t for a in arguments for t in (a, a._base) if t is not None and t.is_leaf}
        wanted = [t for t in leaves.values() if t.requires_grad]
        if self.error or not wanted:
            return []
        loss = torch.zeros(())
        for t in self.results:
            if t.grad_fn is not None:
                loss = loss + (t * torch.arange(1.0, t.numel() + 1).view(t.shape)).sum()
        if loss.grad_fn is None:
            return []
        return list(torch.autograd.grad(loss, wanted, allow_unused=True))


def told_by_autograd(t: Tensor) -> tuple[Any, ...]:
    """What autograd says of a tensor, or why it says nothing."""
    try:
        return t.requires_grad, t.is_leaf, t.grad_fn is not None, t.is_inference()
    except RuntimeError as error:
        return (str(error),)


def steps(t: Tensor) -> tuple[int, ...]:
    """The strides that matter."""
    return tuple(s if n > 1 else 0 for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else ()


def difference(call: Callable[..., Any], eager: Callable[..., Any], make: Callable[[], Sequence[Any]]) -> str:
    """What tells a compiled call from eager's; nothing, where they are alike."""
    theirs, ours = Sighting(eager, make()), Sighting(call, make())
    for name in ("error", "layouts", "autograd", "relations", "changed", "refused"):
        a, b = getattr(theirs, name), getattr(ours, name)
        if a != b:
            return f"{name}: {b}, not {a}"
    for name in ("values", "gradients"):
        for i, (a, b) in enumerate(zip(getattr(theirs, name), getattr(ours, name), strict=True)):
            if (a is None) is not (b is None) or (
                a is not None and not torch.allclose(a, b, atol=1e-5, equal_nan=True)
            ):
                return f"{name} of tensor {i}: {b}, not {a}"
    return ""
