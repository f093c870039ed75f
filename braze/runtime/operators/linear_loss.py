"""``braze::linear_cross_entropy``: a linear layer and the cross entropy of its result, some rows at a time.

The logits of a large vocabulary are the largest tensors of a training step. Here they never exist whole: of each chunk of
rows come the logits, their part of the loss and, at once, their part of the gradients of the layer's arguments, for a
gradient of the loss of 1. The backward then only scales them. So do the chunked loss of Liger Kernel (Hsu et al., "Liger
Kernel: Efficient Triton Kernels for LLM Training", 2024) and, in one kernel, "Cut Your Losses in Large-Vocabulary Language
Models" (Wijmans et al., 2024). Computing the logits again in the backward would save the gradients' memory between the halves
and cost a third more products: measured, a fifth to a third of the loss's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Tensor = torch.Tensor

_library = torch.library.Library("braze", "FRAGMENT")
_library.define(
    "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor? class_weight, bool mean, "
    "int ignore_index, float label_smoothing, float softcap, ScalarType dtype, ScalarType loss_dtype, int rows, "
    "bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _run(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    mean: bool,
    ignore_index: int,
    label_smoothing: float,
    softcap: float,
    dtype: torch.dtype,
    loss_dtype: torch.dtype,
    rows: int,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and its gradients by hidden values, weight and bias; an empty tensor for one that is not wanted."""
    kept, safe = _targets(target, ignore_index, weight.shape[0])
    wide = torch.promote_types(dtype, torch.float32)
    counts = kept.to(wide) if class_weight is None else class_weight.to(wide)[safe].where(kept, 0)
    total = counts.sum()
    # a row that does not count has gradients of 0 also where none counts
    scales = (counts / total).where(kept, 0) if mean else counts
    head = _Head(hidden, weight, bias, dtype, wide, rows, wanted)
    losses = hidden.new_empty(len(hidden), dtype=wide)
    for start in range(0, len(hidden), rows):
        part = slice(start, start + rows)
        at = safe[part, None]
        logits = head.logits(part)
        if softcap:
            logits.div_(softcap).tanh_().mul_(softcap)
        found = head.second(logits)
        torch.log_softmax(logits, 1, out=found)
        loss = -found.gather(1, at)[:, 0]
        if label_smoothing:
            loss = loss * (1 - label_smoothing) - found.mean(1) * label_smoothing
        losses[part] = (loss * counts[part]).where(kept[part], 0)
        if not any(wanted):
            continue
        scale = scales[part, None]
        gradient = found.exp_()
        if label_smoothing:
            gradient.sub_(label_smoothing / weight.shape[0])
        gradient.mul_(scale).scatter_add_(1, at, scale * (label_smoothing - 1))
        if softcap:
            gradient.mul_(logits.div_(softcap).square_().neg_().add_(1))
        head.pull_back(part, gradient)
    loss = losses.sum() / total if mean else losses.sum()
    return loss.to(loss_dtype), *head.gradients()


class _Head:
    """The linear layer, its buffers for the rows of one chunk, and the gradients so far."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        wide: torch.dtype,
        rows: int,
        wanted: Sequence[bool],
    ) -> None:
        self.hidden, self.weight, self.bias = hidden, weight, bias
        self.dtype, self.wide = dtype, wide
        self.classes = len(weight)
        more = missing(self.classes, dtype, hidden.device)
        self.cast = _padded(weight.to(dtype), more)
        self.cast_bias = None if bias is None else _padded(bias.to(dtype), more)
        most = min(rows, len(hidden)), self.classes
        self.narrow = hidden.new_empty(most[0], self.classes + more, dtype=dtype)
        self.first = self.narrow if dtype is wide else hidden.new_empty(most, dtype=wide)
        self.other = hidden.new_empty(most, dtype=wide)
        self.of_hidden = (
            torch.empty_like(hidden, memory_format=torch.contiguous_format) if wanted[0] else None
        )
        self.of_weight = hidden.new_empty(weight.shape, dtype=wide) if wanted[1] else None
        self.of_bias = hidden.new_zeros(len(weight), dtype=wide) if wanted[2] else None
        if self.of_weight is not None and not len(hidden):
            self.of_weight.zero_()

    def logits(self, part: slice) -> Tensor:
        """The logits of some rows, in the wide type."""
        h = self.hidden[part].to(self.dtype)
        out = self.narrow[: len(h)]
        if self.cast_bias is None:
            torch.mm(h, self.cast.t(), out=out)
        else:
            torch.addmm(self.cast_bias, h, self.cast.t(), out=out)
        return out if self.dtype is self.wide else self.first[: len(h)].copy_(out[:, : self.classes])

    def second(self, logits: Tensor) -> Tensor:
        """A buffer like the logits'."""
        return self.other[: len(logits)]

    def pull_back(self, part: slice, gradient: Tensor) -> None:
        """Add what the gradient of these logits gives."""
        if self.of_bias is not None:
            self.of_bias += gradient.sum(0)
        if self.dtype is not self.wide:
            narrow = self.narrow[: len(gradient)]  # what is padded is still zero, as the weight's rows are
            narrow[:, : self.classes].copy_(gradient)
            gradient = narrow
        if self.of_hidden is not None:
            self.of_hidden[part] = gradient @ self.cast
        if self.of_weight is None:
            return
        h = self.hidden[part].to(self.dtype)
        if self.dtype is not self.wide:
            product = (gradient.t() @ h)[: self.classes]
            self.of_weight = (
                self.of_weight.copy_(product) if part.start == 0 else self.of_weight.add_(product)
            )
        elif part.start == 0:
            torch.mm(gradient.t(), h, out=self.of_weight)
        else:
            self.of_weight.addmm_(gradient.t(), h)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Those of hidden values, in their type, and of weight and bias in the wide one: they are rounded when scaled."""
        made = (self.of_hidden, self.of_weight, self.of_bias)
        a, b, c = (self.hidden.new_empty(0) if g is None else g for g in made)
        return a, b, c


def missing(classes: int, dtype: torch.dtype, device: torch.device) -> int:
    """By how many classes to pad: a GPU's products of half types take several times as long over rows not aligned to 16 bytes."""
    return -classes % 8 if device.type == "cuda" and dtype.itemsize == 2 else 0


def _padded(values: Tensor, more: int) -> Tensor:
    """With so many rows of zeros more."""
    return torch.cat([values, values.new_zeros(more, *values.shape[1:])]) if more else values


def _targets(target: Tensor, ignore_index: int, classes: int) -> tuple[Tensor, Tensor]:
    """Which targets count, and the targets with 0 for those that do not; raises eager's error."""
    kept = target != ignore_index
    safe = target.where(kept, 0).long()
    if target.device.type == "cpu":
        outside = (safe < 0) | (safe >= classes)
        if bool(outside.any()):
            raise IndexError(f"Target {int(safe[outside][0])} is out of bounds.")
    return kept, safe


def _shaped(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *_, dtype, loss_dtype, _, wanted = rest
    wide = torch.promote_types(dtype, torch.float32)
    made = [
        x.new_empty(x.shape, dtype=like) if x is not None and want else hidden.new_empty(0)
        for x, like, want in zip((hidden, weight, bias), (hidden.dtype, wide, wide), wanted, strict=True)
    ]
    return hidden.new_empty((), dtype=loss_dtype), made[0], made[1], made[2]


_library.impl("linear_cross_entropy", _run, "CPU")
_library.impl("linear_cross_entropy", _run, "CUDA")
_library.impl("linear_cross_entropy", _shaped, "Meta")

OPERATOR = torch.ops.braze.linear_cross_entropy.default
