"""Around a compiled forward: write mutated inputs back, rebuild outputs that are views, put constants in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.aot.records import OutputKind, OutputRole, Partition
from braze.graph.specs import SymbolSpec, TensorSpec
from braze.support.errors import Unsupported

Boxed = Callable[[Sequence[Any]], Sequence[Any]]


def wrap(partition: Partition, compiled: Boxed, *, eager: Callable[..., Any] | None = None) -> Boxed:
    """``f(inputs) -> user outputs`` around ``compiled(inputs) -> the forward graph's tuple``.

    Where the graph writes to an input that in some call shares its memory with another input, the functional
    graph would miss the write through the other: such a call runs ``eager(*inputs)`` instead.
    """
    plain = not partition.mutations and not partition.made
    if plain and all(role.kind is OutputKind.VALUE for role in partition.outputs):
        return compiled
    call = _Wrapped(partition, compiled, eager)
    call.boxed = True
    return call


class _Wrapped:
    """What the wrapper does on each call, worked out beforehand."""

    def __init__(self, partition: Partition, compiled: Boxed, eager: Callable[..., Any] | None) -> None:
        self.compiled = compiled
        self.eager = eager
        self.boxed = True
        self.mutated = tuple(role.input for role in partition.mutations)
        written = [(role.input, k, role.differentiable) for k, role in enumerate(partition.mutations)]
        #: (input, place of its new contents), for those without and those with a history
        self.overwritten = tuple((i, k) for i, k, differentiable in written if not differentiable)
        self.derived = tuple((i, k) for i, k, differentiable in written if differentiable)
        self.tensors = tuple(i for i, s in enumerate(partition.inputs) if isinstance(s, TensorSpec))
        self.symbols = symbol_reader(partition)
        self.build = tuple(_builder(role, partition) for role in partition.outputs)
        self.repeated = tuple(
            (i, role.output) for i, role in enumerate(partition.outputs) if role.kind is OutputKind.SAME
        )
        position = len(partition.mutations)
        places = []
        # bases of views stand between the mutations and the values
        position += len({r.output for r in partition.outputs if r.kind is OutputKind.ALIAS_OF_OUTPUT})
        for role in partition.outputs:
            places.append(position if role.kind is OutputKind.VALUE else -1)
            position += role.kind is OutputKind.VALUE
        self.places = tuple(places)
        #: (name, place in the graph's tuple) of sizes that only the graph tells
        count = len(partition.made)
        self.made = tuple(zip(partition.made, self.places[len(self.places) - count :], strict=True))
        self.count = len(self.places) - count

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        if self.mutated and self._shares_written_memory(inputs):
            if self.eager is None:
                raise Unsupported(
                    "BZ2017",
                    "inputs that share memory, of which the graph writes one",
                    hints=["pass tensors that do not overlap"],
                )
            return list(self.eager(*inputs))
        results = self.compiled(inputs)
        for grad, mutations in ((False, self.overwritten), (True, self.derived)):
            if mutations:
                with torch.set_grad_enabled(grad):
                    for i, place in mutations:
                        inputs[i].copy_(results[place])
        names = self.symbols(inputs)
        if self.made:
            names = {**names, **{name: results[place] for name, place in self.made}}
        outputs = [
            results[place] if place >= 0 else build(inputs, results, names)
            for place, build in zip(self.places[: self.count], self.build, strict=False)
        ]
        for i, first in self.repeated:
            outputs[i] = outputs[first]
        return outputs

    def _shares_written_memory(self, inputs: Sequence[Any]) -> bool:
        """Whether a written input's storage is another input's too."""
        seen: dict[int, int] = {}
        for i in self.tensors:
            if inputs[i].numel():
                pointer = inputs[i].untyped_storage().data_ptr()
                seen[pointer] = seen.get(pointer, 0) + 1
        return any(
            inputs[i].numel() and seen[inputs[i].untyped_storage().data_ptr()] > 1 for i in self.mutated
        )


def _builder(role: OutputRole, partition: Partition) -> Callable[..., Any]:
    """f(inputs, results, symbols) -> one output that the graph does not return."""
    match role.kind:
        case OutputKind.CONSTANT:
            return lambda inputs, results, names: role.value
        case OutputKind.ALIAS if role.spec is None:
            return lambda inputs, results, names: inputs[role.input]
        case OutputKind.ALIAS:
            base = partition.inputs[role.input]
            assert isinstance(base, TensorSpec) and role.spec is not None
            view = _with_history(_viewer(role.spec, base.offset), role.spec)
            return lambda inputs, results, names: view(inputs[role.input], names)
        case OutputKind.ALIAS_OF_OUTPUT:
            assert role.spec is not None
            view = _with_history(_viewer(role.spec, 0), role.spec)
            return lambda inputs, results, names: view(results[role.output], names)
    return lambda inputs, results, names: None


def _with_history(view: Callable[..., torch.Tensor], spec: TensorSpec) -> Callable[..., torch.Tensor]:
    """``view``, whose results require grad only if they did in eager: not what was detached."""
    if spec.requires_grad:
        return view

    return lambda base, names: view(base.detach() if base.requires_grad else base, names)


def _viewer(
    spec: TensorSpec, base_offset: int | str
) -> Callable[[torch.Tensor, dict[str, int]], torch.Tensor]:
    """f(base, symbols) -> the view of base's memory that ``spec`` describes."""
    sizes, strides = evaluator(spec.sizes), evaluator(spec.strides)
    offset = evaluator((spec.offset, base_offset))

    def view(base: torch.Tensor, names: dict[str, int]) -> torch.Tensor:
        here, start = offset(names)
        begin = base.storage_offset() + here - start
        if base.dtype is spec.dtype:
            return base.as_strided(sizes(names), strides(names), begin)
        # offsets count in elements of the view's own type
        begin = base.storage_offset() * base.dtype.itemsize // spec.dtype.itemsize + here
        begin -= start * base.dtype.itemsize // spec.dtype.itemsize
        if base.requires_grad and spec.requires_grad:
            return _between_real_and_complex(base, sizes(names), strides(names), begin)
        fresh = torch.empty(0, dtype=spec.dtype, device=base.device)
        return fresh.set_(base.untyped_storage(), begin, sizes(names), strides(names))

    return view


