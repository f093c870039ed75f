"""A Python function as a graph that the ahead-of-time stage takes: one node, which calls it.

For those who have no captured graph, ``aot_function``'s callers. The function runs once here, on fakes, to learn what it
gives; the trace runs it again and records the operators that it reaches. Nothing is guarded: who calls keeps the results for calls alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils._python_dispatch import TorchDispatchMode

from braze.graph.fakes.fakes import FakeMode, new_mode
from braze.graph.nodes.facts import InputRole, set_facts, tell_of_input
from braze.graph.private import torch_compat
from braze.graph.private.torch_compat import pytree
from braze.support.errors import UserError
from braze.support.spoken import name_of_callable

CONSTANTS = (int, float, bool, complex, str, type(None))


class Program:
    """``function(*inputs)`` as a graph module with one node; ``spec`` is the structure of what it returns."""

    def __init__(self, function: Callable[..., Any], inputs: Sequence[torch.Tensor], parameters: int) -> None:
        self.function = function
        self.spec: Any = None
        mode = new_mode()
        self.examples = [mode.fake(x) for x in inputs]
        self.graph = torch.fx.Graph()
        nodes = []
        for i, (fake, real) in enumerate(zip(self.examples, inputs, strict=True)):
            name = f"primals_{i + 1}"
            node = self.graph.placeholder(name)
            node.meta["val"] = fake
            role = InputRole.PARAMETER if i < parameters else InputRole.USER
            set_facts(node, role=role, source=name)
            tell_of_input(node, real)
            nodes.append(node)
        leaves = self._tried(mode)
        call = self.graph.call_function(self._flat, tuple(nodes))
        call.meta["val"] = leaves
        known = {id(fake): node for fake, node in zip(self.examples, nodes, strict=True)}
        self.graph.output(tuple(self._output(call, i, leaf, known) for i, leaf in enumerate(leaves)))
        self.module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
        # the function may ask for gradients inside
        self.module.meta["uses_autograd"] = not torch.is_inference_mode_enabled()

    def _flat(self, *inputs: Any) -> list[Any]:
        leaves, self.spec = pytree.tree_flatten(self.function(*inputs))
        return leaves

    def _tried(self, mode: FakeMode) -> list[Any]:
        """What the function gives on fakes; its own exceptions reach the caller as they are."""
        try:
            with mode, _RealOnes(mode):
                leaves = self._flat(*self.examples)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise UserError(
                "BZ1004",
                f"{name_of_callable(self.function)} reads what a tensor holds ({error.func})",
                why="it is traced on fakes, which hold nothing, and would be compiled for what they held",
                hints=["use torch.where; or braze.compile, which ends the graph there"],
            ) from error
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, (torch.Tensor, *CONSTANTS)):
                raise UserError(
                    "BZ0042",
                    f"item {i} of what {name_of_callable(self.function)} returns is of type {type(leaf).__name__}",
                    why="compiled functions return tensors, numbers, strings and None, nested in tuples, lists and dicts",
                    hints=["return tensors, and make the object of them outside"],
                )
        return leaves

    def _output(self, call: torch.fx.Node, i: int, leaf: Any, known: dict[int, torch.fx.Node]) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in known:
            return known[id(leaf)]
        node = self.graph.call_function(operator.getitem, (call, i))
        node.meta["val"] = leaf
        return node


class _RealOnes(TorchDispatchMode):
    """Real tensors that the function finds by itself are constants: fakes of them stand in."""

    def __init__(self, mode: FakeMode) -> None:
        super().__init__()
        self.mode = mode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._fake, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.mode.fake(tensor)


def signature(leaves: Sequence[Any], spec: Any) -> tuple[Any, ...]:
    """What a trace of these arguments depends on: structure, metadata of tensors, who shares memory, constants, modes."""
    storages: dict[int, int] = {}
    parts: list[Any] = []
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            # 0.0 == -0.0, and no nan is itself
            parts.append((type(leaf), repr(leaf) if isinstance(leaf, (float, complex)) else leaf))
            continue
        first = storages.setdefault(torch_compat.storage_key(leaf), i)
        parts.append(
            (
                type(leaf),
                leaf.dtype,
                leaf.device,
                leaf.shape,
                leaf.stride(),
                leaf.storage_offset(),
                leaf.requires_grad,
                leaf.is_leaf,
                leaf.is_conj(),
                leaf.is_neg(),
                first,
            )
        )
    return (spec, tuple(parts), torch_compat.function_state())
