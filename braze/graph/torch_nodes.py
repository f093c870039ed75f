"""Quicker ways to what PyTorch does once for each node of a graph, or once for each trace."""

from __future__ import annotations

import functools
import traceback
import types
from typing import Any

import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode


def add_call(
    graph: torch.fx.Graph, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> torch.fx.Node:
    """A node at the end of a graph. ``create_node`` would search the arguments for symbols, assigning them update an index."""
    node = graph.create_node(op, target, (), {}, name)
    node._update_args_kwargs(args, kwargs)
    return node


class _NoStacks:
    """``traceback``, to a constructor that keeps the stack it is called on: that reads the source of every file there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    @staticmethod
    def extract_stack() -> traceback.StackSummary:
        """No frames."""
        return traceback.StackSummary()


@functools.cache
def mode_constructor() -> Any:
    """``FakeTensorMode.__init__`` that takes no note of who calls it."""
    made = FakeTensorMode.__init__
    if not isinstance(made, types.FunctionType):
        return made
    scope = {**made.__globals__, "traceback": _NoStacks()}
    quick = types.FunctionType(made.__code__, scope, made.__name__, made.__defaults__, made.__closure__)
    quick.__kwdefaults__ = made.__kwdefaults__
    return quick
