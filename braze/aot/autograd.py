"""A compiled forward and backward as one operation of PyTorch's autograd.

What the forward saves goes through ``save_for_backward``, so that autograd raises eager's own errors: for a tensor
that was changed in place since, and for a second backward through what has been freed. The backward is compiled when
it first runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.aot.records import Backward, Partition, SavedFrom
from braze.aot.wrap import Boxed, evaluator, symbol_reader
from braze.graph.holders import taken_over
from braze.graph.specs import TensorSpec
from braze.support.errors import BackwardError

#: bytes of an incoming gradient from which on it matters when it is let go of
LARGE = 64 << 10


def differentiable(partition: Partition, forward: Boxed, compile_backward: Callable[[], Boxed]) -> Boxed:
    """``f(inputs) -> the user's items of the forward's tuple``, which autograd knows the derivative of.

    ``forward(inputs)`` gives the whole tuple; ``compile_backward()`` is called once, and gives
    ``backward(saved and tangents) -> gradients``.
    """
    assert partition.backward is not None
    plan = _Plan(partition, partition.backward, forward, compile_backward)
    function = _function(plan)

    def call(inputs: Sequence[Any]) -> Sequence[Any]:
        return function.apply(*inputs)

    call.boxed = True  # type: ignore[attr-defined]
    return call


class _Plan:
    """What the two halves do on each call, worked out beforehand."""

    def __init__(
        self, partition: Partition, backward: Backward, forward: Boxed, compile_backward: Callable[[], Boxed]
    ) -> None:
        self.forward = forward
        self.results = backward.results
        self.inputs = len(partition.inputs)
        self.saved = backward.saved
        #: places of saved values that are tensors, for autograd to watch, and of the numbers beside them
        kinds = [isinstance(spec, TensorSpec) for spec in backward.inputs[: len(self.saved)]]
        self.tensors = tuple(i for i, tensor in enumerate(kinds) if tensor)
        self.numbers = tuple(i for i, tensor in enumerate(kinds) if not tensor)
        self.symbols = symbol_reader(partition)
        self.tangents = backward.tangents
        self.layouts = tuple(_layout(spec) for spec in backward.inputs[len(self.saved) :])
        self.owners, self.depends = backward.gradients, backward.depends
        carried = set(backward.tangents)
        self.plain = tuple(i for i in range(backward.results) if i not in carried)
        self._compile = compile_backward
        self._backward: Boxed | None = None
        self._lock = threading.Lock()

    def backward(self) -> Boxed:
        """The compiled backward, made by the first that asks."""
        if self._backward is None:
            with self._lock:
                if self._backward is None:
                    self._backward = self._compile()
        return self._backward

    def values(self, inputs: Sequence[Any], results: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
        """What is saved, in order, and the sizes of this call."""
        names = self.symbols(inputs)
        found = []
        for each in self.saved:
            match each.source:
                case SavedFrom.INPUT:
                    found.append(inputs[each.index])
                case SavedFrom.OUTPUT:
                    found.append(results[each.index])
                    if each.name:
                        names = {**names, each.name: results[each.index]}
                case SavedFrom.SYMBOL:
                    found.append(names[each.name])
        return found, names

    def unpacked(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
        """What was saved, in order."""
        values: list[Any] = [None] * len(self.saved)
        for places, found in ((self.tensors, tensors), (self.numbers, numbers)):
            for i, value in zip(places, found, strict=True):
                values[i] = value
        return values

    def gradients_of(self, found: Sequence[Any], given: Sequence[bool]) -> tuple[Any, ...]:
        """One gradient per input of the forward; None where no tangent of those it is made of was given, as in eager."""
        gradients: list[Any] = [None] * self.inputs
        for i, gradient, depends in zip(self.owners, found, self.depends, strict=True):
            if not depends or any(given[k] for k in depends):
                gradients[i] = gradient
        return tuple(gradients)


def _function(plan: _Plan) -> Any:
    """The class that autograd wants: one per compiled graph."""

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            results = plan.forward(inputs)
            values, ctx.sizes = plan.values(inputs, results)
            ctx.save_for_backward(*(values[i] for i in plan.tensors))
            ctx.numbers = [values[i] for i in plan.numbers]
            ctx.set_materialize_grads(False)
            plain = [results[i] for i in plan.plain if isinstance(results[i], torch.Tensor)]
            ctx.mark_non_differentiable(*plain)
            return tuple(results[: plan.results])

        @staticmethod
        def backward(ctx: Any, *tangents: Any) -> Any:
            if torch.is_grad_enabled():
                raise BackwardError(
                    "BZ2023",
                    "a gradient of a gradient (create_graph=True) through a compiled graph",
                    why="braze compiles first derivatives only",
                    hints=[
                        "call the model inside braze.disable, or uncompiled, where you need second derivatives",
                        "or compile the function that takes the derivative: torch.func.grad, jacrev and hessian are captured",
                    ],
                )
            values = plan.unpacked(ctx.saved_tensors, ctx.numbers)
            # unless the graph is retained, only this list now holds what was saved: the backward empties it as it goes
            ctx.maybe_clear_saved_tensors()
            found = taken_over(tangents, LARGE)
            given = [found[position] is not None for position in plan.tangents]
            for position, layout in zip(plan.tangents, plan.layouts, strict=True):
                values.append(layout(found[position], ctx.sizes))
            del found
            return plan.gradients_of(plan.backward()(values), given)

    return Compiled


def _layout(spec: Any) -> Callable[[torch.Tensor | None, dict[str, int]], torch.Tensor]:
    """f(tangent, sizes) -> the tangent in the memory layout that the backward was compiled for; zeros for None."""
    sizes, strides = evaluator(spec.sizes), evaluator(spec.strides)

    def laid_out(tangent: torch.Tensor | None, names: dict[str, int]) -> torch.Tensor:
        wanted = strides(names)
        if tangent is None:
            fresh = torch.empty_strided(sizes(names), wanted, dtype=spec.dtype, device=spec.device)
            return fresh.zero_()
        if tangent.is_conj() or tangent.is_neg():
            tangent = tangent.resolve_conj().resolve_neg()
        if tangent.stride() == wanted or _same(tangent, wanted):
            return tangent
        fresh = torch.empty_strided(tangent.shape, wanted, dtype=tangent.dtype, device=tangent.device)
        return fresh.copy_(tangent)

    return laid_out


def _same(tensor: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Whether strides differ only where they do not matter."""
    return all(
        n == 1 or have == want for n, have, want in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )
