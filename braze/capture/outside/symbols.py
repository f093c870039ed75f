"""Which sizes and numbers from outside are symbols, and the fakes that stand for tensors."""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.facts.records import Check, Step
from braze.capture.guards.dynamic import is_argument
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import Trace


def make_fake(t: Trace, node: Node, real: torch.Tensor) -> Any:
    """The fake that stands for a tensor from outside."""
    outside = t.outside
    dims = symbolic_dims(t.outside, node, real) if outside.symbolic else None
    if outside.marked.any:
        return outside.marked.fake(node, real, dims or set())
    return t.graph.mode.fake(real, symbolic_dims=dims, source=str(node.source) if dims else "")


def symbolic_dims(outside: Outside, node: Node, real: torch.Tensor) -> set[int] | None:
    """Which sizes of a tensor are to be symbols."""
    if outside.symbolic == "all":
        if outside.is_model_state(node) or isinstance(real, torch.nn.Parameter):
            return None
        return {d for d, n in enumerate(real.shape) if n > 1} or None
    source = node.source
    return {d for d in range(real.dim()) if (source, d) in outside.symbolic} or None


def is_symbolic(outside: Outside, node: Node, dim: int) -> bool:
    """Whether an int from outside is to be a symbol: only arguments, and not what names a choice."""
    if outside.symbolic == "all":
        return is_argument(node.source)
    return (node.source, dim) in outside.symbolic


def symbolic_int(t: Trace, node: Node, real: int) -> Any:
    """A symbol for an int argument. Symbols are above zero: one below it is minus the symbol of a place of its own."""
    mode, outside = t.graph.mode, t.outside
    if real < -1:
        node.guards.append((Check.TYPE, int))
        outside.tree.order.append(node)
        node.real, node.value = real, -symbolic_int(t, node.child(Step.NEGATIVE, None), -real)
        outside.tree.known[id(node.value)] = node
        return node.value
    value = mode.symbol(real, str(node.source))
    node.real, node.value = real, value
    if isinstance(value, torch.SymInt):
        outside.symbolic_places.append(node)
        outside.tree.known[id(value)] = node
        node.guards.append((Check.EQUAL, mode.symbols[str(value.node.expr)]))
    else:
        node.guards.append((Check.EQUAL, real))
    outside.tree.order.append(node)
    return value


def symbolic_float(t: Trace, node: Node, real: float) -> Any:
    """A symbol for a float from outside; None where it cannot be one."""
    value = t.graph.mode.float_symbol(real, str(node.source))
    if not isinstance(value, torch.SymFloat):
        return None
    node.real, node.value = real, value
    t.outside.symbolic_places.append(node)
    t.outside.tree.known[id(value)] = node
    node.guards.append((Check.TYPE, float))
    t.outside.tree.order.append(node)
    return value
