"""Graphs as rows, a node each, in order: [op, name, target, args, kwargs, and what else is said of it]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Graph, Node

from braze.capture.archive.archived_values import NotArchived, Reader, Writer


def write_nodes(graph: Graph, writer: Writer, said: Callable[[Node], Sequence[Any]]) -> list[Any]:
    """The rows of a graph, with what is ``said`` of each node; it refuses nodes by NotArchived. What is written later may name the nodes."""
    rows, writer.nodes = [], {}
    for node in graph.nodes:
        row = map(writer.write, (node.target, node.args, node.kwargs, *said(node)))
        rows.append([node.op, node.name, *row])
        writer.nodes[node] = len(writer.nodes)
    return rows


def without_tensors(node: Node) -> tuple[()]:
    """Nothing is said of a node beside its call; a graph that holds tensors is refused."""
    if node.op == "get_attr":
        raise NotArchived("a graph holds a tensor")
    return ()


def read_nodes(rows: Sequence[Any], reader: Reader) -> tuple[Graph, list[list[Any]]]:
    """The graph again, and what was said of its nodes."""
    graph, reader.nodes = Graph(), []
    notes = []
    for op, name, *row in rows:
        target, args, kwargs, *said = map(reader.read, row)
        reader.nodes.append(graph.create_node(op, target, args, kwargs, name=name))
        notes.append(said)
    return graph, notes
