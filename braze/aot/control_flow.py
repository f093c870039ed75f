"""Operators over subgraphs in the ahead-of-time trace."""

from __future__ import annotations

from typing import Any

import torch.fx

from braze.support.errors import Unsupported


def run(node: torch.fx.Node, args: tuple[Any, ...], recorder: Any) -> Any:
    """Refused: which subgraph runs, and how often, only the data tell."""
    raise Unsupported("BZ2022", f"{node.target.__name__} in a compiled graph", origin=recorder.origin)  # type: ignore[union-attr]
