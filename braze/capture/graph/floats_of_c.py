"""Floats of the program's that PyTorch takes in C++ alone: the call is tried with the number, and the graph has the symbol."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from braze.capture.graph import floats, powers
from braze.capture.state.trace import GraphState
from braze.graph.fakes import floats_of_c
from braze.graph.private import torch_symbols

Call = tuple[tuple[Any, ...], dict[str, Any]]


def told_apart(
    graph: GraphState, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Call, Call]:
    """(The arguments that a graph has, those to try the call with): what must hold of the floats is guarded."""
    noted: dict[str, Any] = {}
    tried: dict[str, Any] = {}
    kept: list[Any] = []
    for each, value in floats_of_c.symbols_among(func, args, kwargs):
        if _may_be_symbol(graph, value) and all(_holds(graph, value, *question) for question in each.within):
            kept.append(value)
            symbol = floats.beside_floats(graph, value) if floats.is_of_sizes(graph, value) else value
            noted[each.name] = each, symbol
            tried[each.name] = each, graph.mode.floats[graph.mode.name_of(symbol)]
    if name in powers.POWERS:
        args, kwargs = powers.with_known_numbers(graph, args, kwargs, kept)
    if not noted:
        return (args, dict(kwargs)), (args, dict(kwargs))
    return floats_of_c.replaced(noted, args, kwargs), floats_of_c.replaced(tried, args, kwargs)


def _may_be_symbol(graph: GraphState, value: torch.SymFloat) -> bool:
    """Whether a float is known by a node, or made of sizes; none that is known, or that only the data tell."""
    if torch_symbols.is_unbacked(value) or not value.node.expr.free_symbols:
        return False
    name = graph.mode.name_of(value)
    return floats.is_of_sizes(graph, value) or (
        name in graph.mode.floats and name not in graph.mode.read_floats
    )


def _holds(graph: GraphState, value: torch.SymFloat, question: Any, other: float) -> bool:
    """The answer to a question about a float, which is guarded."""
    if floats.is_of_sizes(graph, value):
        return not math.isfinite(other) or bool(question(value, other))
    return graph.mode.decided.answer(question, value, other) is True


def settle(graph: GraphState, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """The arguments of a call with these floats as what they are in this call, guarded: an error may tell them."""
    found = {
        each.name: (each, floats.settled(graph, v))
        for each, v in floats_of_c.symbols_among(func, args, kwargs)
    }
    return floats_of_c.replaced(found, args, kwargs)
