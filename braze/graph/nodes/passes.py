"""Passes over graphs of ATen operators, and the runner that names, times and verifies them.

Each pass takes a GraphModule in the FUNCTIONAL or CORE dialect, changes it in place and says whether it did.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from braze.graph.nodes.facts import facts, set_facts
from braze.graph.nodes.specs import Dialect
from braze.graph.nodes.verify import verify
from braze.graph.operators.operators import REFUSING, is_view, name_of, operator_facts
from braze.runtime.operators.purity import may_draw
from braze.support import trace
from braze.support.log import logger
from braze.support.record import record

aten = torch.ops.aten

Node = torch.fx.Node
#: those whose order may be given beside (`sorter`)
_SEARCHES = frozenset({aten.searchsorted.Tensor, aten.searchsorted.Scalar})


@record
class GraphPass:
    """A named rewrite."""

    name: str
    run: Callable[[torch.fx.GraphModule], bool]


def run_passes(
    module: torch.fx.GraphModule, passes: Sequence[GraphPass], dialect: Dialect, *, verify_level: int
) -> None:
    """Run passes in order; at level 2 verify after each, at level 1 at the end."""
    for each in passes:
        before = len(module.graph.nodes)
        with trace.stage(f"aot.{each.name}"):
            changed = each.run(module)
        if changed:
            logger("aot").debug("%s: %d -> %d nodes", each.name, before, len(module.graph.nodes))
        if verify_level >= 2:
            verify(module, dialect, after=each.name)
    if verify_level == 1:
        verify(module, dialect, after=passes[-1].name if passes else "no pass")


def is_impure(node: Node) -> bool:
    """Whether a node must stay though nobody reads it: it writes, may draw random numbers, or only checks something."""
    if node.op in ("placeholder", "output"):
        return True
    if node.op != "call_function":
        return False
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    return schema.is_mutable or not schema.returns or may_draw(node.target)


def may_fail(node: Node) -> bool:
    """Whether a node may raise for what its tensors hold, which eager does whoever reads it: places that do not exist, integers divided by zero.

    Not a derivative's, which eager computes only where somebody asks for it.
    """
    if not isinstance(node.target, OpOverload) or node.target.namespace != "aten" or facts(node).tangents:
        return False
    if name_of(node.target) in REFUSING:
        return not (_picks_by_masks(node) or _searches_in_order(node))
    known = operator_facts(node.target)
    if known is None or not known.divides:
        return False
    made, divisor = node.meta.get("val"), node.args[1] if len(node.args) > 1 else None
    if not isinstance(made, torch.Tensor) or made.dtype.is_floating_point or made.dtype.is_complex:
        return False
    return not isinstance(divisor, (int, float)) or not divisor


def _picks_by_masks(node: Node) -> bool:
    """Whether a node takes elements, or writes one number to them, where masks say so: these tell of no place that is not there."""
    if node.target is aten.index_put.default:
        number = node.args[2].meta["val"].numel()  # type: ignore[union-attr]
        if type(number) is not int or number != 1:
            return False
    elif node.target is not aten.index.Tensor:
        return False
    places = [n.meta["val"].dtype for n in node.args[1] if isinstance(n, Node)]  # type: ignore[union-attr]
    return all(dtype in (torch.bool, torch.uint8) for dtype in places)


def _searches_in_order(node: Node) -> bool:
    """Whether a node searches what lies in order: alone an order that is given beside may name places that do not exist."""
    return node.target in _SEARCHES and node.kwargs.get("sorter") is None


def remove_dead_nodes(module: torch.fx.GraphModule) -> bool:
    """Drop nodes that nobody reads."""
    return drop_unread(module.graph)


def drop_unread(
    graph: torch.fx.Graph, stays: Callable[[Node], bool] = lambda node: facts(node).for_error
) -> bool:
    """As :func:`remove_dead_nodes`, on a graph; but for what has effects, or ``stays``."""
    changed = False
    for node in reversed(graph.nodes):
        if not node.users and not is_impure(node) and not stays(node):
            graph.erase_node(node)
            changed = True
    return changed


def drop_unread_of_program(graph: torch.fx.Graph) -> None:
    """As :func:`drop_unread`, on a graph as the program has it: what it reads nothing of, and may fail, runs for its error from here on.

    What passes leave unread later has been replaced, or stands in a backward whose forward has run it.
    """
    drop_unread(graph, _runs_for_error)


def _runs_for_error(node: Node) -> bool:
    fails = facts(node).for_error or may_fail(node)
    if fails:
        set_facts(node, for_error=True)
    return fails


def merge_equal_nodes(module: torch.fx.GraphModule) -> bool:
    """Compute once what is computed twice from the same arguments; what the program goes on to write is no other value."""
    seen: dict[Any, Node] = {}
    changed = False
    for node in module.graph.nodes:
        if node.op == "get_attr":
            key: Any = ("get_attr", node.target)
        elif node.op == "call_function" and not is_impure(node) and not _stays_apart(node):
            key = (node.target, _hashable(node.args), _hashable(node.kwargs), _leads_here(node))
        else:
            continue
        known = seen.setdefault(key, node)
        if known is not node:
            node.replace_all_uses_with(known)
            module.graph.erase_node(node)
            changed = True
    return changed


def _leads_here(node: Node) -> int:
    """The tangents that lead to a number all over, which may be a gradient: zeros of the program, or for another tangent, are others.

    A gradient is left out where its tangent does not come in, and added where it does. What reads other values stays apart with these.
    """
    reads = any(not isinstance(n.meta.get("val"), (torch.SymInt, int)) for n in node.all_input_nodes)
    return 0 if reads else facts(node).tangents


def _stays_apart(node: Node) -> bool:
    """Whether a value is a tensor of its own, though another has the same numbers; or a derivative may make it of other memory than the program has."""
    known = facts(node)
    if known.gradient or known.written_after or any(facts(n).moved_after for n in node.all_input_nodes):
        return True
    return any(facts(part).written_after for part in node.users if part.target is operator.getitem)


def remove_no_ops(module: torch.fx.GraphModule) -> bool:
    """Drop operators that give their argument's value with its metadata: copies, casts, views to the same shape.

    In a functional graph a copy of a value is the value. One that changes the strides stays: views further on may need them;
    so does one that is read by its place in memory: an input need not begin where its memory does; and one of which a part is a result,
    which lies in the copy's memory. A value of the program that a custom backward gives is copied to be known as a gradient, and stays that.
    """
    changed = False
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in _NO_OPS or not _gives_its_argument(node):
            continue
        if not (
            facts(node).gradient
            or any(user.target in BY_PLACE for user in node.users)
            or (node.target in _COPIES and _is_returned_in_part(node))
        ):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
            changed = True
    return changed


def _is_returned_in_part(copy: Node) -> bool:
    """Whether a part of what the program has copied is a result of the graph: whoever gets it may look at the rest."""
    if facts(copy).tangents:
        return False
    pending = [(copy, False)]
    while pending:
        value, is_part = pending.pop()
        for user in value.users:
            if user.op == "output" and is_part:
                return True
            if user.target in _PARTS or is_view(user.target):
                pending.append((user, is_part or user.target in _PARTS))
            elif user.target is operator.getitem:
                pending.append((user, is_part))
    return False


def fold_view_chains(module: torch.fx.GraphModule) -> bool:
    """Shorten chains of views: a view of a view, a permute of a permute."""
    changed = False
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in _FOLDS and isinstance(node.args[0], Node):
            changed |= _FOLDS[node.target](node, node.args[0])
    return changed


def fill_what_is_written(module: torch.fx.GraphModule) -> bool:
    """Let new memory whose one reader writes a part of it hold zeros: it may hold anything, and what is written over a constant may be one, too."""
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=aten.empty.memory_format):
        readers = list(node.users)
        if len(readers) != 1 or readers[0].target not in _WRITES_A_PART or readers[0].args[0] is not node:
            continue
        dtype, options = node.meta["val"].dtype, node.kwargs
        by_rows = options.get("memory_format") in (None, torch.contiguous_format)
        if dtype.is_complex or not by_rows or options.get("pin_memory"):
            continue
        told = {"dtype": dtype, "device": node.meta["val"].device}
        zero = False if dtype is torch.bool else 0
        with module.graph.inserting_before(node):
            filled = module.graph.call_function(aten.full.default, (node.args[0], zero), told)
        filled.meta = node.meta.copy()
        node.replace_all_uses_with(filled)
        module.graph.erase_node(node)
        changed = True
    return changed


#: before the others, but where the program asks for the same numbers each time: new memory holds nan in eager then
FILLING = GraphPass("fill_what_is_written", fill_what_is_written)
DEFAULT = (
    GraphPass("remove_no_ops", remove_no_ops),
    GraphPass("fold_view_chains", fold_view_chains),
    GraphPass("merge_equal_nodes", merge_equal_nodes),
    GraphPass("remove_dead_nodes", remove_dead_nodes),
)


#: operators that count in the memory of their first argument
BY_PLACE = frozenset({aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default})

#: operators that give their first argument but for a part that they write
_WRITES_A_PART = frozenset({aten.select_scatter.default, aten.slice_scatter.default})

# -- parts ---------------------------------------------------------------------------------------

_NO_OPS = frozenset(
    {
        aten.clone.default, aten._to_copy.default, aten.view.default, aten.expand.default,
        aten.permute.default, aten.slice.Tensor, aten.squeeze.dims,
    }
)  # fmt: skip


_COPIES = frozenset({aten.clone.default, aten._to_copy.default})
#: views of some of the elements
_PARTS = frozenset(
    {
        aten.slice.Tensor, aten.select.int, aten.diagonal.default, aten.unfold.default,
        aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int,
    }
)  # fmt: skip


def _gives_its_argument(node: Node) -> bool:
    source = node.args[0]
    if not isinstance(source, Node):
        return False
    have, want = source.meta.get("val"), node.meta.get("val")
    if not isinstance(have, torch.Tensor) or not isinstance(want, torch.Tensor):
        return False
    if (have.dtype, have.device) != (want.dtype, want.device) or not _same_sizes(have.shape, want.shape):
        return False
    if node.target is aten.permute.default:
        rank = have.dim()  # places may be counted from the end: (-1, 0) is in order, and turns
        return [d % rank for d in node.args[1]] == list(range(rank))  # type: ignore[operator, union-attr]
    if node.target is aten.view.default:
        return _lie_alike_at_ones(have, want)
    return node.target is aten.slice.Tensor or _same_sizes(have.stride(), want.stride())


def _lie_alike_at_ones(have: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether dimensions of one place have equal strides: a view to its argument's own shape gives them others."""
    ones = [d for d, size in enumerate(have.shape) if type(size) is int and size == 1]
    return _same_sizes([have.stride(d) for d in ones], [want.stride(d) for d in ones])


