"""An FX graph as a Python file that runs: a function of the inputs, with shapes, types and the user's lines.

``print_graph`` gives the text; executing it defines ``forward`` (and ``attributes``, the names that the graph's
module holds, to be filled by whoever runs it).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload

from braze.graph.nodes.facts import facts
from braze.support.dtypes import short


def print_graph(module: torch.fx.GraphModule) -> str:
    """The graph's text."""
    nodes = list(module.graph.nodes)
    inputs = [n for n in nodes if n.op == "placeholder"]
    names = {n: _safe(n.name) for n in nodes}
    lines = [
        "import operator",
        "import torch",
        "from torch import inf, nan, device",
        "",
        "aten = torch.ops.aten",
        "attributes = {}",
        "",
        "",
        f"def forward({', '.join(names[n] for n in inputs)}):",
    ]
    lines += [f"    # {names[n]}: {describe(n.meta.get('val'))}{_role(n)}" for n in inputs]
    lines += [
        f"    # attribute {n.target}: {describe(n.meta.get('val'))}" for n in nodes if n.op == "get_attr"
    ]
    place = None
    for node in nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            lines.append(f"    return {_text(node.args[0], names)}")
            break
        origin = facts(node).origin
        if origin is not None and (origin.file, origin.line) != place:
            place = (origin.file, origin.line)
            lines.append(f"    # {origin}")
        lines.append(f"    {names[node]} = {_call(node, names)}  # {describe(node.meta.get('val'))}")
    return "\n".join(lines) + "\n"


def describe(value: Any) -> str:
    """``f32[2, 3]`` for a tensor; with strides where they are not the contiguous ones."""
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(map(str, value.shape))
        text = f"{short(value.dtype)}[{sizes}]"
        if all(type(s) is int for s in (*value.shape, *value.stride())) and not value.is_contiguous():
            text += f" strides {tuple(value.stride())}"
        return text if value.device.type == "cpu" else f"{text} on {value.device}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(describe, value))})"
    return type(value).__name__ if value is not None else "None"


def _role(node: torch.fx.Node) -> str:
    known = facts(node)
    words = [*([known.role.value] if known.role else ()), *([known.source] if known.source else ())]
    return f"  ({', '.join(words)})" if words else ""


def _safe(name: str) -> str:
    return f"{name}_" if name in ("torch", "aten", "operator", "attributes", "inf", "nan", "device") else name


def _call(node: torch.fx.Node, names: dict[torch.fx.Node, str]) -> str:
    if node.op == "get_attr":
        return f"attributes[{str(node.target)!r}]"
    args = [_text(a, names) for a in node.args]
    kwargs = [f"{k}={_text(v, names)}" for k, v in node.kwargs.items()]
    if node.op == "call_method":
        return f"{args[0]}.{node.target}({', '.join(args[1:] + kwargs)})"
    if node.op == "call_module":
        return f"attributes[{str(node.target)!r}]({', '.join(args + kwargs)})"
    if node.target is operator.getitem:
        return f"{args[0]}[{args[1]}]"
    return f"{_target(node.target)}({', '.join(args + kwargs)})"


def _target(target: Any) -> str:
    if isinstance(target, OpOverload):
        namespace, name = target._schema.name.split("::")
        prefix = "aten" if namespace == "aten" else f"torch.ops.{namespace}"
        return f"{prefix}.{name}.{target._overloadname}"
    module = getattr(target, "__module__", None) or "torch"
    if module == "_operator":
        module = "operator"
    elif module.startswith("torch._") or module == "builtins":
        module = "torch" if hasattr(torch, target.__name__) else module
    return f"{module}.{target.__name__}"


def _text(value: Any, names: dict[torch.fx.Node, str]) -> str:
    if isinstance(value, torch.fx.Node):
        return names[value]
    if isinstance(value, tuple):
        inner = ", ".join(_text(v, names) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, list):
        return f"[{', '.join(_text(v, names) for v in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_text(v, names)}" for k, v in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({', '.join(_text(v, names) for v in (value.start, value.stop, value.step))})"
    return repr(value)
