"""How to avoid that a guard fails again: one sentence for the user, by the kind of guard and what it met."""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.facts.records import Check, Guard, Source, Step
from braze.capture.guards.guard_text import spec_of_value
from braze.graph.specs import SymbolSpec, TensorSpec
from braze.native.walk import Missing


def advice(guard: Guard, value: Any, name: str) -> tuple[str, ...]:
    """What the user may do so that this guard no longer fails; ``name`` is the guarded thing as the user writes it."""
    match guard.check:
        case Check.TENSOR if isinstance(value, Missing) and is_over_array(guard.source):
            return (
                "arrays that may be written have a variant, those that may not another: array.copy() may",
            )
        case Check.TENSOR:
            return _tensor_advice(guard.expected, value, name)
        case Check.EQUAL if isinstance(guard.expected, SymbolSpec):
            return (f"pass {name} as one type of number",)
        case Check.EQUAL if type(guard.expected) in (int, float):
            return (
                f"{name} is symbolic from now on, unless its value decides what is computed; "
                "else keep it constant or pass a tensor",
            )
        case Check.EQUAL if is_attribute(guard.source):
            return (f"set {name} once, before the first call",)
        case Check.EQUAL if isinstance(guard.expected, bool | str | None):
            return (f"each value of {name} has a variant of its own: keep to a few",)
        case Check.KEYS | Check.HAS_KEY if name == "kwargs":
            return ("pass the same arguments by keyword each time",)
    return (guard.check.advice.format(name=name),)


def _tensor_advice(spec: TensorSpec, value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, torch.Tensor):
        return (f"pass a tensor as {name} each time",)
    now = spec_of_value(value)
    if now.dtype != spec.dtype or now.device != spec.device:
        return (f"pass {name} with one dtype and on one device",)
    if now.requires_grad != spec.requires_grad:
        return (f"{name} with and without requires_grad has a variant each: call under torch.no_grad()",)
    if len(now.sizes) != len(spec.sizes):
        return (f"pass {name} with one number of dimensions",)
    changed = [i for i, (a, b) in enumerate(zip(spec.sizes, now.sizes, strict=True)) if a != b]
    if any(now.sizes[i] in (0, 1) or spec.sizes[i] in (0, 1) for i in changed):
        return ("sizes 0 and 1 have a variant of their own, since such tensors broadcast: no way round",)
    if changed:
        which = "size " + ", ".join(map(str, changed)) + f" of {name}"
        return (f"{which} is symbolic from now on; dynamic=True makes it so at the first call",)
    if now.strides != spec.strides:
        return (f"pass {name} with one layout: {name}.contiguous()",)
    return (Check.TENSOR.advice.format(name=name),)


def is_over_array(source: Source | None) -> bool:
    """Whether a tensor is made of an array of numpy's."""
    return source is not None and source.step is Step.TENSOR_OF


def is_attribute(source: Source | None) -> bool:
    """Whether a value is read from an object's attributes rather than from arguments."""
    while source is not None:
        if source.step in (Step.ATTR, Step.DICT, Step.CLASS_ATTR):
            return True
        source = source.parent
    return False
