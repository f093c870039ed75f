"""Checks, in the graph of ATen operators, that types hold the numbers which are put into tensors, where eager refuses others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.fx

from braze.graph.nodes.facts import set_facts
from braze.graph.nodes.number_places import numbers_converted
from braze.graph.private import torch_compat
from braze.runtime.operators.number_places import REQUIRE_PLACE, require_place
from braze.support.errors import Origin


class NumberPlaces:
    """Writes such checks into a graph: one for each number and type."""

    def __init__(self, graph: torch.fx.Graph, argument: Callable[[Any], Any]) -> None:
        self.graph = graph
        #: a number of a call -> its node, or itself
        self.argument = argument
        #: whether the operators are parts of one that eager calls whole
        self.within = False
        self.known: set[tuple[Any, ...]] = set()

    @contextlib.contextmanager
    def of_parts(self, eager: bool) -> Iterator[None]:
        """While an operator is traced through others, be it those that eager calls."""
        before, self.within = self.within, self.within or not eager
        try:
            yield
        finally:
            self.within = before

    def require(self, func: Any, args: Any, kwargs: Any, result: Any, origin: Origin | None) -> None:
        """A check for each number of a call that changes and may lack a place; eager's error for one that has none."""
        if self.within:
            return
        for value, dtype, elements in numbers_converted(func, args, kwargs, result):
            node = self.argument(value)
            if elements is None and not isinstance(node, torch.fx.Node):
                with torch_compat.outside_modes():
                    require_place(node, dtype)
                continue
            asked = (node, dtype) if elements is None else (node, dtype, self.argument(elements))
            if asked not in self.known:
                self.known.add(asked)
                made = self.graph.call_function(REQUIRE_PLACE, asked)
                made.meta["val"] = None
                set_facts(made, origin=origin)
