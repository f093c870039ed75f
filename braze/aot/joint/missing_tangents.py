"""A backward for calls in which some gradients do not come in: what is made of those alone is left out.

Where a result has no part in the loss (the pooled output of an encoder, say), autograd hands in nothing for it. Eager then does not
run what leads there. A value made only of such tangents is undefined, as they are: a sum of gradients with it is the other summand,
a gradient that is undefined is not given, and for what else reads it stands zero.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import torch

from braze.aot.facts.inserted import inserted
from braze.aot.facts.records import Backward
from braze.aot.facts.symbols import is_size
from braze.aot.facts.views import hint, root_of
from braze.aot.joint.outputs import copied
from braze.graph.fakes.fakes import mode_of, on_fakes, spec_of, text_of
from braze.graph.nodes.captured import Late
from braze.graph.nodes.facts import facts, led_by
from braze.graph.nodes.passes import drop_unread, is_impure
from braze.graph.private import torch_compat

aten = torch.ops.aten
Node = torch.fx.Node


def without_tangents(backward: Backward, missing: Collection[int]) -> tuple[Backward, frozenset[int]]:
    """``backward`` where the tangents of these numbers are missing, and those that it does not read.

    Gradients that are undefined are not among its own; its inputs stay what they are. The backward itself, reading all, where
    a value that is read with others has no zeros to stand for it. A tangent whose sizes are asked is read, too.
    """
    graph = copy.deepcopy(backward.graph.graph)
    tangents = graph.find_nodes(op="placeholder")[len(backward.saved) :]
    come = [i for i in range(len(tangents)) if i not in missing]
    unread = [n for n in graph.nodes if facts(n).gradient and led_by(n)]
    undefined = {tangents[i] for i in missing} | {n for n in unread if not _is_led_to(n, come)}
    behind = _made_of(graph, [*tangents, *unread])
    for node in list(graph.nodes):
        if node not in behind:
            continue
        if undefined.isdisjoint(node.all_input_nodes):
            constant = _constant_summand(node, behind)
            if constant is None or _is_a_values(constant) or _is_led_to(constant, come):
                continue
            undefined.add(constant)
        if is_impure(node):
            return backward, frozenset()
        other = _other_summand(node, undefined, behind)
        stays = other is not None and (other in behind or _is_led_to(other, come))
        if all(n in undefined for n in node.all_input_nodes if n in behind) and not stays:
            undefined.add(node)
        elif other is not None:
            stands_in = _laid_out(graph, node, other)
            behind.add(stands_in)
            node.replace_all_uses_with(stands_in)
        elif not _reads_zeros(graph, node, node.all_input_nodes, undefined):
            return backward, frozenset()
    output: Any = graph.output_node()
    if not _zeros_for_constants(graph, backward, undefined, missing):
        return backward, frozenset()
    # a gradient may read no tangent (of a comparison, zeros), and none of those that lead to it comes in
    gone = {i for i, by in enumerate(backward.depends) if by and {*by} <= {*missing}}
    kept = [i for i, n in enumerate(output.args[0]) if n not in undefined and i not in gone]
    output.args = (tuple(output.args[0][i] for i in kept),)
    drop_unread(graph)
    separate_gradients(graph)
    graph.lint()
    made = dataclasses.replace(
        backward,
        graph=Late(graph, backward.graph),
        gradients=tuple(backward.gradients[i] for i in kept),
        depends=tuple(backward.depends[i] for i in kept),
    )
    return made, frozenset(i for i in missing if not tangents[i].users)


def separate_gradients(graph: torch.fx.Graph) -> bool:
    """Copy a gradient that is memory of an earlier one: both are kept, and what is accumulated into one is in the other. Whether one was."""
    output: Any = graph.output_node()
    gradients, taken = list(output.args[0]), set()
    for i, node in enumerate(gradients):
        if not isinstance(node, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        root = root_of(node)
        mode = mode_of([node.meta["val"]])
        if root in taken and mode is not None:
            with on_fakes(mode):
                gradients[i] = copied(node, output, mode)
        taken.add(root)
    changed = any(a is not b for a, b in zip(gradients, output.args[0], strict=True))
    output.args = (tuple(gradients),)
    return changed


def apart(backward: Backward) -> tuple[Backward, ...]:
    """A backward for each group of tangents that eager lets run apart; none where there is one group, or one that cannot be alone."""
    parts = []
    numbers = range(len(backward.tangents))
    groups = zip(backward.apart, backward.saving, strict=True) if len(backward.apart) > 1 else ()
    for group, saving in groups:
        others = [i for i in numbers if i not in group]
        part, unread = without_tangents(backward, others)
        if part is backward or not unread.issuperset(others):  # another's tangent may be read for its sizes
            return ()
        parts.append(dataclasses.replace(part, saving=(saving,)))
    return tuple(parts)


def _made_of(graph: torch.fx.Graph, tangents: Collection[Node]) -> set[Node]:
    """Tangents, and what is computed from them other than from their sizes."""
    found = set(tangents)
    for node in graph.nodes:
        if node.op == "call_function" and not is_size(node) and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _constant_summand(node: Node, behind: set[Node]) -> Node | None:
    """What is added to a gradient and reads no tangent: derivatives are linear, so it is a gradient too, zeros of what was written over."""
    if node.target is not aten.add.Tensor or node.kwargs:
        return None
    return next((n for n in node.args if isinstance(n, Node) and n not in behind), None)


def _is_a_values(summand: Node) -> bool:
    """Whether what is added is of the program's values, and so no gradient: a formula that is not linear (``logcumsumexp``'s, a custom one) adds it."""
    reads = (n for n in summand.all_input_nodes if not is_size(n))
    return not led_by(summand) and (summand.op == "placeholder" or any(reads))


def _is_led_to(constant: Node, come: Collection[int]) -> bool:
    """Whether a gradient that reads no tangent is of operations that run for one that comes in, as far as is known."""
    tangents = led_by(constant)
    return not tangents or any(tangents >> i & 1 for i in come)


def _other_summand(node: Node, undefined: set[Node], behind: set[Node]) -> Node | None:
    """What a sum is whose one summand is undefined, if the other has its form, but for strides that are known, or those of a copy."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    others = [n for n in node.args if n not in undefined]
    if len(others) != 1 or not isinstance(others[0], Node):
        return None
    if others[0] not in behind and _is_a_values(others[0]):
        return None
    value, other = node.meta["val"], others[0].meta["val"]
    if not isinstance(other, torch.Tensor):
        return None
    mine, its = spec_of(value), spec_of(other)
    known = all(isinstance(n, int) for n in (*mine.sizes, *mine.strides))
    if mine.dtype is not its.dtype or mine.sizes != its.sizes:
        return None
    placed = known or mine.strides == its.strides or _lies_so_when_turned(value, other)
    return others[0] if placed else None


