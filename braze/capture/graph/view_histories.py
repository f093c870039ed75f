"""Views of what gets a history later: ``row = whole[1]; whole.mul_(w)`` gives ``row`` one too.

What is remembered of a call's metadata makes views that autograd knows nothing of, which is faster and mostly does no harm. Where a
write then gives a history to memory of which there are views, the frame is traced again with views that are autograd's own.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.graph.torch_compat import storage_key
from braze.support.nested import every


class ViewsMatter(BaseException):
    """Trace again, each view being one for autograd. Not an Exception: no handler of the user's may see it."""


def without_history(args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors to which a call may give a history, where gradients are on and views are not autograd's own."""
    return [x for x in every(torch.Tensor, (*args, *kwargs.values())) if not x.requires_grad]


def require_known(graph: torch.fx.Graph, before: list[torch.Tensor]) -> None:
    """Trace again if a tensor has got a history that a view of it knows nothing of."""
    changed = {storage_key(x) for x in before if x.requires_grad}
    if not changed:
        return
    for node in graph.nodes:
        for x in every(torch.Tensor, node.meta.get("val")):
            if storage_key(x) in changed and not x.requires_grad:
                raise ViewsMatter
