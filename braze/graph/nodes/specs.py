"""Metadata of values in graphs, as data."""

from __future__ import annotations

import enum

import torch

from braze.support.record import record

#: types to which operations round, though most are computed in float32
HALVES = frozenset({torch.float16, torch.bfloat16})


@record
class TensorSpec:
    """What guards and stages know of a tensor. Sizes and strides are ints or size-symbol names (str)."""

    dtype: torch.dtype
    device: torch.device
    sizes: tuple[int | str, ...]
    strides: tuple[int | str, ...]
    offset: int | str = 0
    requires_grad: bool = False
    is_parameter: bool = False
    layout: torch.layout = torch.strided


@record
class SymbolSpec:
    """An int input that is symbolic: its name in expressions, and the value seen when tracing."""

    name: str
    hint: int


@record
class FloatSpec:
    """A Python float that a graph takes as an input: its name in expressions, and the value seen when tracing."""

    name: str
    hint: float


class Dialect(enum.Enum):
    """What a graph may contain; each has a verifier in graph/nodes/verify.py.

    CAPTURED: calls of torch functions, tensor methods and operators on inputs, as recorded from the user's
    Python. JOINT: ATen overloads, forward and backward, mutation allowed. FUNCTIONAL: ATen overloads, no
    mutation, aliases only through view operators. CORE: FUNCTIONAL after decompositions.
    """

    CAPTURED = "captured"
    JOINT = "joint"
    FUNCTIONAL = "functional"
    CORE = "core"
