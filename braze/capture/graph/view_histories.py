"""Views of what gets a history later: ``row = whole[1]; whole.mul_(w)`` gives ``row`` one too.

What is remembered of a call's metadata makes views that autograd knows nothing of, which is faster and mostly does no harm. Where a
write then gives a history to memory of which there are views, the frame is traced again with views that are autograd's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.records import Step
from braze.capture.state.outside import Outside
from braze.graph.torch_compat import storage_key


class ViewsMatter(BaseException):
    """Trace again, each view being one for autograd. Not an Exception: no handler of the user's may see it."""


def ask_for_base(outside: Outside, view: torch.Tensor) -> None:
    """A view that is made without gradients requires one where its base does: that of a leaf, where the leaf is itself a view, may not.

    The fake of a leaf has no base.
    """
    if not outside.settings.start["grad"]:
        return  # in a call without gradients nothing is made of it that would have a history
    memory = storage_key(view)
    for node in outside.tree.inputs:
        real = node.real
        if not isinstance(real, torch.Tensor) or not (real.requires_grad and real.is_leaf):
            continue
        if storage_key(node.value) == memory:
            if real._base is not None:
                graph_break("BZ1010", "a view, made without gradients, of a leaf that is itself a view")
            outside.read(node, Step.ATTR, "_base", None)


def without_history(args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors to which a call may give a history, where gradients are on and views are not autograd's own."""
    return [x for x in tensors((*args, *kwargs.values())) if not x.requires_grad]


def require_known(graph: torch.fx.Graph, before: list[torch.Tensor]) -> None:
    """Trace again if a tensor has got a history that a view of it knows nothing of."""
    changed = {storage_key(x) for x in before if x.requires_grad}
    if not changed:
        return
    for node in graph.nodes:
        for x in tensors((node.meta.get("val"),)):
            if storage_key(x) in changed and not x.requires_grad:
                raise ViewsMatter


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples and lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)
