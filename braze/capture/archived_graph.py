"""Graphs as lists of nodes, and a written graph made whole again: fakes for its inputs, metadata for its nodes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from braze.capture.archived_values import NotArchived, Reader, Writer
from braze.capture.state import TorchState
from braze.graph import fakes
from braze.support.errors import BrazeError

#: functions that are done as they are: they read or write attributes, or take results apart
DIRECT = (getattr, setattr, operator.getitem)


def write_graph(module: torch.fx.GraphModule, writer: Writer) -> list[Any]:
    """The nodes in order: [op, name, target, args, kwargs, role, origin, setting, value of an attribute]."""
    rows = []
    for node in module.graph.nodes:
        if node.op == "call_module":
            raise NotArchived("the graph calls a module")
        held = _attribute(module, node.target) if node.op == "get_attr" else None
        meta = node.meta
        origin = meta.get("origin")
        row = [node.target, node.args, node.kwargs, meta.get("role"), origin, bool(meta.get("setting")), held]
        rows.append([node.op, node.name, *map(writer.write, row)])
        writer.nodes[node] = len(writer.nodes)
    return rows


def read_graph(rows: list[Any], reader: Reader) -> torch.fx.GraphModule:
    """The graph as it was, without metadata of values."""
    graph = torch.fx.Graph()
    held: dict[str, Any] = {}
    for op, name, *row in rows:
        target, args, kwargs, role, origin, setting, attribute = map(reader.read, row)
        if op == "get_attr":
            held[target] = attribute
        node = graph.create_node(op, target, args, kwargs, name=name)
        reader.nodes.append(node)
        if role is not None:
            node.meta["role"] = role
        if op not in ("placeholder", "output"):
            node.meta["origin"] = origin
        if setting:
            node.meta["setting"] = True
    return torch.fx.GraphModule(held, graph, class_name="Captured")


def revive(module: torch.fx.GraphModule, sources: Sequence[Any], reals: Sequence[Any]) -> tuple[Any, ...]:
    """Run the graph on fakes of the real inputs, so that each node knows its value; the inputs' fakes."""
    mode = fakes.new_mode()
    state = TorchState(None)  # type: ignore[arg-type]  # only what it keeps of PyTorch's state is used
    state.remember()
    try:
        with state.outside_inference(), mode:
            examples = tuple(mode.fake(real) for real in reals)
            for node, fake, source in zip(_placeholders(module), examples, sources, strict=True):
                node.meta["val"] = fake
                node.meta["source"] = str(source)
            _Walk(module, mode).run()
    except BrazeError:
        raise
    except Exception as error:
        raise NotArchived(f"the graph does not run on these inputs: {error}") from error
    finally:
        mode.release()
        state.restore()
    return examples


def _placeholders(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


class _Walk:
    """One run of a graph on fakes."""

    def __init__(self, module: torch.fx.GraphModule, mode: fakes.FakeMode) -> None:
        self.module = module
        self.mode = mode
        self.grad: list[bool] = []

    def run(self) -> None:
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                continue
            args, kwargs = _values(node.args), _values(node.kwargs)
            if node.op == "output":
                node.meta["val"] = args[0]
            elif node.op == "get_attr":
                node.meta["val"] = self.mode.fake(_attribute(self.module, node.target))
            elif node.op == "call_method":
                node.meta["val"] = self.mode.call(getattr(torch.Tensor, node.target), args, kwargs)
            else:
                self._call(node, args, kwargs)

    def _call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> None:
        name = getattr(node.target, "__name__", "")
        if name == "_enter_inference_mode":  # fakes are ordinary tensors: only gradients stop
            self.grad.append(torch.is_grad_enabled())
            torch.set_grad_enabled(not args[0])
        elif name == "_exit_inference_mode":
            torch.set_grad_enabled(self.grad.pop())
        elif node.target in DIRECT or node.meta.get("setting"):
            node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
        else:
            node.meta["val"] = self.mode.call(node.target, args, kwargs)


def _values(args: Any) -> Any:
    """Arguments with the values of nodes, in plain lists and dicts."""
    if isinstance(args, torch.fx.Node):
        return args.meta.get("val")
    if isinstance(args, tuple):
        made = [_values(a) for a in args]
        return tuple(made) if type(args) is tuple else type(args)(*made)
    if isinstance(args, list):
        return [_values(a) for a in args]
    if isinstance(args, dict):
        return {k: _values(v) for k, v in args.items()}
    if isinstance(args, slice):
        return slice(_values(args.start), _values(args.stop), _values(args.step))
    return args


def _attribute(module: torch.fx.GraphModule, path: Any) -> Any:
    found = operator.attrgetter(path)(module)
    if not isinstance(found, torch.Tensor):
        raise NotArchived(f"the graph holds a {type(found).__name__}")
    return found