#: (operator, the argument behind its first, keywords)
_Step = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _by_stride(value: torch.Tensor) -> list[int]:
    """The dims of a value from the outermost in memory to the innermost."""
    return sorted(range(value.dim()), key=lambda d: -hint(value.stride(d)))


def _turned_copy(value: torch.Tensor) -> list[_Step]:
    """How to copy what has the sizes of ``value``, of whatever strides, so that its dims lie in this one's order."""
    order = _by_stride(value)
    return [
        (aten.permute.default, (order,), {}),
        (aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (aten.permute.default, ([order.index(d) for d in range(len(order))],), {}),
    ]


def _lies_so_when_turned(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the turned copy of another value has the strides of ``value``, for all sizes."""
    mode = mode_of([other])
    if mode is None:
        return False
    with on_fakes(mode):
        for target, args, kwargs in _turned_copy(value):
            other = target(other, *args, **kwargs)
    return spec_of(other).strides == spec_of(value).strides


def _laid_out(graph: torch.fx.Graph, node: Node, other: Node) -> Node:
    """A value with the strides of the node that it stands for."""
    value = node.meta["val"]
    if spec_of(value).strides == spec_of(other.meta["val"]).strides:
        return other
    if not all(isinstance(n, int) for n in (*value.shape, *value.stride())):
        mode = mode_of([other.meta["val"]])
        assert mode is not None, "the other summand was asked for it"
        with on_fakes(mode):
            for target, args, kwargs in _turned_copy(value):
                other = inserted(node, target, other, *args, like=node, mode=mode, apart=True, kwargs=kwargs)
        return other
    options = {"dtype": value.dtype, "device": torch_compat.device_of_fake(value)}
    with graph.inserting_before(node):
        empty = graph.call_function(aten.empty_strided.default, ([*value.shape], [*value.stride()]), options)
        made = graph.call_function(aten.copy.default, (empty, other))
    empty.meta["val"] = made.meta["val"] = value
    return made


def _zeros_for_constants(
    graph: torch.fx.Graph, backward: Backward, undefined: set[Node], missing: Collection[int]
) -> bool:
    """Zeros for gradients to which a tangent that came in leads through an operation that does not read it (``x ** 0``)."""
    output: Any = graph.output_node()
    reached = [n for n, by in zip(output.args[0], backward.depends, strict=True) if not {*by} <= {*missing}]
    return _reads_zeros(graph, output, reached, undefined)


def _reads_zeros(graph: torch.fx.Graph, node: Node, sources: Sequence[Node], undefined: set[Node]) -> bool:
    """Let a node read zeros for what is undefined; False where that is not a plain dense tensor, or nothing tells its sizes.

    A sum reads negative ones: whatever is added to these stays what it is, with a zero's sign.
    """
    sums = node.target is aten.add.Tensor and not node.kwargs
    for source in [n for n in sources if n in undefined]:
        value = source.meta.get("val")
        if not isinstance(value, torch.Tensor) or (order := _dense_order(value)) is None:
            return False
        with graph.inserting_before(node):
            sizes = [_size(graph, value.shape[d], undefined) for d in order]
            if None in sizes:
                return False
            zeros = graph.call_function(
                aten.full.default,
                (sizes, _zero(value.dtype, negative=sums)),
                {"dtype": value.dtype, "device": torch_compat.device_of_fake(value)},
            )
            zeros.meta["val"] = _permuted(value, order)
            if order != sorted(order):
                zeros = graph.call_function(
                    aten.permute.default, (zeros, [order.index(d) for d in range(len(order))])
                )
                zeros.meta["val"] = value
        node.replace_input_with(source, zeros)
    return True


def _zero(dtype: torch.dtype, negative: bool) -> complex:
    if not negative:
        return 0
    return complex(-0.0, -0.0) if dtype.is_complex else -0.0


def _size(graph: torch.fx.Graph, size: int | torch.SymInt, undefined: set[Node]) -> Node | int | None:
    """What tells a size in a backward: a number or a tensor that comes in, best one that is read anyway."""
    known = text_of(size)
    if isinstance(known, int):
        return known
    given = graph.find_nodes(op="placeholder")
    for node in given:
        if isinstance(node.meta["val"], torch.SymInt) and text_of(node.meta["val"]) == known:
            return node
    for node in sorted(given, key=lambda n: n in undefined):
        value = node.meta["val"]
        for dim, other in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if text_of(other) == known:
                made = graph.call_function(aten.sym_size.int, (node, dim))
                made.meta["val"] = other
                return made
    return None


def _dense_order(value: torch.Tensor) -> list[int] | None:
    """In what order a value's dims lie in memory without gaps: their own if that may be, the outermost first; None where they do not."""
    orders = [*range(value.dim())], _by_stride(value)
    return next((order for order in orders if _is_row_major(_permuted(value, order))), None)


def _permuted(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A graph's value with its dims in another order."""
    mode = mode_of([value])
    if mode is None:
        return value.permute(*order)
    with on_fakes(mode):
        return aten.permute.default(value, order)  # type: ignore[no-any-return]


def _is_row_major(value: torch.Tensor) -> bool:
    """Whether new zeros of these sizes have these strides, for all sizes; a dim of one element may have any."""
    mode = mode_of([value])
    if mode is None or all(isinstance(n, int) for n in value.shape):
        return value.is_contiguous()
    with on_fakes(mode):
        zeros, its = spec_of(aten.full.default(list(value.shape), 0)), spec_of(value)
    return all(n == 1 or a == b for n, a, b in zip(its.sizes, its.strides, zeros.strides, strict=True))
