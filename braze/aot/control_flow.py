"""Operators over subgraphs in the ahead-of-time trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from braze.graph.checkpoints import checkpointed
from braze.support.errors import Unsupported


def run(node: torch.fx.Node, args: tuple[Any, ...], recorder: Any, run_graph: Callable[..., Any]) -> Any:
    """A checkpointed region becomes a part of the graph. Which subgraph of the others runs, only the data tell: refused."""
    if node.target is checkpointed:
        return checkpoint(node, args, recorder, run_graph)
    raise Unsupported("BZ2022", f"{node.target.__name__} in a compiled graph", origin=recorder.origin)  # type: ignore[union-attr]


def checkpoint(
    node: torch.fx.Node, args: tuple[Any, ...], recorder: Any, run_graph: Callable[..., Any]
) -> Any:
    """The nodes of the region, with its number."""
    module, region, *_, arguments, others = args
    operands = (*arguments, *others)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    before = [x._version for x in operands if isinstance(x, torch.Tensor)]
    outer = recorder.region
    recorder.region = region if outer is None else outer
    try:
        results = run_graph(module, dict(zip(placeholders, operands, strict=True)), recorder)
    finally:
        recorder.region = outer
    if recorder.differentiable and before != [x._version for x in operands if isinstance(x, torch.Tensor)]:
        raise Unsupported(
            "BZ2022",
            "a checkpointed region that writes to tensors from outside",
            why="eager writes them again when the backward runs it again",
            origin=node.meta.get("origin"),
        )
    return results
