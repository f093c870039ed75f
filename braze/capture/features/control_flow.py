"""``torch.cond``, ``while_loop``, ``scan`` and ``map``: their functions are subgraphs, their calls one node each.

``associative_scan`` is unrolled: in its generic mode it is a tree of calls of the function that combines two elements. PyTorch runs that
under ``vmap``; where it does nothing but arithmetic on tensors of one shape, all elements can be combined at once without.
Regions that ``torch.compiler.nested_compile_region`` marks are followed.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.purity import computes, operators_of, writes
from braze.capture.features.subgraphs import Traced, flatten, note, region, traced, union
from braze.capture.python.higher_order import MODULES, break_around
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import GraphState, Trace
from braze.graph.calls import control_flow
from braze.graph.operators.operators import is_elementwise
from braze.graph.private.torch_compat import (
    pytree,
    torch_associative_scan,
    torch_map,
    torch_region,
    torch_scan,
    torch_while_loop,
)

FEATURE = Feature()
rule = FEATURE.call


@rule(torch_region)
def marked_region(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A function marked by ``torch.compiler.nested_compile_region`` is followed as any: PyTorch's placeholder refuses to be traced."""
    function, *operands = args
    if kwargs and "func" in kwargs:  # the placeholder's own parameter
        break_around("a marked region is given func=, which PyTorch refuses")
    return t.call(function, tuple(operands), kwargs, tail)


