"""A captured graph as rows, and made whole again: fakes for its inputs, metadata for its nodes."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from braze.capture.archive.archived_values import NotArchived, Reader, Writer, read_nodes, write_nodes
from braze.capture.facts.records import Capture, Check, Source
from braze.capture.guards.tables import compile_relation
from braze.capture.outside.torch_state import TorchState
from braze.graph.fakes import fakes
from braze.graph.fakes.fake_dispatch import holds_unbacked
from braze.graph.fakes.fakes import spec_of
from braze.graph.nodes.facts import InputRole, facts, set_facts, tell_of_input
from braze.graph.nodes.specs import FloatSpec, SymbolSpec, TensorSpec
from braze.support.errors import BrazeError

#: functions that are done as they are: they read or write attributes, or take results apart
DIRECT = (getattr, setattr, operator.getitem)


def write_graph(module: torch.fx.GraphModule, writer: Writer) -> list[Any]:
    """The nodes as rows, each with its role, its origin, whether it sets something, what is done to it after the graph, and the value of an attribute."""

    def said(node: torch.fx.Node) -> tuple[Any, ...]:
        if node.op == "call_module":
            raise NotArchived("the graph calls a module")
        if holds_unbacked((node.meta.get("val"),)):
            raise NotArchived("the graph has numbers or sizes that only the data tell")
        known = facts(node)
        role = known.role.value if known.role is not None else None
        held = _attribute(module, node.target) if node.op == "get_attr" else None
        return (
            role,
            known.origin,
            known.setting,
            (known.written_after, known.moved_after, known.retained_after),
            held,
        )

    return write_nodes(module.graph, writer, said)


def read_graph(rows: list[Any], reader: Reader) -> torch.fx.GraphModule:
    """The graph as it was, without metadata of values."""
    graph, notes = read_nodes(rows, reader)
    held: dict[str, Any] = {}
    for node, (role, origin, setting, after, attribute) in zip(graph.nodes, notes, strict=True):
        if node.op == "get_attr":
            held[node.target] = attribute
        known = InputRole(role) if role is not None else None
        written, moved, retained = after
        done = {"written_after": written, "moved_after": moved, "retained_after": retained}
        set_facts(node, role=known, origin=origin, setting=setting, **done)
    return torch.fx.GraphModule(held, graph, class_name="Captured")


def revive(module: torch.fx.GraphModule, capture: Capture, reals: Sequence[Any]) -> tuple[Any, ...]:
    """Run the graph on fakes of the real inputs, so that each node knows its value; the inputs' fakes.

    Sizes that were symbols are symbols again, of the same names. What the new run assumes of them must be
    among what the capture's guards ask.
    """
    mode = fakes.new_mode(dynamic=not all(map(_is_static, capture.specs)))
    state = TorchState()  # only what it keeps of PyTorch's state is used
    state.remember()
    try:
        with state.outside_inference(), mode:
            examples = tuple(map(_example, itertools.repeat(mode), reals, capture.inputs, capture.specs))
            for node, real, fake, source in zip(
                _placeholders(module), reals, examples, capture.inputs, strict=True
            ):
                node.meta["val"] = fake
                set_facts(node, source=str(source))
                if isinstance(real, torch.Tensor):
                    tell_of_input(node, real)
            if mode.env is not None:
                _establish(capture, mode, examples)
            _Walk(module, mode).run()
            if mode.env is not None:
                _compare(capture, mode, examples)
    except (BrazeError, NotArchived):
        raise
    except Exception as error:
        raise NotArchived(f"the graph does not run on these inputs: {error}") from error
    finally:
        mode.release()
        state.restore()
    return examples


def _is_static(spec: Any) -> bool:
    return isinstance(spec, TensorSpec) and all(
        type(n) is int for n in (*spec.sizes, *spec.strides, spec.offset)
    )


def _example(mode: fakes.FakeMode, real: Any, source: Source, spec: Any) -> Any:
    """The fake of one input. A symbol is called after its source, so that its name comes back."""
    if isinstance(spec, SymbolSpec):
        return mode.symbol(real, str(source))
    if isinstance(spec, FloatSpec):
        return mode.float_symbol(real, str(source))
    dims = {d for d, size in enumerate(spec.sizes) if isinstance(size, str)}
    return mode.fake(real, symbolic_dims=dims or None, source=str(source) if dims else "")


def _establish(capture: Capture, mode: fakes.FakeMode, examples: Sequence[Any]) -> None:
    """Let the new symbols be known to obey what the trace found out; the guards have seen that they do."""
    symbols: dict[str, int] = {}
    values: list[Any] = []
    pairs: list[tuple[Any, str]] = []
    for example, spec in zip(examples, capture.specs, strict=True):
        if isinstance(spec, TensorSpec):
            places = zip((*example.shape, *example.stride()), (*spec.sizes, *spec.strides), strict=True)
            pairs += [(now, then) for now, then in places if isinstance(then, str)]
        else:
            pairs.append((example, spec.name))
    for now, _ in pairs:
        if isinstance(now, torch.SymInt | torch.SymFloat) and mode.name_of(now).isidentifier():
            if symbols.setdefault(mode.name_of(now), len(symbols)) == len(values):
                values.append(now)
    asked = [g.expected.expression for g in capture.guards if g.check is Check.RANGE]
    relations = [
        text for text in asked if "float_of(" not in text and "int_of(" not in text
    ]  # of floats symbols know nothing
    held = [bool(compile_relation(text, symbols)(tuple(values))) for text in relations]
    held += [bool(now == compile_relation(then, symbols)(tuple(values))) for now, then in pairs]
    if not all(held):
        raise NotArchived("its sizes are not related as they were")


def _compare(capture: Capture, mode: fakes.FakeMode, examples: Sequence[Any]) -> None:
    """Refuse where symbols came out otherwise than when tracing."""
    for example, spec in zip(examples, capture.specs, strict=True):
        if isinstance(spec, TensorSpec):
            now = spec_of(example)
            same = (now.sizes, now.strides) == (spec.sizes, spec.strides)
        else:
            same = not isinstance(example, int | float) and str(example.node.expr) == spec.name
        if not same:
            raise NotArchived(f"the symbols of an input come out otherwise: {spec}, now {example}")
    known = {g.expected.expression for g in capture.guards if g.check is Check.RANGE}
    for expression, _ in mode.shape_relations():
        if expression not in known:
            raise NotArchived(
                f"the graph assumes {expression} here, which was not assumed when it was traced"
            )


def _placeholders(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


class _Walk:
    """One run of a graph on fakes."""

    def __init__(self, module: torch.fx.GraphModule, mode: fakes.FakeMode) -> None:
        self.module = module
        self.mode = mode
        self.grad: list[bool] = []
        # a write may give a history to memory of which there are views
        given = [node.meta.get("val") for node in _placeholders(module)]
        mode.exact_views = any(isinstance(x, torch.Tensor) and x.requires_grad for x in given)

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
        elif node.target in DIRECT or facts(node).setting:
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
