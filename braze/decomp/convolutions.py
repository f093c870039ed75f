"""Convolutions of half types on processors for which oneDNN has none: by those of float32, in which eager adds up, too.

What ATen has for them there adds product after product, and takes ten to forty times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from braze.decomp.numbers import cast
from braze.decomp.registry import decompose
from braze.graph.nodes.facts import set_facts
from braze.graph.nodes.specs import HALVES
from braze.runtime.operators.convolutions import has_type

aten = torch.ops.aten
Tensor = torch.Tensor


def _is_slow(*operands: Tensor | None) -> bool:
    """Whether operands are of one half type that oneDNN does not compute with here."""
    given = [x for x in operands if x is not None]
    dtype = given[0].dtype
    if dtype not in HALVES or any(x.dtype is not dtype or x.device.type != "cpu" for x in given):
        return False
    return not has_type(dtype)


def _wide(x: Tensor | None) -> Tensor | None:
    """An operand as oneDNN reads it, which no backward keeps in place of what it is made of."""
    if x is None:
        return None
    made = cast(x, torch.float32)
    node = made.__dict__.get("_node")
    if isinstance(node, torch.fx.Node):
        set_facts(node, copy_in_layout=True)
    return made


@decompose(aten.convolution.default)
def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Any:
    """``how``: stride, padding, dilation, whether transposed, output padding, groups."""
    if not _is_slow(x, weight, bias):
        return NotImplemented
    return cast(aten.convolution.default(_wide(x), _wide(weight), _wide(bias), *how), x.dtype)


@decompose(aten.convolution_backward.default)
def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, *how: Any
) -> Any:
    """Gradients of the input, the weight and the bias, as the last of ``how`` asks for them."""
    if not _is_slow(grad, x, weight):
        return NotImplemented
    made = aten.convolution_backward.default(_wide(grad), _wide(x), _wide(weight), bias_sizes, *how)
    return tuple(None if g is None else cast(g, x.dtype) for g in made)
