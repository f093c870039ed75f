"""Symbolic ints as nodes of a graph: sizes of inputs, and arithmetic on them."""

from __future__ import annotations

from typing import Any

import torch

from braze.graph.private import torch_symbols
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.graph.sizes.numbers import FOLDED, FUNCTIONS
from braze.support.errors import Unsupported

aten = torch.ops.aten
Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool


def is_size(node: torch.fx.Node) -> bool:
    """Whether a node is a size, a symbol or known by now: a backward has it from the sizes that come in."""
    return isinstance(node.meta.get("val"), (torch.SymInt, int))


class SymbolNodes:
    """The node that computes each size expression; made once per expression, where first wanted."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self._nodes: dict[Any, torch.fx.Node] = {}
        #: symbols that only the data tell -> the result of which they are a size, and the dimension
        self._sized: dict[Any, tuple[torch.fx.Node, int]] = {}

    def find(self, placeholders: list[torch.fx.Node]) -> None:
        """Note which placeholder gives each symbol: an int input, or a size of a tensor."""
        for node in placeholders:
            value = node.meta["val"]
            if isinstance(value, (torch.SymInt, torch.SymFloat)):
                self._nodes.setdefault(value.node.expr, node)
        for node in placeholders:
            value = node.meta["val"]
            if isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                        self._size(node, dim, size)

    def _size(self, node: torch.fx.Node, dim: int, size: torch.SymInt) -> None:
        if size.node.expr not in self._nodes:
            made = self._graph.call_function(aten.sym_size.int, (node, dim))
            made.meta["val"] = size
            self._nodes[size.node.expr] = made

    def bind(self, value: Symbolic, node: torch.fx.Node) -> None:
        """A node that the trace made for this value."""
        self._nodes.setdefault(value.node.expr, node)
        self._nodes.setdefault(value.node._expr, node)

    def note(self, node: torch.fx.Node, value: Any) -> None:
        """Remember which symbols that only the data tell can be read off a node's value."""
        if isinstance(value, SYMBOLIC):
            self.bind(value, node)
        elif isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and torch_symbols.is_unbacked_symbol(size.node._expr):
                    self._sized.setdefault(size.node._expr, (node, dim))
                    self._sized.setdefault(size.node.expr, (node, dim))

    def rename(self, made: Any, known: Any) -> None:
        """One such symbol is known as another from here on."""
        if made in self._nodes:
            self._nodes.setdefault(known, self._nodes[made])
        if made in self._sized:
            self._sized.setdefault(known, self._sized[made])

    def raw(self, value: Any) -> Any:
        """The node of a number as it was made, whatever it was found to be since."""
        if not isinstance(value, SYMBOLIC):
            return value
        e = value.node._expr
        return self._of(e, value) if e in self._nodes or e in self._sized else self.node(value)

    def node(self, value: Symbolic) -> torch.fx.Node | int | float:
        """The node for a symbolic int, float or bool; a plain number where it is known."""
        if isinstance(value, torch.SymInt):
            known = value.node.maybe_as_int()
            if known is not None:
                return known
        return self._of(value.node.expr, value)

    def _of(self, expr: Any, like: Symbolic) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Float:
            return float(expr)
        if torch_symbols.is_condition(expr) and not expr.free_symbols:
            return bool(expr)
        found = self._nodes.get(expr)
        if found is None and expr in self._sized:
            node, dim = self._sized[expr]
            found = self._nodes[expr] = self._graph.call_function(aten.sym_size.int, (node, dim))
            found.meta["val"] = node.meta["val"].shape[dim]
        if found is None:
            found = self._nodes[expr] = self._compose(expr, like)
        return found

    def _compose(self, expr: Any, like: Symbolic) -> torch.fx.Node:
        """A new node from the operands' nodes."""
        name = type(expr).__name__
        operands = [self._of(e, like) for e in expr.args]
        if name in FOLDED:
            result = operands[0]
            done = expr.args[0]
            for operand, part in zip(operands[1:], expr.args[1:], strict=True):
                done = expr.func(done, part)
                result = self._call(FOLDED[name], (result, operand), done, like)
            return result
        if name in FUNCTIONS:
            return self._call(FUNCTIONS[name], tuple(operands), expr, like)
        raise Unsupported("BZ2011", f"a size computed as {expr}", why=f"no graph node for {name}")

    def _call(self, function: Any, operands: tuple[Any, ...], expr: Any, like: Symbolic) -> torch.fx.Node:
        node = self._graph.call_function(function, operands)
        env = like.node.shape_env
        if torch_symbols.is_condition(expr):
            node.meta["val"] = torch_symbols.bool_of(env, expr)
            return node
        make = env.create_symintnode if expr.is_integer else env.create_symfloatnode
        node.meta["val"] = make(expr, hint=None)
        return node
