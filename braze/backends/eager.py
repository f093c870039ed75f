"""``backend="eager"``: run the captured graph as it is. Shows what capture alone does and costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from braze.backends.registry import register_backend


@register_backend
def eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph's own forward, without the call overhead of a module."""
    return gm.forward
