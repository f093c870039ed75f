"""Quicker ways to what PyTorch does once for each node of a graph, or once for each trace."""

from __future__ import annotations

import copy
import functools
import re
import traceback
import types
from collections.abc import Callable
from typing import Any

import torch.fx
import torch.fx.graph
from torch._subclasses.fake_tensor import FakeTensorMode

from braze.graph.private.torch_checks import assumption
from braze.support.caches import remembered


def add_call(
    graph: torch.fx.Graph, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> torch.fx.Node:
    """A node at the end of a graph. ``create_node`` would search the arguments for symbols, and take the name apart."""
    names = graph._graph_namespace
    if graph.owning_module is not None or not _is_free(name) or not quick_nodes.holds():
        node = graph.create_node(op, target, (), {}, name)
        node._update_args_kwargs(args, kwargs)
        return node
    known, taken = names._used_names, names._base_count.get(name, 0)
    own = name
    while own in known:
        taken += 1
        own = f"{name}_{taken}"
    known.add(own)
    names._base_count[name] = taken
    node = torch.fx.Node(graph, own, op, target, args, kwargs)
    names._obj_to_name[node] = own
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    return node


def operator_call(
    graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.Node:
    """A call of an operator at the end of a graph, with the name that FX gives it."""
    return add_call(graph, "call_function", target, args, kwargs, _name_of(target))


def copy_of(
    graph: torch.fx.Graph, node: torch.fx.Node, argument: Callable[[torch.fx.Node], Any]
) -> torch.fx.Node:
    """A node of another graph at the end of this one; ``argument``: what stands there for what it reads."""
    args: Any = torch.fx.node.map_arg(node.args, argument)
    kwargs: Any = torch.fx.node.map_arg(node.kwargs, argument)
    made = add_call(graph, node.op, node.target, args, kwargs, node.name)
    made.type, made.meta = node.type, copy.copy(node.meta)
    return made


@remembered(8192)
def _name_of(target: Any) -> str:
    return re.sub(r"[^0-9a-zA-Z_]+", "_", torch.fx.Graph()._target_to_str(target))


@remembered(8192)
def _is_free(name: str) -> bool:
    """Whether FX takes a name as it is: no word of Python's nor a builtin, and no number at its end, by which it counts."""
    plain = torch.fx.graph._Namespace().create_name(name, None) == name
    return plain and re.search(r"_\d+$", name) is None


@assumption("making of nodes", "nodes of graphs are made by PyTorch's own, slower way")
def quick_nodes() -> None:
    """A node put together here is one that PyTorch makes."""
    graphs = torch.fx.Graph(), torch.fx.Graph()
    for name in ("relu", "relu", "add"):
        add_call(graphs[0], "call_function", torch.relu, (), {}, name)
        graphs[1].create_node("call_function", torch.relu, (), {}, name)
    for _ in range(2):
        operator_call(graphs[0], torch.ops.aten.relu.default, (), {})
        graphs[1].call_function(torch.ops.aten.relu.default)
    told = [
        (
            [(n.name, n.op, n.target, n.args, n.kwargs, n.type, n.prev.name, n.next.name) for n in g.nodes],
            {k: v for k, v in vars(g._graph_namespace).items() if k != "_obj_to_name"},
            sorted(g._graph_namespace._obj_to_name.values()),
            [n.name for n in g.find_nodes(op="call_function", target=torch.relu)],
            len(g.nodes),
        )
        for g in graphs
    ]
    if told[0] != told[1]:
        raise AssertionError(f"a node is made as {told[0]}, not {told[1]}")


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


#: operators of which the size of the memory that an argument lies in decides
BY_MEMORY = frozenset(
    {torch.ops.aten._new_zeros_with_same_feature_meta.default, torch.ops.aten._has_same_storage_numel.default}
)