def _same_sizes(a: Any, b: Any) -> bool:
    """Equal sizes, without asking anything of symbols (which would add guards)."""
    return len(a) == len(b) and all(_same_size(x, y) for x, y in zip(a, b, strict=True))


def _same_size(x: Any, y: Any) -> bool:
    if type(x) is int and type(y) is int:
        return x == y
    return isinstance(x, torch.SymInt) and isinstance(y, torch.SymInt) and x.node.expr == y.node.expr


def _fold_view(node: Node, source: Node) -> bool:
    """view(view(x)) = view(x): both list the elements of x in row-major order."""
    if source.op != "call_function" or source.target is not aten.view.default:
        return False
    base = source.args[0]
    if not isinstance(base, Node) or not base.meta["val"].is_contiguous():
        return False
    node.args = (base, *node.args[1:])
    return True


def _fold_permute(node: Node, source: Node) -> bool:
    """permute(permute(x, a), b) = permute(x, a[b])."""
    if source.op != "call_function" or source.target is not aten.permute.default:
        return False
    inner, outer = source.args[1], node.args[1]
    node.args = (source.args[0], [inner[d] for d in outer])  # type: ignore[index, union-attr]
    return True


_FOLDS: dict[Any, Callable[[Node, Node], bool]] = {
    aten.view.default: _fold_view,
    aten.permute.default: _fold_permute,
}


def _hashable(part: Any) -> Any:
    """A key that tells 1 from 1.0 and True, and -0.0 from 0.0."""
    kind = type(part)
    if kind is Node:
        return part
    if isinstance(part, (list, tuple)):
        return tuple(map(_hashable, part))
    if isinstance(part, dict):
        return tuple((k, _hashable(v)) for k, v in part.items())
    if kind is float:
        return float, part.hex()
    if kind is complex:
        return complex, part.real.hex(), part.imag.hex()
    if kind is slice:
        return slice, _hashable((part.start, part.stop, part.step))
    return kind, part
