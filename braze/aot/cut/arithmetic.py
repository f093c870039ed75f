"""What a processor keeps for the backward beside what the fewest bytes are: results of functions that take longer than their memory does.

A float that is written and read once more takes a thread less than a nanosecond, ``softplus`` three (AVX2). On a GPU arithmetic costs nothing beside memory.
"""

from __future__ import annotations

import functools

import torch

from braze.aot.cut.min_cut import Halves, default_choice, min_cut_choice
from braze.aot.cut.timeline import Timeline
from braze.aot.facts.views import bytes_of, is_on_gpu
from braze.graph.operators.operators import cost_of

aten = torch.ops.aten
Node = torch.fx.Node

#: an element's arithmetic (``cost_of``) that takes as long as to keep it
AS_MEMORY = 16
#: of a value of fewer bytes nothing is counted: to hand one more to autograd takes longer
FEW = 8192
#: powers that are a few products, or a root
PRODUCTS = (-2, -1, -0.5, 0, 0.5, 1, 2, 3)


def quick_choice(halves: Halves) -> set[Node]:
    """The fewest bytes; on a processor the quickest, where these take no more memory at their peak than what eager keeps."""
    fewest = min_cut_choice(halves)
    again = functools.cache(_cost_again)
    if not any(again(n) for n in halves.choices if n in halves.forward and n not in fewest):
        return fewest
    quickest = min_cut_choice(halves, again)
    if quickest == fewest:
        return fewest
    timeline = Timeline(halves)
    eager = timeline.peak(default_choice(halves))
    return quickest if timeline.peak(quickest) <= max(eager, timeline.peak(fewest)) else fewest


def _cost_again(node: Node) -> float:
    """What it costs a processor to make a value again, in bytes that are kept."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or is_on_gpu(value) or bytes_of(node) < FEW:
        return 0.0
    return 0.0 if _is_products(node) else bytes_of(node) * cost_of(node.target) / AS_MEMORY


def _is_products(node: Node) -> bool:
    """Whether a power is none of the library's."""
    return node.target is aten.pow.Tensor_Scalar and node.args[1] in PRODUCTS