@rule(torch.cond)
def cond(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Both branches; the one that is known while tracing is simply called."""
    pred, if_true, if_false, *rest = named_arguments(
        args, kwargs, "pred true_fn false_fn operands", MODULES["torch._higher_order_ops.cond"]
    )
    operands = rest[0] if rest else ()
    if isinstance(pred, bool | int | float | torch.SymBool):
        return t.call(if_true if t.truth(pred) else if_false, tuple(operands), None, tail)
    if not isinstance(pred, torch.Tensor) or pred.dtype is not torch.bool or pred.numel() != 1:
        break_around(MODULES["torch._higher_order_ops.cond"])
    if not all(isinstance(x, torch.Tensor) for x in flatten(t, operands)[0]):
        break_around(MODULES["torch._higher_order_ops.cond"])
    with region(t, "torch.cond", (if_true, if_false)):
        parts = [traced(t, branch, operands, ()) for branch in (if_true, if_false)]
        for part in parts:
            part.separate()
        agree("the branches of a torch.cond", parts[0], parts[1])
        inputs = union(*parts)
        modules = {k: p.module(inputs) for k, p in zip(("true_graph", "false_graph"), parts, strict=True)}
        fakes = tuple([bare(x) if isinstance(x, torch.Tensor) else x for x in parts[0].leaves])
        results = control_flow.connected(fakes, inputs)
        note(t.graph, control_flow.cond, (pred,), modules, (tuple(inputs),), results)
    return pytree.tree_unflatten(list(results), parts[0].spec)


@rule(torch_while_loop)
def while_loop(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The test and the body, on values that stand for any round's."""
    what = MODULES["torch._higher_order_ops.while_loop"]
    go_on, body, carried = named_arguments(args, kwargs, "cond_fn body_fn carried_inputs", what)
    leaves, spec = flatten(t, tuple(carried))
    if not leaves or not all(isinstance(x, torch.Tensor) for x in leaves):
        break_around(what)
    with region(t, "torch.while_loop", (go_on, body)):
        parts = []
        for function in (go_on, body):
            own = [like(x) for x in leaves]
            parts.append(traced(t, function, pytree.tree_unflatten(own, spec), own))
        test, step = parts
        if len(test.leaves) != 1 or not isinstance(test.leaves[0], torch.Tensor):
            graph_break("BZ1019", "its test gives no tensor")
        step.separate()
        if step.spec != spec:
            graph_break("BZ1019", "its body gives values of another structure than it gets")
        same_as(step.leaves, leaves, "its body")
        others = union(*parts)
        modules = {
            "test_graph": test.module([*test.recorder.own, *others]),
            "body_graph": step.module([*step.recorder.own, *others]),
        }
        results = control_flow.connected(tuple(map(bare, leaves)), (*leaves, *others))
        note(t.graph, control_flow.while_loop, (), modules, (tuple(leaves), tuple(others)), results)
    return pytree.tree_unflatten(list(results), spec)


@rule(torch_scan)
def scan(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """One step, on a row of each input."""
    what = MODULES["torch._higher_order_ops.scan"]
    dim, reverse = kwargs.pop("dim", 0), kwargs.pop("reverse", False)
    step, init, xs = named_arguments(args, kwargs, "combine_fn init xs", what)
    carried, carry_spec = flatten(t, init)
    rows, row_spec = flatten(t, xs)
    if not carried or not rows or not all(isinstance(x, torch.Tensor) for x in (*carried, *rows)):
        break_around(what)
    if type(dim) is not int or type(reverse) is not bool or any(x.dim() <= dim for x in rows):
        break_around(what)
    with region(t, "scan", (step,)):
        rows = [moved(t.graph, x, dim, reverse) for x in rows]
        given = [like(x) for x in carried], [row_of(x) for x in rows]
        part = traced(
            t,
            step,
            (pytree.tree_unflatten(given[0], carry_spec), pytree.tree_unflatten(given[1], row_spec)),
            (*given[0], *given[1]),
        )
        part.separate()
        count = len(carried)
        if not isinstance(part.result, tuple) or len(part.result) != 2:
            graph_break("BZ1019", "its function gives no pair of next value and row")
        if pytree.tree_structure(part.result[0]) != carry_spec:
            graph_break("BZ1019", "its function gives next values of another structure than it gets")
        same_as(part.leaves[:count], carried, "its function")
        results = stacked(t.graph, part, carried, rows)
        out = [moved_back(t.graph, x, dim, reverse) for x in results[count:]]
    made = pytree.tree_structure(part.result[1])
    return (
        pytree.tree_unflatten(list(results[:count]), carry_spec),
        pytree.tree_unflatten(out, made),
    )


@rule(torch_map)
def map_rows(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The function, on a row of each input."""
    what = MODULES["torch._higher_order_ops.map"]
    if kwargs or len(args) < 2:
        break_around(what)
    function, xs, *more = args
    rows, spec = flatten(t, xs)
    if not rows or not all(isinstance(x, torch.Tensor) and x.dim() for x in rows):
        break_around(what)
    with region(t, "map", (function,)):
        own = [row_of(x) for x in rows]
        part = traced(t, function, (pytree.tree_unflatten(own, spec), *more), own)
        part.separate()
        results = stacked(t.graph, part, (), rows)
    return pytree.tree_unflatten(list(results), part.spec)


# -- parts


def named_arguments(args: Any, kwargs: Any, names: str, what: str) -> list[Any]:
    """The arguments in order, wherever they were given; a call that does not fit is left to PyTorch."""
    order = names.split()
    if len(args) > len(order) or not set(kwargs) <= set(order[len(args) :]):
        break_around(what)
    found = [*args, *[kwargs[name] for name in order[len(args) :] if name in kwargs]]
    if len(found) < min(len(order), 3):
        break_around(what)
    return found


def like(x: torch.Tensor) -> torch.Tensor:
    """Another fake of the same metadata."""
    return bare(x).requires_grad_(x.requires_grad)


def row_of(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """A fake of ``x`` without one dimension."""
    sizes, strides = list(x.shape), list(x.stride())
    del sizes[dim], strides[dim]
    made = torch.empty_strided(sizes, strides, dtype=x.dtype, device=x.device)
    return made.requires_grad_(x.requires_grad)


def agree(what: str, first: Traced, second: Traced) -> None:
    """Break where two functions give results that differ in more than their values."""
    if first.spec != second.spec:
        graph_break("BZ1021", f"{what} give results of different structure: {first.spec} and {second.spec}")
    for place, (a, b) in enumerate(zip(first.leaves, second.leaves, strict=True)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if facts(a) != facts(b):
                graph_break("BZ1021", f"{what} differ in result {place}: {told(a)} and {told(b)}")
        elif type(a) is not int or type(b) is not int or a != b:
            graph_break(
                "BZ1021",
                f"{what} give a {type(a).__name__} and a {type(b).__name__}: only tensors can be chosen",
            )


def same_as(leaves: Sequence[Any], carried: Sequence[Any], what: str) -> None:
    """Break where the next values of a loop are not like the present ones."""
    for place, (a, b) in enumerate(zip(leaves, carried, strict=True)):
        if not isinstance(a, torch.Tensor) or facts(a) != facts(b):
            now = told(a) if isinstance(a, torch.Tensor) else type(a).__name__
            graph_break("BZ1021", f"{what} gives {now} for value {place}, which is {told(b)}")


def facts(x: torch.Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.dtype, x.device, tuple(x.stride())


def told(x: torch.Tensor) -> str:
    return (
        f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} of strides {tuple(x.stride())} on {x.device}"
    )


def stacked(graph: GraphState, part: Traced, carried: Sequence[Any], rows: Sequence[Any]) -> tuple[Any, ...]:
    """The node of a function of rows; its results."""
    others = union(part)
    if rows[0].shape[0] == 0 or any(x.shape[0] != rows[0].shape[0] for x in rows):
        graph_break("BZ1019", "its rows are none, or not equally many")
    count = rows[0].shape[0]
    if not all(isinstance(x, torch.Tensor) for x in part.leaves):
        graph_break("BZ1019", "its function gives something else than tensors")
    last, each = part.leaves[: len(carried)], part.leaves[len(carried) :]
    fakes = [
        *map(bare, last),
        *[torch.empty((count, *x.shape), dtype=x.dtype, device=x.device) for x in each],
    ]
    results = control_flow.connected(tuple(fakes), (*carried, *rows, *others))
    modules = {"step_graph": part.module([*part.recorder.own, *others])}
    note(graph, control_flow.scan, (), modules, (tuple(carried), tuple(rows), tuple(others)), results)
    return results


def bare(x: torch.Tensor) -> torch.Tensor:
    """A fake of the same metadata, without a history."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def moved(graph: GraphState, x: Any, dim: int, reverse: bool) -> Any:
    """``x`` with the dimension of a scan in front, in the order of the scan; rows lie together."""
    if dim:
        x = graph.recorder.call(torch.movedim, (x, dim, 0), {})
    if reverse:
        x = graph.recorder.call(torch.flip, (x, [0]), {})
    return graph.recorder.call(torch.Tensor.contiguous, (x,), {}) if dim else x


def moved_back(graph: GraphState, x: Any, dim: int, reverse: bool) -> Any:
    """The reverse of ``moved``, for a result."""
    if reverse:
        x = graph.recorder.call(torch.flip, (x, [0]), {})
    return graph.recorder.call(torch.movedim, (x, 0, dim), {}) if dim and dim < x.dim() else x


# -- ``associative_scan``


FEATURE.rows({torch_associative_scan: lambda t, args, kwargs, tail: associative_scan(t, *args, **kwargs)})


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