def _between_real_and_complex(
    base: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A real view of complex memory or the reverse, through which gradients flow."""
    if base.is_complex():
        return torch.view_as_real(base).as_strided(sizes, strides, offset)
    pairs = base.as_strided((*sizes, 2), (*(2 * s for s in strides), 1), 2 * offset)
    return torch.view_as_complex(pairs)


#: what the text of a size may call
SIZE_NAMES: dict[str, Any] = {
    "__builtins__": {},
    "math": math,
    "min": min,
    "max": max,
    "abs": abs,
    "round": round,
    "float": float,
}


def evaluator(parts: tuple[int | str, ...]) -> Callable[[dict[str, int]], tuple[int, ...]]:
    """f(symbols) -> the numbers; expressions over symbols are compiled once."""
    if all(isinstance(part, int) for part in parts):
        fixed = tuple(int(part) for part in parts)
        return lambda names: fixed
    code = compile(f"({', '.join(map(str, parts))},)", "<sizes>", "eval")
    return lambda names: eval(code, SIZE_NAMES, names)


def symbol_reader(partition: Partition) -> Callable[[Sequence[Any]], dict[str, int]]:
    """f(inputs) -> the value of each size symbol."""
    reads: dict[str, tuple[int, int]] = {}
    for i, spec in enumerate(partition.inputs):
        if isinstance(spec, SymbolSpec):
            if spec.name.isidentifier():
                reads.setdefault(spec.name, (i, -1))
        elif isinstance(spec, TensorSpec):
            for dim, size in enumerate(spec.sizes):
                if isinstance(size, str) and size.isidentifier():
                    reads.setdefault(size, (i, dim))
    if not reads:
        return lambda inputs: {}
    items = tuple((name, i, dim) for name, (i, dim) in reads.items())
    return lambda inputs: {name: inputs[i] if dim < 0 else inputs[i].shape[dim] for name, i, dim in items}


def eager_forward(forward: Callable[..., Any]) -> Boxed:
    """Run an ATen graph itself, as ``compiled``."""

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        with torch.no_grad():
            return forward(*inputs)  # type: ignore[no-any-return]

    run.boxed = True  # type: ignore[attr-defined]
    return run
