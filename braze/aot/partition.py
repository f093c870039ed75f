"""Captured graph -> Partition: an ATen graph without writes, whose inputs and outputs have roles.

In order: trace to ATen, remove writes, say what each output is (a value, a view of an input, of another output, a
constant), then clean the graph. Only inference yet: an output that needs a gradient is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from braze.aot.functionalize import Functional, evaluate, functionalize
from braze.aot.records import InputRole, OutputKind, OutputRole, Partition
from braze.aot.trace import Traced, trace
from braze.aot.views import is_view
from braze.context import CompileContext
from braze.graph import torch_compat
from braze.graph.fakes import FakeMode, spec_of
from braze.graph.passes import DEFAULT, run_passes
from braze.graph.printer import print_graph
from braze.graph.specs import Dialect, FloatSpec, SymbolSpec, TensorSpec
from braze.support import trace as tracing
from braze.support.errors import Unsupported

aten = torch.ops.aten
Node = torch.fx.Node


def partition(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    ctx: CompileContext,
    decompositions: Mapping[OpOverload, Callable[..., Any]] | None = None,
) -> Partition:
    """The Partition of a captured graph. ``decompositions``: operator -> function of simpler operators."""
    with tracing.stage("aot"):
        _refuse_training(gm)
        _refuse_unusual_tensors(gm)
        inputs = [_input_spec(value) for value in example_inputs]
        with tracing.stage("aot.trace"):
            traced = trace(gm, example_inputs, decompositions or {})
        made = _Outputs(traced)
        with tracing.stage("aot.functionalize"), _on_fakes(traced.mode):
            functional = functionalize(traced.module, traced.mode, made.wanted())
            outputs, mutations = made.assign(functional)
        dialect = Dialect.CORE if decompositions else Dialect.FUNCTIONAL
        run_passes(traced.module, DEFAULT, dialect, verify_level=ctx.options.verify)
        with _on_fakes(traced.mode):
            _separate_outputs(traced.module, mutations, traced.mode)
        traced.module.recompile()
        part = Partition(
            forward=traced.module,
            dialect=dialect,
            inputs=tuple(inputs),
            input_roles=tuple(_roles(traced.module)),
            mutations=mutations,
            outputs=outputs,
        )
    if tracing.dumping():
        tracing.dump(f"{ctx.name}_aten", "py", print_graph(part.forward))
    return part


@contextlib.contextmanager
def _on_fakes(mode: FakeMode) -> Iterator[None]:
    """Operators called inside run on fakes, below autograd."""
    with mode, torch_compat.disable_functions(), torch_compat.BelowAutograd():
        yield


def _refuse_training(gm: torch.fx.GraphModule) -> None:
    """Outputs that need a gradient want a backward, which is not made yet."""
    output = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
    for node in output.all_input_nodes:
        val = node.meta.get("val")
        if node.op != "placeholder" and isinstance(val, torch.Tensor) and val.requires_grad:
            raise Unsupported(
                "BZ2001",
                "a result that needs a gradient",
                why="braze compiles inference only for now",
                hints=["run the model under torch.no_grad() or torch.inference_mode()"],
                origin=node.meta.get("origin"),
            )


def _refuse_unusual_tensors(gm: torch.fx.GraphModule) -> None:
    """A lazy conjugate or negation is a flag that sizes and strides do not tell; a meta tensor has no memory."""
    for node in gm.graph.nodes:
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor):
            continue
        if val.is_conj() or val.is_neg():
            raise Unsupported(
                "BZ2003",
                "a lazily conjugated or negated tensor",
                hints=["call .resolve_conj().resolve_neg()"],
                origin=node.meta.get("origin"),
            )
        if val.device.type == "meta":
            raise Unsupported(
                "BZ2003", "a tensor without data, on the meta device", origin=node.meta.get("origin")
            )


def _input_spec(value: Any) -> TensorSpec | SymbolSpec | FloatSpec:
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    if isinstance(value, torch.SymInt):
        return SymbolSpec(str(value.node.expr), value.node.hint)
    if isinstance(value, torch.SymFloat):
        return FloatSpec(str(value.node.expr), value.node.hint)
    if isinstance(value, int):
        return SymbolSpec(str(value), value)
    raise Unsupported("BZ2018", f"a graph input of type {type(value).__name__}")


def _roles(module: torch.fx.GraphModule) -> list[InputRole]:
    roles = []
    for node in module.graph.nodes:
        if node.op != "placeholder":
            continue
        if not isinstance(node.meta["val"], torch.Tensor):
            roles.append(InputRole.SYMBOL)
        elif node.meta.get("role") == "parameter":
            roles.append(InputRole.PARAMETER)
        else:
            roles.append(InputRole.USER)
    return roles


def _separate_outputs(
    module: torch.fx.GraphModule, mutations: tuple[OutputRole, ...], mode: FakeMode
) -> None:
    """Copy what would reach the user as memory of an input or of another output.

    Passes may find that a value is an input's, or that two are the same. New contents of an
    input are copied anyway, but must not be memory that an earlier such copy has overwritten.
    """
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    written = {placeholders[role.input] for role in mutations}
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    taken: set[Node] = set()
    results = list(output.args[0])
    for i, node in enumerate(results):
        if not isinstance(node.meta["val"], torch.Tensor):
            continue
        root = _root(node)
        if i < len(mutations):
            shared = root in written
        else:
            shared = root in taken or root.op in ("placeholder", "get_attr")
            taken.add(root)
        if shared:
            with module.graph.inserting_before(output):
                copy = module.graph.call_function(aten.clone.default, (node,))
            copy.meta["origin"] = node.meta.get("origin")
            results[i] = evaluate(copy, mode)
    output.args = (tuple(results),)


def _root(node: Node) -> Node:
    """The node whose memory a node sees."""
    while node.op == "call_function" and is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


class _Outputs:
    """What each user output is, by whom its memory is shared in the trace."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.graph = traced.module.graph
        self.placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        self.number = {node: i for i, node in enumerate(self.placeholders)}
        self.input_storages: dict[int, Node] = {}
        for node in self.placeholders:
            if isinstance(node.meta["val"], torch.Tensor):
                self.input_storages.setdefault(torch_compat.storage_key(node.meta["val"]), node)
        #: storage -> the outputs over it, for memory that the graph makes
        self.groups: dict[int, list[int]] = {}
        known: set[int] = set()
        for i, (_, value) in enumerate(traced.outputs):
            if isinstance(value, torch.Tensor):
                key = torch_compat.storage_key(value)
                if key not in self.input_storages and id(value) not in known:
                    known.add(id(value))
                    self.groups.setdefault(key, []).append(i)
        self.bases = {key: self._base(key) for key, group in self.groups.items() if len(group) > 1}
        #: what the storages of bases look like in eager, before functionalization gives them others
        self.layouts = {key: spec_of(node.meta["val"]) for key, node in self.bases.items()}

    def _base(self, key: int) -> Node:
        """The node that made a storage."""
        for node in self.graph.nodes:
            val = node.meta.get("val")
            if node.op != "output" and isinstance(val, torch.Tensor) and torch_compat.storage_key(val) == key:
                return node
        raise AssertionError("an output's storage has a node")

    def wanted(self) -> list[Node]:
        """The nodes whose final values the outputs need."""
        nodes = [node for node, _ in self.traced.outputs if isinstance(node, Node)]
        return list(dict.fromkeys([*nodes, *self.bases.values()]))

    def assign(self, functional: Functional) -> tuple[tuple[OutputRole, ...], tuple[OutputRole, ...]]:
        """Write the graph's output tuple; the roles of the outputs and of the mutations."""
        results: list[Node] = []
        mutations = []
        for node, value in functional.mutated:
            spec = spec_of(node.meta["val"])
            if tuple(value.meta["val"].shape) != tuple(node.meta["val"].shape):
                raise Unsupported(
                    "BZ2009", "an input that changes its shape", origin=value.meta.get("origin")
                )
            mutations.append(OutputRole(OutputKind.MUTATION, spec=spec, input=self.number[node]))
            results.append(value)
        base_position: dict[int, int] = {}
        for key, node in self.bases.items():
            base_position[key] = len(results)
            results.append(self._laid_out(functional.latest[node], self.layouts[key]))
        roles = []
        seen: dict[int, int] = {}
        for i, (node, value) in enumerate(self.traced.outputs):
            first = seen.setdefault(id(value), i) if isinstance(value, torch.Tensor) else i
            if first < i:
                roles.append(OutputRole(OutputKind.SAME, output=first))
            else:
                roles.append(self._role(node, value, functional, results, base_position))
        output = next(n for n in reversed(self.graph.nodes) if n.op == "output")
        output.args = (tuple(results),)
        return tuple(roles), tuple(mutations)

    def _role(
        self, node: Any, value: Any, functional: Functional, results: list[Node], bases: dict[int, int]
    ) -> OutputRole:
        if not isinstance(value, torch.Tensor):
            if isinstance(node, Node):
                results.append(functional.latest.get(node, node))
                return OutputRole(OutputKind.VALUE, value=None)
            return OutputRole(OutputKind.CONSTANT, value=value)
        key, spec = torch_compat.storage_key(value), spec_of(value)
        source = self.input_storages.get(key)
        if source is not None:
            same = next((n for n in self.placeholders if n.meta["val"] is value), None)
            return OutputRole(
                OutputKind.ALIAS, spec=None if same is not None else spec, input=self.number[same or source]
            )
        if key in bases:
            return OutputRole(OutputKind.ALIAS_OF_OUTPUT, spec=spec, output=bases[key])
        results.append(self._laid_out(functional.latest[node], spec))
        return OutputRole(OutputKind.VALUE, spec=spec)

    def _laid_out(self, node: Node, spec: TensorSpec) -> Node:
        """The node's value with the strides that eager gives it, where functionalization changed them."""
        val = node.meta["val"]
        mode: FakeMode = self.traced.mode
        wanted = spec.strides
        if mode.env is not None or all(
            n == 1 or have == want for n, have, want in zip(val.shape, val.stride(), wanted, strict=True)
        ):
            return node
        with self.graph.inserting_before(next(n for n in reversed(self.graph.nodes) if n.op == "output")):
            empty = self.graph.call_function(
                aten.empty_strided.default,
                (list(spec.sizes), list(wanted)),
                {"dtype": spec.dtype, "device": spec.device},
            )
            copy = self.graph.call_function(aten.copy.default, (evaluate(empty, mode), node))
        return evaluate(copy, mode)
