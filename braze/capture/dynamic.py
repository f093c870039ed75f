"""Automatic dynamic shapes: what changed between a variant and the values that miss it becomes symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.capture.guards import read_source
from braze.capture.records import Capture, Check, Guard, Source, Step
from braze.graph.specs import SymbolSpec


def is_about_extents(guard: Guard) -> bool:
    """Whether a guard's failure may be cured by symbolic sizes or ints."""
    if guard.check is Check.EQUAL:
        is_int = type(guard.expected) is int or isinstance(guard.expected, SymbolSpec)
        return is_int and guard.source is not None and is_argument(guard.source)
    return guard.check in (Check.TENSOR, Check.RANGE)


def is_argument(source: Source) -> bool:
    """Whether a source is an argument or an item of one: ints there change; attributes are configuration."""
    while source.parent is not None:
        if source.step is not Step.ITEM:
            return False
        source = source.parent
    return source.step is Step.LOCAL


def changed_extents(capture: Capture, function: Any, locals: Sequence[Any]) -> frozenset[tuple[Source, int]]:
    """(source, dimension) of every size, and (source, -1) of every int argument, that differs now."""
    found: set[tuple[Source, int]] = set()
    for guard in capture.guards:
        if guard.source is None:
            continue
        if guard.check is Check.TENSOR:
            value = read_source(guard.source, function, locals)
            if isinstance(value, torch.Tensor) and value.dim() == len(guard.expected.sizes):
                pairs = enumerate(zip(guard.expected.sizes, value.shape, strict=True))
                found.update(
                    (guard.source, i) for i, (old, new) in pairs if isinstance(old, str) or old != new
                )
        elif is_about_extents(guard):
            value = read_source(guard.source, function, locals)
            if type(value) is int and (isinstance(guard.expected, SymbolSpec) or value != guard.expected):
                found.add((guard.source, -1))
    return frozenset(found)


def all_extents(capture: Capture) -> frozenset[tuple[Source, int]]:
    """Every size of every tensor but parameters and buffers, and every int argument."""
    found: set[tuple[Source, int]] = set()
    for guard in capture.guards:
        if guard.source is None:
            continue
        if guard.check is Check.TENSOR and not is_model_state(guard):
            found.update((guard.source, i) for i in range(len(guard.expected.sizes)))
        elif guard.check is Check.EQUAL and is_about_extents(guard):
            found.add((guard.source, -1))
    return frozenset(found)


def is_model_state(guard: Guard) -> bool:
    """Whether a tensor is a parameter or a buffer: its sizes are the model's, not the call's."""
    at = guard.source
    while at is not None:
        if at.step is Step.DICT and at.key in ("_parameters", "_buffers"):
            return True
        at = at.parent
    return guard.expected.is_parameter
