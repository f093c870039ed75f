"""Around a compiled forward: write mutated inputs back, rebuild outputs that are views, put constants in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.aot.overlap import may_overlap
from braze.aot.records import OutputKind, OutputRole, Partition
from braze.graph.specs import SymbolSpec, TensorSpec
from braze.support import trace
from braze.support.errors import Unsupported
from braze.support.log import warn_once

Boxed = Callable[[Sequence[Any]], Sequence[Any]]


def wrap(partition: Partition, compiled: Boxed, *, eager: Callable[..., Any] | None = None) -> Boxed:
    """``f(inputs) -> user outputs`` around ``compiled(inputs) -> the forward graph's tuple``.

    Where the graph writes to an input that in some call shares its memory with another input, the functional
    graph would miss the write through the other: such a call runs ``eager(*inputs)`` instead.
    """
    plain = not partition.mutations and not partition.made and not partition.shared
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
        self.differentiated = partition.backward is not None
        self.boxed = True
        self.mutated = tuple(role.input for role in partition.mutations)
        written = [(role.input, k, role.differentiable) for k, role in enumerate(partition.mutations)]
        uncounted = {role.input for role in partition.mutations if not role.counted}
        #: (input, place of its new contents), for those without and those with a history; or written through .data
        self.overwritten = tuple(
            (i, k) for i, k, differentiable in written if not differentiable and i not in uncounted
        )
        self.unnoticed = tuple((i, k) for i, k, _ in written if i in uncounted)
        self.derived = tuple((i, k) for i, k, differentiable in written if differentiable)
        self.shared, self.beyond = partition.shared, partition.beyond
        #: of written inputs that are the memory of several, those several
        first = len(partition.inputs) - len(self.shared)
        self.members = {first + k: frozenset(each.inputs) for k, each in enumerate(self.shared)}
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

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        if not self.differentiated or torch.is_grad_enabled():
            return self._run(given)
        with torch.enable_grad():  # the graph turns it on itself
            return self._run(given)

    def _run(self, given: Sequence[Any]) -> list[Any]:
        inputs = self._with_shared(given) if self.shared else given
        if inputs is None or (self.mutated and self._shares_written_memory(inputs)):
            return self._as_captured(given)
        results = self.compiled(inputs)
        for grad, mutations in ((False, self.overwritten), (True, self.derived)):
            if mutations:
                with torch.set_grad_enabled(grad):
                    for i, place in mutations:
                        inputs[i].copy_(results[place])
        for i, place in self.unnoticed:
            inputs[i].data.copy_(results[place])
        for each in self.shared:
            for i in each.counted:
                if not inputs[i].is_inference():
                    torch.autograd.graph.increment_version(inputs[i])
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

    def _as_captured(self, inputs: Sequence[Any]) -> list[Any]:
        """A call whose inputs share memory otherwise than the graph was made for."""
        what = "inputs that share memory, of which the graph writes one"
        if self.eager is None:
            raise Unsupported("BZ2017", what, hints=["pass tensors that do not overlap"])
        trace.count("calls_run_as_captured")
        warn_once(
            ("BZ2017", id(self)),
            f"BZ2017: a call runs eagerly, as captured: {what}, other than in the call that it was compiled for",
        )
        return list(self.eager(*inputs))

    def _with_shared(self, inputs: Sequence[Any]) -> list[Any] | None:
        """The inputs, and the memories in which some overlap; None where they do not lie as they did."""
        found = list(inputs)
        for each in self.shared:
            first = inputs[each.inputs[0]]
            place = first.untyped_storage().data_ptr()
            for i, offset in zip(each.inputs, each.offsets, strict=True):
                here = inputs[i]
                if (
                    here.storage_offset() != each.offset + offset
                    or here.untyped_storage().data_ptr() != place
                ):
                    return None
            found.append(first.data.as_strided((each.size,), (1,), each.offset))
        return found

    def _shares_written_memory(self, inputs: Sequence[Any]) -> bool:
        """Whether a written input overlaps another input."""
        seen: dict[int, list[int]] = {}
        for i in self.tensors:
            if inputs[i].numel():
                seen.setdefault(inputs[i].untyped_storage().data_ptr(), []).append(i)
        if len(seen) == len(self.tensors):
            return False
        return any(
            self._overlaps(i, other, inputs)
            for i in self.mutated
            if inputs[i].numel()
            for other in seen[inputs[i].untyped_storage().data_ptr()]
        )

    def _overlaps(self, i: int, other: int, inputs: Sequence[Any]) -> bool:
        if i == other or other in self.members.get(i, ()):
            return False
        return self.beyond or may_overlap(inputs[i], inputs[other])


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
            view = _with_history(_viewer(role.spec, None if role.absolute else base.offset), role.spec)
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
    spec: TensorSpec, base_offset: int | str | None
) -> Callable[[torch.Tensor, dict[str, int]], torch.Tensor]:
    """f(base, symbols) -> the view of base's memory that ``spec`` describes; no ``base_offset``: it counts from its start."""
    sizes, strides = evaluator(spec.sizes), evaluator(spec.strides)
    offset = evaluator((spec.offset, 0 if base_offset is None else base_offset))

    def view(base: torch.Tensor, names: dict[str, int]) -> torch.Tensor:
        here, start = offset(names)
        begin: Any = here if base_offset is None else base.storage_offset() + here - start
        if base.dtype is spec.dtype:
            return base.as_strided(sizes(names), strides(names), begin)
        if base_offset is not None:
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
