"""``associative_scan``, unrolled: in its generic mode it is a tree of calls of the function that combines two elements.

PyTorch runs the function under ``vmap``. Where it does nothing but arithmetic on tensors of one shape, all elements can
be combined at once without.
"""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.purity import computes, operators_of
from braze.capture.facts.replay_safety import writes
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import GraphState, Trace
from braze.graph.operators import is_elementwise
from braze.graph.torch_compat import pytree, torch_associative_scan

FEATURE = Feature()
rule = FEATURE.call


@rule(torch_associative_scan)
def scan_rule(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    return associative_scan(t, *args, **kwargs)


def associative_scan(
    t: Trace, combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """The scan of ``xs`` along ``dim``, in the order of additions that PyTorch's generic mode has."""
    leaves, spec = pytree.tree_flatten(xs)
    if combine_mode != "generic" or not leaves or not all(isinstance(x, torch.Tensor) for x in leaves):
        graph_break("BZ1019", "associative_scan runs a function along a dimension")
    first = leaves[0]
    if any(x.shape != first.shape or x.dtype is not first.dtype for x in leaves):
        graph_break("BZ1019", "associative_scan runs a function along a dimension")

    def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return t.graph.recorder.call(function, args, kwargs)

    def combine(left: list[Any], right: list[Any]) -> list[Any]:
        before = len(t.graph.recorder.graph.nodes)
        made = t.call(combine_fn, (pytree.tree_unflatten(left, spec), pytree.tree_unflatten(right, spec)))
        check_pointwise(t.graph, before)
        out = pytree.tree_leaves(made)
        if [x.shape for x in out] != [x.shape for x in left]:
            graph_break("BZ1019", "associative_scan runs a function that changes shapes")
        return out

    leaves = [call(torch.movedim, x, dim, 0) for x in leaves]
    if reverse:
        leaves = [call(torch.flip, x, [0]) for x in leaves]
    leaves = scanned(leaves, combine, call)
    if reverse:
        leaves = [call(torch.flip, x, [0]) for x in leaves]
    return pytree.tree_unflatten([call(torch.movedim, x, 0, dim) for x in leaves], spec)


def scanned(items: list[Any], combine: Any, call: Any) -> list[Any]:
    """Combine neighbours, scan the half that comes out, and fill in what lies between."""

    def rows(x: Any, start: int | None, stop: int | None, step: int) -> Any:
        return call(operator.getitem, x, slice(start, stop, step))

    count = items[0].shape[0]
    if count < 2:
        return items
    pairs = combine([rows(x, 0, -1, 2) for x in items], [rows(x, 1, None, 2) for x in items])
    odd = scanned(pairs, combine, call)
    inner = [rows(x, 0, -1, 1) for x in odd] if count % 2 == 0 else odd
    even = [rows(x, 0, 1, 1) for x in items]
    if count > 2:
        between = combine(inner, [rows(x, 2, None, 2) for x in items])
        even = [call(torch.cat, (first, rest)) for first, rest in zip(even, between, strict=True)]
    return [interleaved(a, b, count, call) for a, b in zip(even, odd, strict=True)]


def interleaved(even: Any, odd: Any, count: int, call: Any) -> Any:
    """The rows of both, taken in turn."""
    both = even.shape[0] == odd.shape[0]
    head = even if both else call(operator.getitem, even, slice(None, -1))
    mixed = call(torch.flatten, call(torch.stack, (head, odd), 1), 0, 1)
    return mixed if both else call(torch.cat, (mixed, call(operator.getitem, even, slice(-1, None))))


def check_pointwise(graph: GraphState, before: int) -> None:
    """Break where the function did more than arithmetic on its tensors."""
    for node in list(graph.recorder.graph.nodes)[before:]:
        elementwise = any(map(is_elementwise, operators_of(node))) and not isinstance(
            node.target, FunctionType
        )
        if not elementwise or writes(node) or not computes(node):
            graph_break("BZ1019", "associative_scan runs a function along a dimension")
