"""Calls of the program's autograd functions, as targets of nodes."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from braze.graph.hooked import hooked
from braze.graph.torch_compat import apply_function


class Applied:
    """A call of an autograd function: graphs name their targets by module and name.

    ``scales``: its backward makes nothing of gradients that are zero, in all calls so far.
    """

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.scales = True
        self.__name__ = self.__qualname__ = f"apply_{cls.__name__}"
        self.__module__ = cls.__module__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return apply_function(self.cls, args, kwargs)


#: the targets that graphs hold: an autograd function of the program's is let go with the last graph that calls it
_applied: weakref.WeakValueDictionary[int, Applied] = weakref.WeakValueDictionary()


def applied(cls: Any) -> Applied:
    """The one target for an autograd function."""
    found = _applied.get(id(cls))
    if found is None:  # a target keeps its class, so that no other class has this identity while it lives
        found = _applied[id(cls)] = Applied(cls)
    return found


def holds_functions(gm: torch.fx.GraphModule) -> bool:
    """Whether a captured graph has backwards of the program's own in it."""
    graphs = [part.graph for part in gm.modules() if isinstance(part, torch.fx.GraphModule)]
    return any(isinstance(n.target, Applied) or n.target is hooked for graph in graphs for n in graph.nodes)
