"""What each algorithm keeps per parameter, and what a kernel for it must be told.

A :class:`Kind` is all that a kernel is generated for: the algorithm, the type of the elements, and how many tensors a
parameter has. Every number that a training run may change (learning rate, betas, weight decay, ...) is given at
run time, in the order of :data:`NUMBERS`.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import torch

from braze.support.dtypes import short
from braze.support.record import record

ADAM = "adam"
SGD = "sgd"

#: how weight decay enters: not at all, added to the gradient, or taken off the parameter first
NO_DECAY, L2, DECOUPLED = 0, 1, 2

#: run-time numbers of a kernel, all doubles
NUMBERS: dict[str, tuple[str, ...]] = {
    ADAM: ("lr", "beta1", "beta2", "eps", "weight_decay", "sign", "decay"),
    SGD: ("lr", "momentum", "dampening", "weight_decay", "sign", "decay"),
}

#: labels of the types that kernels are written for
LABELS = {each: short(each) for each in (torch.float32, torch.float64, torch.bfloat16, torch.float16)}
BYTES = {label: each.itemsize for each, label in LABELS.items()}


@record
class Kind:
    """One kernel: ``dtype`` is a label of the code generators ("f32"); ``states`` the keys of a parameter's state.

    ``nesterov`` is for SGD with momentum.
    """

    algorithm: str
    dtype: str
    states: tuple[str, ...] = ()
    nesterov: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of a row: the parameter, its gradient, its state."""
        return ("p", "g", *(f"s{i}" for i in range(len(self.states))))

    @property
    def numbers(self) -> tuple[str, ...]:
        """The run-time numbers, in order."""
        return NUMBERS[self.algorithm]

    @property
    def columns(self) -> int:
        """Tensors of a row: the parameter, its gradient, its state."""
        return 2 + len(self.states)


@record
class Algorithm:
    """How a class of optimizers is stepped.

    ``kind(group, dtype)``: the kernel for a param group. ``numbers(group)``: its present numbers, or None where
    PyTorch is to refuse them. ``begin(state, p, group)``: fills the empty state of a parameter, as PyTorch's first
    step does. ``counts``: whether each parameter counts its own steps.
    """

    name: str
    kind: Callable[[dict[str, Any], str], Kind]
    numbers: Callable[[dict[str, Any]], tuple[float, ...] | None]
    begin: Callable[[dict[str, Any], torch.Tensor, dict[str, Any]], None]
    counts: bool


def plain(*settings: Any) -> tuple[float, ...] | None:
    """Settings of a group as floats; None if there is one that is no number, which is PyTorch's to refuse."""
    found = []
    for setting in settings:
        value = setting
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if not isinstance(value, (float, int)) and not isinstance(value, numbers.Real):
            return None
        found.append(float(value))
    return tuple(found)


def adam_kind(group: dict[str, Any], dtype: str) -> Kind:
    states = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    return Kind(ADAM, dtype, states if group["amsgrad"] else states[:2])


def adam_numbers(group: dict[str, Any]) -> tuple[float, ...] | None:
    """The present numbers of a param group of Adam or AdamW."""
    betas, decay = group["betas"], group["weight_decay"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        return None
    found = plain(group["lr"], *betas, group["eps"], decay)
    # PyTorch divides by 1 - beta1^step, and takes the root of 1 - beta2^step
    if found is None or found[1] >= 1 or found[2] > 1:
        return None
    mode = NO_DECAY if found[-1] == 0 else DECOUPLED if group.get("decoupled_weight_decay") else L2
    return *found, -1.0 if group["maximize"] else 1.0, float(mode)


def adam_begin(state: dict[str, Any], p: torch.Tensor, group: dict[str, Any]) -> None:
    """Step 0 and zeros; the count is a tensor on the CPU, or beside the parameter for ``fused``."""
    if state:
        return
    if group["fused"]:
        state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
    else:
        wide = torch.get_default_dtype() == torch.float64
        state["step"] = torch.tensor(0.0, dtype=torch.float64 if wide else torch.float32, device="cpu")
    for key in adam_kind(group, "f32").states:
        state[key] = torch.zeros_like(p, memory_format=torch.preserve_format)


def sgd_kind(group: dict[str, Any], dtype: str) -> Kind:
    momentum = group["momentum"] != 0
    return Kind(SGD, dtype, ("momentum_buffer",) if momentum else (), bool(momentum and group["nesterov"]))


def sgd_numbers(group: dict[str, Any]) -> tuple[float, ...] | None:
    """The present numbers of a param group of SGD."""
    found = plain(group["lr"], group["momentum"], group["dampening"], group["weight_decay"])
    if found is None:
        return None
    mode = NO_DECAY if found[-1] == 0 else L2
    return *found, -1.0 if group["maximize"] else 1.0, float(mode)


def sgd_begin(state: dict[str, Any], p: torch.Tensor, group: dict[str, Any]) -> None:
    """The first step makes the momentum's buffer from the gradient: nothing before."""


ALGORITHMS: dict[type, Algorithm] = {
    torch.optim.Adam: Algorithm(ADAM, adam_kind, adam_numbers, adam_begin, counts=True),
    torch.optim.SGD: Algorithm(SGD, sgd_kind, sgd_numbers, sgd_begin, counts=False),
}
