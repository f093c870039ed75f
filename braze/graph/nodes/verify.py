"""What each dialect of graph allows, checked."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch._ops import OpOverload

from braze.graph.nodes.facts import facts
from braze.graph.nodes.specs import Dialect
from braze.graph.sizes.numbers import ALLOWED
from braze.support.errors import InternalError

Node = torch.fx.Node


def verify(
    module: torch.fx.GraphModule,
    dialect: Dialect,
    *,
    after: str = "",
    allowed: Collection[Any] | None = None,
) -> None:
    """Raise InternalError, with the neighbourhood, where the graph is not of the dialect.

    ``allowed``: for CORE, the operators that may appear besides fallbacks (None: any).
    """
    try:
        module.graph.lint()
    except RuntimeError as error:
        raise InternalError("BZ9020", f"a malformed graph after {after}", why=str(error)) from error
    rules = _RULES[dialect]
    nodes = list(module.graph.nodes)
    for i, node in enumerate(nodes):
        for rule in rules:
            fault = rule(node, module)
            if fault:
                raise _fault(nodes, i, fault, dialect, after)
        if allowed is not None and node.op == "call_function" and not _is_allowed(node, allowed):
            raise _fault(nodes, i, "operator is not of the core set", dialect, after)


def _is_allowed(node: Node, allowed: Collection[Any]) -> bool:
    return node.target is operator.getitem or node.target in ALLOWED or node.target in allowed


def _ends_in_a_tuple(node: Node, module: torch.fx.GraphModule) -> str:
    if node.op == "output" and not isinstance(node.args[0], (tuple, list)):
        return "the output is not a tuple"
    return ""


def _has_a_value(node: Node, module: torch.fx.GraphModule) -> str:
    if node.op != "output" and "val" not in node.meta:
        return "the node has no meta['val']"
    return ""


def _is_aten(node: Node, module: torch.fx.GraphModule) -> str:
    if node.op in ("call_method", "call_module"):
        return f"{node.op} in an ATen graph"
    if node.op != "call_function" or isinstance(node.target, OpOverload):
        return ""
    if node.target is operator.getitem or node.target in ALLOWED:
        return ""
    return f"{node.target} is no ATen overload"


def _writes_nothing(node: Node, module: torch.fx.GraphModule) -> str:
    if node.op == "call_function" and isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
        return f"{node.target} writes to its arguments"
    return ""


def _attribute_exists(node: Node, module: torch.fx.GraphModule) -> str:
    if node.op == "get_attr":
        try:
            operator.attrgetter(str(node.target))(module)
        except AttributeError:
            return f"the module has no attribute {node.target}"
    return ""


def _metadata_is_true(node: Node, module: torch.fx.GraphModule) -> str:
    """getitem's value is the item of its source's."""
    if node.op == "call_function" and node.target is operator.getitem:
        source, index = node.args  # type: ignore[misc]
        parts = source.meta.get("val") if isinstance(source, Node) else None
        if isinstance(parts, (tuple, list)) and isinstance(index, int) and index >= len(parts):
            return f"item {index} of {len(parts)} results"
    return ""


Rule = Callable[[Node, torch.fx.GraphModule], str]

_ANY: tuple[Rule, ...] = (_ends_in_a_tuple, _attribute_exists)
_RULES: dict[Dialect, tuple[Rule, ...]] = {
    Dialect.CAPTURED: _ANY,
    Dialect.JOINT: (*_ANY, _has_a_value, _is_aten, _metadata_is_true),
    Dialect.FUNCTIONAL: (*_ANY, _has_a_value, _is_aten, _metadata_is_true, _writes_nothing),
    Dialect.CORE: (*_ANY, _has_a_value, _is_aten, _metadata_is_true, _writes_nothing),
}


def _fault(nodes: list[Node], i: int, fault: str, dialect: Dialect, after: str) -> InternalError:
    around = [
        ("-> " if k == i else "   ") + (nodes[k].format_node() or "output")
        for k in range(max(0, i - 5), min(len(nodes), i + 6))
    ]
    return InternalError(
        "BZ9020",
        f"{fault} ({nodes[i].name}, dialect {dialect.value}{', after ' + after if after else ''})",
        why="\n" + "\n".join(around),
        origin=facts(nodes[i]).origin,
    )
