"""Record a function's torch calls as a captured graph, so that the aot stage can be tested without capture."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from braze.aot import Partition, differentiable, eager_forward, min_cut_choice, partition, wrap
from braze.context import CompileContext
from braze.graph.fakes import fakes
from braze.graph.nodes.facts import set_facts
from braze.options import Options
from braze.target import cpu_target

CONTEXT = CompileContext(Options(verify=2), cpu_target(), "test")


class Recorder(TorchFunctionMode):
    """Writes each call of torch into a graph, on fakes."""

    def __init__(self, mode: fakes.FakeMode) -> None:
        super().__init__()
        self.mode = mode
        self.graph = torch.fx.Graph()
        self.known: dict[int, tuple[Any, torch.fx.Node]] = {}

    def input(self, value: Any, name: str, **options: Any) -> Any:
        fake = self.mode.fake(value, source=name, **options) if isinstance(value, torch.Tensor) else value
        node = self.graph.placeholder(name)
        node.meta["val"] = fake
        set_facts(node, source=name)
        self.known[id(fake)] = (fake, node)
        return fake

    def argument(self, value: Any) -> Any:
        if isinstance(value, (torch.Tensor, torch.SymInt)) and id(value) in self.known:
            return self.known[id(value)][1]
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if isinstance(value, (tuple, list)):
            made = [self.argument(v) for v in value]
            return made if isinstance(value, list) else tuple(made)
        if isinstance(value, slice):
            return slice(self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        return value

    def _size(self, value: torch.SymInt) -> torch.fx.Node:
        """A symbolic int as the size of the input that it came from."""
        for fake, node in list(self.known.values()):
            if node.op == "placeholder" and isinstance(fake, torch.Tensor):
                for dim, size in enumerate(fake.shape):
                    if isinstance(size, torch.SymInt) and size.node.expr == value.node.expr:
                        return self.graph.call_method("size", (node, dim))
        raise AssertionError(f"no input has size {value}")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            out = self.mode.call(func, args, kwargs)
            leaves = list(out) if isinstance(out, (tuple, list)) else [out]
            writes = func is torch.Tensor.__setitem__
            if not writes and not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
                return out
            if getattr(func, "__name__", "") == "__get__":  # a property of a tensor
                func, args = getattr, (args[0], func.__self__.__name__)
            node = self.graph.call_function(
                func, self.argument(tuple(args)), {k: self.argument(v) for k, v in kwargs.items()}
            )
            node.meta["val"] = out
            if isinstance(out, torch.Tensor):
                self.known.setdefault(id(out), (out, node))
            elif not writes:
                for i, leaf in enumerate(leaves):
                    item = self.graph.call_function(operator.getitem, (node, i))
                    item.meta["val"] = leaf
                    self.known[id(leaf)] = (leaf, item)
            return out


def record(
    function: Callable[..., Any], inputs: Sequence[Any], *, dynamic: bool = False, grad: bool = False
) -> tuple[torch.fx.GraphModule, list[Any], fakes.FakeMode]:
    """(captured graph, fake inputs, their mode) of ``function(*inputs)``."""
    mode = fakes.new_mode(dynamic)
    recorder = Recorder(mode)
    made = []
    for i, value in enumerate(inputs):
        dims = set(range(value.dim())) if dynamic and isinstance(value, torch.Tensor) else None
        made.append(recorder.input(value, f"x{i}", **({"symbolic_dims": dims} if dims else {})))
    with torch.set_grad_enabled(grad), mode, recorder:
        out = function(*made)
    outputs = out if isinstance(out, (tuple, list)) else (out,)
    recorder.graph.output(tuple(recorder.argument(o) for o in outputs))
    return torch.fx.GraphModule(torch.nn.Module(), recorder.graph), made, mode


def compile_aot(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    decompositions: Any = None,
    *,
    dynamic: bool = False,
    grad: bool = False,
    choice: Any = min_cut_choice,
) -> tuple[Partition, Callable[[Sequence[Any]], Sequence[Any]]]:
    """(partition, f(inputs) -> outputs that runs its ATen graphs eagerly)."""
    gm, made, _ = record(function, inputs, dynamic=dynamic, grad=grad)
    part = partition(gm, made, CONTEXT, decompositions, choice)
    call = eager_forward(part.forward)
    if part.backward is not None:
        backward = eager_forward(part.backward.graph)
        call = differentiable(part, call, lambda part: backward)
    return part, wrap(part, call)


def targets(part: Partition) -> list[str]:
    """The names of the operators in the forward graph, in order."""
    return [str(n.target) for n in part.forward.graph.nodes if n.op == "call_function"]


def same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
