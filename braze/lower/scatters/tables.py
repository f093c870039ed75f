"""Gradients of large tables of which few rows were looked up, on the CPU.

A table that is looked up in several places, or that is also a layer's weight, has a gradient that is a sum of whole tables, each
zero almost everywhere. Here the rows are added to the one table that is dense, or to fresh zeros that nobody has to write. Applies
where the pages that the rows touch are fewer than half of the table's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import torch
import torch.fx

from braze.loops.ir import BufferKind, BufferView
from braze.lower.values.fallback import argument, call_extern, target_name
from braze.lower.values.lazy import Lazy
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import LOWERINGS, aten, lowering
from braze.runtime.operators.tables import ADD_TO_TABLE, BAG_GRADIENT, TABLE_GRADIENT
from braze.support.record import record
from braze.symbolic.expr import ZERO, contiguous_strides

Node = torch.fx.Node

#: bytes of a page, and of a table below which zeros are cheap
_PAGE, _SMALL = 4096, 1 << 20


@record
class TableSum:
    """A sum of tables: ``parts`` are gradients of lookups, ``others`` any tables, of which ``own`` may be written to."""

    others: tuple[Node, ...]
    parts: tuple[Node, ...]
    own: bool


def sums_of_tables(
    graph: torch.fx.Graph, readers: Mapping[Node, int]
) -> tuple[dict[Node, TableSum], frozenset[Node]]:
    """The sums with a part of few rows, by the node that is their result; and the nodes that are only steps of one."""
    found: dict[Node, TableSum] = {}
    steps: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in steps or node not in readers:
            continue
        inner: list[Node] = []
        leaves = _leaves(node, readers, inner)
        parts = tuple(leaf for leaf in leaves if _is_of_few_rows(leaf))
        if not parts:
            continue
        others = tuple(leaf for leaf in leaves if leaf not in parts)
        found[node] = TableSum(others, parts, len(others) == 1 and _is_fresh(others[0], readers))
        steps.update({*inner, *parts} - {node})
    return found, frozenset(steps)


def _leaves(node: Node, readers: Mapping[Node, int], inner: list[Node]) -> list[Node]:
    """What a node adds up, through additions that nobody else reads; the node itself where it adds nothing."""
    if node.target is not aten.add.Tensor or node.kwargs or not _same_tables(node):
        return [node]
    leaves: list[Node] = []
    for operand in node.args:
        assert isinstance(operand, Node)
        if readers.get(operand) != 1:
            leaves.append(operand)
        else:
            found = _leaves(operand, readers, inner)
            inner.extend([operand] if found != [operand] else [])
            leaves += found
    return leaves


def _same_tables(node: Node) -> bool:
    """Whether a node's operands have its shape and type; no table has sizes that vary, and these are not asked."""
    operands = [a.meta.get("val") if isinstance(a, Node) else None for a in node.args]
    values = [v for v in (node.meta["val"], *operands) if isinstance(v, torch.Tensor)]
    if len(values) <= len(operands) or any(v.dim() != 2 or v.device.type != "cpu" for v in values):
        return False
    if any(type(n) is not int for v in values for n in v.shape):
        return False
    return all(v.shape == values[0].shape and v.dtype is values[0].dtype for v in values)


def _is_of_few_rows(node: Node) -> bool:
    """Whether a node is the gradient of a table that stays zero almost everywhere."""
    if node.target is not aten.embedding_dense_backward.default or node.kwargs:
        return False
    _, indices, rows, padding, by_frequency = node.args
    if by_frequency or type(rows) is not int or type(padding) is not int or not isinstance(indices, Node):
        return False
    return _few(indices.meta["val"].numel(), node.meta["val"])


def _few(count: Any, table: torch.Tensor) -> bool:
    rows, width = table.shape
    if any(type(n) is not int for n in (count, rows, width)) or table.device.type != "cpu":
        return False
    if table.dtype not in (torch.float32, torch.float64) or not count:
        return False
    item = table.dtype.itemsize
    touched = count * (width * item + _PAGE)
    return bool(rows * width * item >= _SMALL and 2 * touched <= rows * width * item)


def _is_fresh(node: Node, readers: Mapping[Node, int]) -> bool:
    """Whether a node is a product of matrices, turned maybe, that nobody else reads."""
    while node.target in (aten.t.default, aten.permute.default) and readers.get(node) == 1:
        (node,) = node.all_input_nodes
    return node.target is aten.mm.default and readers.get(node) == 1


def lowered_sum(g: ProgramBuilder, total: TableSum, env: Mapping[Any, Any]) -> Any:
    """The sum: the rows added to the others, or on fresh zeros."""
    grads = tuple(env[part.args[0]] for part in total.parts)
    places = tuple(env[part.args[1]] for part in total.parts)
    paddings = tuple(part.args[3] for part in total.parts)
    if not total.others:
        rows = total.parts[0].args[2]
        return call_extern(g, TABLE_GRADIENT, (grads, places, rows, paddings), {})
    whole = reduce(lambda a, b: LOWERINGS[aten.add.Tensor](g, a, b), (env[other] for other in total.others))
    view = _own_memory(g, whole) if total.own else None
    if view is None:
        view = g.copy(whole, g.symbols.exprs(g.val.stride()))
    given = (view, argument(g, grads), argument(g, places), paddings)
    g.call(target_name(ADD_TO_TABLE), given, mutates=(view.buffer,))
    return g.lazy(view.buffer)


def _own_memory(g: ProgramBuilder, x: Lazy) -> BufferView | None:
    """The memory of a value that is a whole buffer of the program's, laid out as the result is to be; else None."""
    view = x.view
    if view is None or g.buffers[view.buffer].kind is not BufferKind.TEMPORARY or view.offset is not ZERO:
        return None
    wanted = tuple(g.symbols.exprs(g.val.stride()))
    whole = g.buffers[view.buffer]
    same = view.sizes == whole.sizes and view.strides == whole.strides == wanted
    return view if same and wanted == contiguous_strides(x.sizes) else None


@lowering(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    g: ProgramBuilder,
    grad: Lazy,
    indices: Lazy,
    offsets: Lazy,
    offset2bag: Lazy,
    bag_size: Lazy,
    maximum_indices: Lazy,
    rows: Any,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: Lazy | None,
    padding: int = -1,
) -> Any:
    """The gradient of a table whose rows were summed, or averaged, in bags."""
    plain = not by_frequency and not sparse and weights is None and mode in (0, 1)
    if not plain or not isinstance(rows, int) or not isinstance(g.val, torch.Tensor):
        return NotImplemented
    count = indices.sizes[0].value if indices.rank == 1 else None
    if not _few(count, g.val):
        return NotImplemented
    given = (grad, indices, offsets, bag_size, rows, mode, padding)
    return call_extern(g, BAG_GRADIENT, given, {})
