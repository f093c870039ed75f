"""What a graph computes, as a digest: graphs alike but for the tensors they are given have the same."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node

from braze.graph.fakes.fakes import mode_of_graph, spec_of
from braze.graph.private.torch_compat import storage_key
from braze.support.record import record


@record
class Structure:
    """``digest`` of what a graph does with inputs of what kind. ``portable``: it means the same in another process."""

    digest: str
    portable: bool


def structure_of(gm: GraphModule) -> Structure:
    """The structure of a graph: operators, how they are connected, numbers, and the types, sizes and devices of its inputs.

    Names of nodes and where their code stands do not count. Sizes count by the names of their symbols, with what is known of these. A graph that
    holds tensors, or objects without a value, is like no other.
    """
    text = _Text(gm)
    lines = [text.node(node) for node in gm.graph.nodes]
    mode = mode_of_graph(gm.graph)
    if mode is not None and mode.env is not None:
        lines += sorted(expression for expression, _ in mode.shape_relations())
    lines.append(f"gradients {torch.is_grad_enabled()}")
    return Structure(hashlib.sha256("\n".join(lines).encode()).hexdigest(), text.portable)


class _Text:
    """Writes nodes as lines in which other nodes are numbers."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.numbers: dict[Node, int] = {}
        self.storages: dict[int, int] = {}
        self.portable = True

    def node(self, node: Node) -> str:
        self.numbers[node] = len(self.numbers)
        if node.op == "placeholder":
            return f"input {self._input(node)}"
        target = self._value(node.target) if not isinstance(node.target, str) else node.target
        if node.op in ("get_attr", "call_module"):
            target += self._unique(self.gm)
        return f"{node.op} {target} {self._value(node.args)} {self._value(node.kwargs)}"

    def _input(self, node: Node) -> str:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return f"{type(value).__name__} {value}" if value is not None else self._unique(node)
        shared = self.storages.setdefault(storage_key(value), len(self.storages))
        return f"{spec_of(value)} grad={value.requires_grad} memory={shared}"

    def _value(self, value: Any) -> str:
        """A text that tells values apart."""
        if isinstance(value, Node):
            return f"%{self.numbers[value]}"
        if isinstance(value, float):
            return struct.pack(">d", value).hex()
        if value is None or isinstance(value, bool | int | str | bytes | complex):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format | torch.SymInt):
            return str(value)
        if isinstance(value, slice):
            return f"slice{self._value((value.start, value.stop, value.step))}"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{self._value(k)}:{self._value(v)}" for k, v in value.items()) + "}"
        if isinstance(value, Sequence):
            return f"{type(value).__name__}({','.join(map(self._value, value))})"
        return self._named(value)

    def _named(self, value: Any) -> str:
        """An object by its name, where it has one by which another process finds it."""
        if isinstance(value, OpOverload | OpOverloadPacket):
            return str(value)
        if value is Ellipsis:
            return "..."
        name, module = getattr(value, "__qualname__", None), getattr(value, "__module__", None)
        if isinstance(name, str) and "<" not in name:
            return f"{module}.{name}"
        return self._unique(value)

    def _unique(self, value: object) -> str:
        self.portable = False
        return f"<{id(value)}>"
