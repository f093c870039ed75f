"""Nodes that a pass puts into a graph, and the fakes of nodes whose arguments are others now."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload

from braze.aot.facts import unbacked
from braze.aot.facts.memory_order import out_of_order
from braze.graph.fakes import own_memory
from braze.graph.fakes.fakes import FakeMode
from braze.graph.nodes.facts import facts, set_facts, share_facts

aten = torch.ops.aten

Node = torch.fx.Node


def inserted(
    place: Node,
    target: Any,
    /,
    *args: Any,
    like: Node,
    mode: FakeMode,
    behind: bool = False,
    apart: bool = False,
    kwargs: Mapping[str, Any] = MappingProxyType({}),
) -> Node:
    """A call before another node, or ``behind`` it, with its fake. It knows what ``like`` does; where it stands ``apart``, its line alone."""
    with (place.graph.inserting_after if behind else place.graph.inserting_before)(place):
        made = place.graph.call_function(target, args, dict(kwargs))
    if apart:
        set_facts(made, origin=facts(like).origin)
    else:
        share_facts(made, like)
    return evaluate(made, mode)


def evaluate(node: Node, mode: FakeMode) -> Node:
    """Give a node the fake that its operator makes of its arguments' fakes.

    What its operator cannot read as it lies gets a copy first (``memory_order.py``).
    """
    known = node.meta.get("val")
    if isinstance(known, torch.SymFloat) or node.target in (unbacked.READ, unbacked.CHECK):
        return node  # a float's value is what its node computes: the algebra of sizes would reorder it
    if isinstance(known, torch.SymBool):
        return node
    args = torch.fx.node.map_arg(node.args, lambda n: n.meta["val"])
    kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: n.meta["val"])
    if isinstance(node.target, OpOverload):
        for place, form in out_of_order(node.target, args):
            source, words = node.args[place], {"memory_format": form}
            copy = inserted(node, aten.clone.default, source, like=node, mode=mode, apart=True, kwargs=words)
            node.update_arg(place, copy)
            args = (*args[:place], copy.meta["val"], *args[place + 1 :])
        if mode.env is not None:
            unbacked.forget(args)
        node.meta["val"] = own_memory.from_start(args, mode.run(node.target, tuple(args), dict(kwargs)))
        unbacked.settle(mode.env, known, node.meta["val"])
    else:
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
    return node
