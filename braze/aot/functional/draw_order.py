"""Operators that draw a random number for each element fill memory in its order: what they are given lies as the program's tensors did.

Where writes are removed a tensor may have other strides than the program's had. The numbers drawn would be the same, but at other places.
So too what subgraphs are given, which were traced for it: their results would lie otherwise than the graph takes them to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from braze.aot.facts.inserted import inserted
from braze.aot.facts.views import hint
from braze.graph.calls.subgraph_ops import runs_subgraphs
from braze.graph.fakes.fakes import FakeMode
from braze.runtime.operators.purity import is_seeded

aten = torch.ops.aten

Node = torch.fx.Node

#: of attention it is the scores that are dropped, which are nobody's memory
_OF_SCORES = "attention"


def draws_in_order(target: Any) -> bool:
    """Whether an operator draws a number for each element of a tensor that it is given."""
    return isinstance(target, OpOverload) and is_seeded(target) and _OF_SCORES not in target._schema.name


def lying(node: Node) -> dict[Node, tuple[Any, ...]]:
    """The strides of what an operator is given that draws, or runs subgraphs, while they are those of the program's tensors."""
    if not draws_in_order(node.target) and not runs_subgraphs(node.target):
        return {}
    values = {n: n.meta.get("val") for n in node.all_input_nodes}
    return {n: tuple(v.stride()) for n, v in values.items() if isinstance(v, torch.Tensor)}


def lay_out(node: Node, lay: Mapping[Node, tuple[Any, ...]], mode: FakeMode) -> None:
    """Give the operator copies of those of its operands that lie otherwise."""
    for operand, strides in lay.items():
        if tuple(operand.meta["val"].stride()) == strides:
            continue
        steps = [hint(s) for s in strides]
        outermost_first = sorted(range(len(steps)), key=lambda d: -steps[d])
        back = sorted(range(len(steps)), key=outermost_first.__getitem__)

        def put(target: Any, /, *args: Any, **words: Any) -> Node:
            return inserted(node, target, *args, like=node, mode=mode, apart=True, kwargs=words)

        turned = put(aten.permute.default, operand, outermost_first)
        copy = put(aten.clone.default, turned, memory_format=torch.contiguous_format)
        node.replace_input_with(operand, put(aten.permute.default, copy, back))
