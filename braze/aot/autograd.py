"""A compiled forward and backward as one operation of PyTorch's autograd.

What the forward saves goes through ``save_for_backward``, so that autograd raises eager's own errors: for a tensor
that was changed in place since, and for a second backward through what has been freed. The backward is compiled when
it first runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from braze.aot.missing import without_tangents
from braze.aot.records import Backward, Partition
from braze.aot.wrap import Boxed, evaluator, symbol_reader
from braze.graph.holders import taken_over
from braze.graph.specs import TensorSpec
from braze.graph.torch_compat import is_batched
from braze.support.errors import BackwardError

#: bytes of an incoming gradient from which on it matters when it is let go of
LARGE = 64 << 10
#: choices of tangents that a backward is compiled for; for others zeros stand for what does not come in
MOST = 4


class _Half(NamedTuple):
    """A compiled backward: the inputs whose gradients it gives, and the numbers of tangents that it does not read."""

    call: Boxed
    owners: tuple[int, ...]
    unread: frozenset[int]


def differentiable(
    partition: Partition,
    forward: Boxed,
    compile_backward: Callable[[Backward], Boxed],
    *,
    by_tangents: bool = False,
) -> Boxed:
    """``f(inputs) -> the user's items of the forward's tuple``, which autograd knows the derivative of.

    ``forward(inputs)`` gives the whole tuple; ``compile_backward(backward)`` is called once, or
    ``by_tangents`` for each choice of tangents that come in, and gives ``call(saved and tangents) -> gradients``.
    """
    assert partition.backward is not None
    plan = _Plan(partition, partition.backward, forward, compile_backward, by_tangents)
    function = _function(plan)

    def call(inputs: Sequence[Any]) -> Sequence[Any]:
        if torch.is_grad_enabled():
            return function.apply(*inputs)
        with torch.enable_grad():  # the graph turns it on itself
            return function.apply(*inputs)

    call.boxed = True  # type: ignore[attr-defined]
    return call


class _Plan:
    """What the two halves do on each call, worked out beforehand."""

    def __init__(
        self,
        partition: Partition,
        backward: Backward,
        forward: Boxed,
        compile_backward: Callable[[Backward], Boxed],
        by_tangents: bool,
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
        self.depends = dict(zip(backward.gradients, backward.depends, strict=True))
        carried = set(backward.tangents)
        self.plain = tuple(i for i in range(backward.results) if i not in carried)
        self._compile = compile_backward
        self._whole = backward
        self._by_tangents = by_tangents
        #: which tangents come in -> the backward for them
        self._halves: dict[tuple[bool, ...], _Half] = {}
        self._lock = threading.Lock()

    def backward(self, given: tuple[bool, ...]) -> _Half:
        """The compiled backward for the tangents that come in, made by the first that asks."""
        found = self._halves.get(given)
        if found is None:
            with self._lock:
                found = self._halves.get(given)
                if found is None:
                    found = self._halves[given] = self._made(given)
        return found

    def _made(self, given: tuple[bool, ...]) -> _Half:
        whole = (True,) * len(given)
        if given != whole and (not self._by_tangents or len(self._halves) >= MOST):
            return self._halves.get(whole) or self._made(whole)
        missing = [i for i, here in enumerate(given) if not here]
        part, unread = without_tangents(self._whole, missing) if missing else (self._whole, frozenset())
        return _Half(self._compile(part), part.gradients, unread)

    def values(self, inputs: Sequence[Any], results: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
        """What is saved, in order, and the sizes of this call."""
        names = self.symbols(inputs)
        found = []
        for each in self.saved:
            value = each.of(inputs, results, names)
            if each.name and each.name not in names:  # a number that the forward has made
                names = {**names, each.name: value}
            found.append(value)
        return found, names

    def unpacked(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
        """What was saved, in order."""
        values: list[Any] = [None] * len(self.saved)
        for places, found in ((self.tensors, tensors), (self.numbers, numbers)):
            for i, value in zip(places, found, strict=True):
                values[i] = value
        return values

    def batched(self, values: list[Any], tangents: Sequence[Any], sizes: dict[str, int]) -> tuple[Any, ...]:
        """The gradients under ``vmap``, for many tangents at once: by ATen's operators, of which each knows how."""
        found = [tangents[position] for position in self.tangents]
        given = [tangent is not None for tangent in found]
        for tangent, layout in zip(found, self.layouts, strict=True):
            values.append(layout(None, sizes) if tangent is None else tangent.contiguous())
        return self.gradients_of(self._whole.graph(*values), self._whole.gradients, given)

    def gradients_of(
        self, found: Sequence[Any], owners: tuple[int, ...], given: Sequence[bool]
    ) -> tuple[Any, ...]:
        """One gradient per input of the forward; None where no tangent of those it is made of was given, as in eager."""
        gradients: list[Any] = [None] * self.inputs
        for i, gradient in zip(owners, found, strict=True):
            depends = self.depends[i]
            if not depends or any(given[k] for k in depends):
                gradients[i] = gradient
        return tuple(gradients)


def _function(plan: _Plan) -> Any:
    """The class that autograd wants: one per compiled graph."""

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            results = _roots(plan.forward(inputs))
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
            if any(map(is_batched, tangents)):
                return plan.batched(values, tangents, ctx.sizes)
            # unless the graph is retained, only this list now holds what was saved: the backward empties it as it goes
            ctx.maybe_clear_saved_tensors()
            found = taken_over(tangents, LARGE)
            given = tuple([found[position] is not None for position in plan.tangents])
            half = plan.backward(given)
            for i, (position, layout) in enumerate(zip(plan.tangents, plan.layouts, strict=True)):
                values.append(None if i in half.unread else layout(found[position], ctx.sizes))
            del found
            return plan.gradients_of(half.call(values), half.owners, given)

    return Compiled


def _roots(results: Sequence[Any]) -> list[Any]:
    """The results, each a tensor of its own where kernels gave a view: autograd lets nobody write to views of functions."""
    return [r.detach() if isinstance(r, torch.Tensor) and r._is_view() else r for r in results]


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
