"""Convolutions of inference on the CPU get weights that oneDNN has put into its own order, once.

ATen's call lets oneDNN do that each time: of a long window over a small picture (ResNet's last ones) most of what it takes. The
sums are the same, in the same order; results lie with their channels beside each other.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.aot.facts.inserted import inserted
from braze.graph.fakes.fakes import FakeMode
from braze.runtime.operators import convolutions

Node = torch.fx.Node


def can_pack(node: Node) -> bool:
    """Whether a convolution of pictures of known sizes is oneDNN's."""
    picture, weight, bias = node.args[:3]
    if convolutions.PACKED is None or not torch.backends.mkldnn.enabled or node.args[6]:
        return False
    read = [v.meta["val"] for v in (picture, weight, bias) if isinstance(v, Node)]
    own = all(v.device.type == "cpu" and v.dtype is torch.float32 for v in read)
    return own and node.meta["val"].numel() > 0


def pack(node: Node, mode: FakeMode) -> Node:
    """Have a convolution read its weight as oneDNN orders it; gives the node that stands for it."""
    args: Any = node.args
    picture, weight, bias, stride, padding, dilation = args[:6]
    groups = args[8]
    sizes = list(picture.meta["val"].shape)
    ordered = inserted(
        node, convolutions.WEIGHT, weight, sizes, stride, padding, dilation, groups, like=node, mode=mode
    )
    told: tuple[Any, ...] = (padding, stride, dilation, groups, "none", [], "")
    made = inserted(node, convolutions.PACKED, picture, ordered, bias, *told, like=node, mode=mode)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    return made
