"""A compiled forward and backward as one operation of PyTorch's autograd.

What the forward saves goes through ``save_for_backward``, so that autograd raises eager's own errors: for a tensor
that was changed in place since, and for a second backward through what has been freed. The backward is compiled when
it first runs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch

from braze import native
from braze.aot.calls.by_operators import refuse_stretched, run_by_operators
from braze.aot.calls.groups import Alone, hidden_results, is_fixed, of_group, picked, with_results_as_inputs
from braze.aot.calls.kept_gradients import on_its_own, with_results_on_their_own
from braze.aot.calls.rebuild import evaluator
from braze.aot.calls.wrap import eager_forward, symbol_reader
from braze.aot.facts.records import Backward, Partition, Saved, SavedFrom
from braze.aot.facts.roles import placeholders
from braze.aot.facts.views import root_of
from braze.aot.joint.missing_tangents import apart, separate_gradients, without_tangents
from braze.graph.nodes.specs import TensorSpec
from braze.graph.private import torch_compat
from braze.graph.private.holders import held_by_engine, taken_over
from braze.native.operations import Kept, Read, Way
from braze.native.torch_state import hidden_from_dynamo
from braze.runtime.call.boxed import Boxed, boxed
from braze.support.errors import BackwardError
from braze.support.log import logger
from braze.support.raisers import is_of_program

#: bytes of an incoming gradient from which on it matters when it is let go of: to take it over costs some microseconds
LARGE = 1 << 20
#: choices of tangents that a backward is compiled for; for others its operators run one by one, as zeros for what does not come in
#: would not be left out: times an infinite slope they are no number
MOST = 4
#: what is beside the saved tensors of an operation of which all is plain: sizes, numbers, versions of results
_NOTHING: tuple[dict[str, int], tuple[Any, ...], tuple[int, ...]] = ({}, (), ())


class _Half(NamedTuple):
    """A compiled backward: the inputs whose gradients it gives, the numbers of tangents that it does not read, the saved values that it does."""

    call: Boxed
    owners: tuple[int, ...]
    unread: frozenset[int]
    reads: frozenset[int]


def differentiable(
    partition: Partition,
    forward: Boxed,
    compile_backward: Callable[[Backward], Boxed],
    *,
    by_tangents: bool = False,
    name: str = "graph",
) -> Boxed:
    """``f(inputs) -> the user's items of the forward's tuple``, which autograd knows the derivative of.

    ``forward(inputs)`` gives the whole tuple; ``compile_backward(backward)`` is called once, or
    ``by_tangents`` for each choice of tangents that come in, and gives ``call(saved and tangents) -> gradients``.
    Results that have nothing in common are operations of their own then, each with a backward of its own. ``name``: what a
    profiler is told of it.
    """
    whole = partition.backward
    assert whole is not None
    if separate_gradients(whole.graph.graph):
        whole.graph.recompile()
    forward = _apart_from_inputs(partition, whole, forward)
    parts = (whole.parts or apart(whole)) if by_tangents else ()
    if parts:
        return _with_grad_mode(_several(partition, parts, forward, compile_backward, name))
    plan = _Plan(partition, whole, compile_backward, by_tangents, name)
    operation = _operation(partition, plan, forward)
    return (
        _with_grad_mode(with_results_on_their_own(operation, whole.retained)) if whole.retained else operation
    )


def _apart_from_inputs(partition: Partition, whole: Backward, forward: Boxed) -> Boxed:
    """``forward``, whose results are no inputs that get no gradient: autograd would take such a tensor, which is the caller's, for the operation's."""
    given = placeholders(partition.forward)
    alone = {node for i, node in enumerate(given) if i not in whole.gradients}
    results: Any = partition.forward.graph.output_node().args[0]
    nodes = enumerate(results[: whole.results])
    places = [i for i, node in nodes if isinstance(node, torch.fx.Node) and root_of(node) in alone]
    if not places:
        return forward

    @boxed
    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        found = list(forward(inputs))
        for i in places:
            if isinstance(found[i], torch.Tensor):
                found[i] = found[i].detach()
        return found

    return run


def _operation(partition: Partition, plan: _Plan, forward: Boxed) -> Boxed:
    """One operation of autograd's: ``forward`` on the partition's inputs."""
    function = _function(plan, forward)

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        return function.apply(tuple(inputs), *[inputs[i] for i in plan.arguments])  # type: ignore[no-any-return]

    def run_without_way_back(inputs: Sequence[Any]) -> Sequence[Any]:
        """Results with a history that leads to no input: to a leaf that nobody has."""
        return function.apply(tuple(inputs), torch.empty(0, device="cpu", requires_grad=True))  # type: ignore[no-any-return]

    if not plan.arguments:
        return _with_grad_mode(run_without_way_back)
    return _native(partition, plan, function, forward, _with_grad_mode(run))


def _several(
    partition: Partition,
    parts: Sequence[Backward],
    forward: Boxed,
    compile_backward: Callable[[Backward], Boxed],
    name: str,
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """One run of the forward whose results are of several operations: each of all values, its own results among them."""
    whole = partition.backward
    assert whole is not None
    count = len(partition.inputs)
    hidden = hidden_results(partition)
    stand_ins = [_stand_in(spec) for spec in hidden]
    sizes = symbol_reader(partition) if any(not is_fixed(spec) for spec in hidden) else lambda _: {}
    values = with_results_as_inputs(partition, hidden)
    without_grad = native.grad_off(forward, torch.no_grad()(forward))  # as in the forward of one operation
    operations = []
    for part, group in zip(parts, whole.apart, strict=True):
        alone = of_group(part, group, count)
        plan = _Plan(values, alone.seen, _compiled_alone(alone, compile_backward), True, name)
        operations.append((alone.places, _operation(values, plan, picked(alone.places))))

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        found = [*inputs, *_roots(without_grad(inputs))]
        if stand_ins:
            names = sizes(inputs)
            found += [made(names) for made in stand_ins]
        # passes may find two results equal: each is a tensor of its own, with its own history or with none
        for i in _again(found, count, count + whole.results):
            found[i] = found[i].detach()
        for places, operation in operations:
            for place, result in zip(places, operation(found), strict=True):
                found[place] = on_its_own(result) if place - count in whole.retained else result
        return found[count : count + whole.results]

    return run


def _compiled_alone(
    alone: Alone, compile_backward: Callable[[Backward], Boxed]
) -> Callable[[Backward], Boxed]:
    return lambda half: compile_backward(alone.compiled(half))


def _with_grad_mode(run: Boxed) -> Boxed:
    """``run`` where grad mode is on."""

    @boxed
    def call(inputs: Sequence[Any]) -> Sequence[Any]:
        if torch.is_grad_enabled():
            return run(inputs)
        with torch.enable_grad():  # the graph turns it on itself
            return run(inputs)

    return call


def _native(partition: Partition, plan: _Plan, function: Any, forward: Boxed, general: Boxed) -> Boxed:
    """``general``, with plain calls and gradients handled by the C core (``native/src/operation.c``), where there is one."""
    if not torch_compat.keeps_plainly():
        return general
    arguments = [(i, partition.inputs[i]) for i in plan.arguments]
    if not all(isinstance(spec, TensorSpec) for _, spec in arguments):
        return general
    made = native.operation(
        torch_compat.apply_past_wrapper(function),
        torch_compat.transforms_at_work,
        Way(
            general,
            forward,
            None if plan.keeps_plainly else plan.save,
            plan.plain_backward,
            plan.late,
            held_by_engine,
            plan.range,
        ),
        plan.results,
        plan.kept() if plan.straight or plan.keeps_plainly else (),
        [(i, spec.device.type) for i, spec in arguments],  # type: ignore[union-attr]
        *(plan.read() if plan.straight else ((), ())),
    )
    if made is None:
        return general
    torch_compat.put_steps(function, made.forward, made.step if plan.straight else None)
    return made  # type: ignore[no-any-return]


class _Plan:
    """What an operation does on each call, worked out beforehand."""

    def __init__(
        self,
        partition: Partition,
        backward: Backward,
        compile_backward: Callable[[Backward], Boxed],
        by_tangents: bool,
        name: str,
    ) -> None:
        #: ranges in a profile: of the backward, and of its compile
        self.range, self.compiles = f"braze: {name} backward", f"braze: compiles {name} backward"
        self.results = backward.results
        self.saved, self.guarded = backward.saved, backward.guarded
        #: for each tangent the operation's result that it belongs to
        self.tangents = backward.tangents
        self.symbols = symbol_reader(partition)
        self.layouts = tuple(_layout(spec) for spec in backward.inputs[len(self.saved) :])
        inputs = enumerate(backward.inputs[: len(self.saved)])
        saved = [(i, spec) for i, spec in inputs if isinstance(spec, TensorSpec)]
        #: (place, layout) of saved tensors: a hook may give back another than it was given (``save_on_cpu`` does, from a GPU)
        self.saved_layouts = tuple((i, _layout(spec)) for i, spec in saved)
        #: (place, sizes, type) of saved tensors: the program may give one other memory (``x.data = ...``)
        self.saved_shapes = tuple((i, evaluator(spec.sizes), spec.dtype) for i, spec in saved)
        self.shapes = tuple(_shape(spec) for spec in backward.inputs[len(self.saved) :])
        self.depends = dict(zip(backward.gradients, backward.depends, strict=True))
        #: what is behind an argument runs backward with the operation, even for an undefined gradient: only those that get one
        self.arguments: tuple[int, ...] = backward.gradients
        kinds = [isinstance(spec, TensorSpec) for spec in backward.inputs[: len(self.saved)]]
        #: places of saved values that are tensors, for autograd to watch, and of the numbers beside them
        self.tensors = tuple(i for i, tensor in enumerate(kinds) if tensor)
        #: whether it goes backward once, unless it is retained: in eager it saves something, or it does here
        self.saving = any(backward.saving) or len(self.tensors) > 0
        self.numbers = tuple(i for i, tensor in enumerate(kinds) if not tensor)
        #: places of those that another operation gives or gets: what is kept of them has no history
        self.foreign = tuple(i for i in self.tensors if not self._is_own(self.saved[i]))
        #: places of those whose version is kept here: the operation's results, which the caller gets and may write, and
        #: all where autograd does not tell of each
        self.given = tuple(
            i for i in self.tensors if not torch_compat.can_unpack_saved or self._is_given(self.saved[i])
        )
        #: (whether an input, number) of saved values, where all are inputs or results as they are
        as_they_are = all(s.source is not SavedFrom.SYMBOL and not s.name for s in self.saved)
        self.sources = tuple((s.source is SavedFrom.INPUT, s.index) for s in self.saved)
        self.general = () if as_they_are else self.saved
        tangents = backward.inputs[len(self.saved) :]
        #: whether no tangent is so large that it matters when it is let go of
        self.small = all(_bytes(spec) < LARGE for spec in tangents)
        carried = set(backward.tangents)
        self.plain = tuple(i for i in range(self.results) if i not in carried)
        #: places of inputs, and of results without a history, of which eager keeps views, or what is made of them: what is kept is a tensor over their memory
        kept = [(i, self.saved[i]) for i in self.tensors if self.saved[i].early]
        self.early = tuple(i for i, s in kept if s.source is SavedFrom.INPUT or s.index in self.plain)
        tensors_alone = not self.numbers and len(self.tensors) == len(self.saved)
        fixed = all(is_fixed(spec) for spec in partition.inputs)
        #: whether what is kept are inputs and results as they are, and all results have a history: for the C core
        self.keeps_plainly = fixed and as_they_are and tensors_alone and not (self.plain or self.guarded)
        #: whether the backward is given what was saved and tangents of known layouts, no more: also for the C core
        self.straight = (
            tensors_alone and all(map(is_fixed, backward.inputs)) and backward.gradients == self.arguments
        )
        self._compile = compile_backward
        self._whole = backward
        self._by_tangents = by_tangents
        #: which tangents come in -> the backward for them
        self._halves: dict[tuple[bool, ...], _Half] = {}
        self._lock = threading.Lock()

    def _is_own(self, saved: Saved) -> bool:
        return saved.source is not SavedFrom.INPUT or saved.index in self.arguments

    def _is_given(self, saved: Saved) -> bool:
        return saved.source is SavedFrom.OUTPUT and saved.index < self.results

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
        missing = [i for i, here in enumerate(given) if not here] if self._by_tangents else []
        part, unread = without_tangents(self._whole, missing) if missing else (self._whole, frozenset())
        whole = (True,) * len(self.tangents)
        if part is self._whole and given != whole:
            if whole not in self._halves:
                self._halves[whole] = self._made(whole)
            return self._halves[whole]
        if missing and len(self._halves) >= MOST:
            logger("aot").info("a backward for a further choice of gradients runs operator by operator")
            return _Half(eager_forward(part.graph), part.gradients, unread, _reads(part))
        # in a compiled step this runs under a broken call, whose frames are captured: not those of a compiler
        call = native.in_range(self.compiles, native.unhooked, self._compile, part)
        return _Half(call, part.gradients, unread, _reads(part))

    def values(self, inputs: Sequence[Any], results: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
        """What is saved, in order, and the sizes of this call."""
        names = self.symbols(inputs)
        if not self.general:
            return [inputs[i] if given else results[i] for given, i in self.sources], names
        found = []
        for each in self.general:
            value = each.of(inputs, results, names)
            if each.name and each.name not in names:  # a number that the forward has made
                names = {**names, each.name: value}
            found.append(value)
        return found, names

    def save(self, ctx: Any, inputs: Sequence[Any], results: list[Any]) -> tuple[Any, ...]:
        """Keep what the backward reads, and give the operation's results."""
        values, names = self.values(inputs, results)
        for i in self.foreign:
            if values[i].requires_grad:
                values[i] = values[i].detach()
        for i in self.early:
            values[i] = values[i].detach()
        ctx.save_for_backward(*(values[i] for i in self.tensors))  # refuses those of inference mode later
        counts = [0 if values[i].is_inference() else values[i]._version for i in self.given]
        ctx.kept = names, [values[i] for i in self.numbers], counts
        ctx.set_materialize_grads(False)
        for i in self.guarded:  # one value may be another result, too, whose history its views would have
            results[i] = results[i].detach().view_as(results[i])
        if not self.plain:
            return tuple(results[: self.results])
        items = dict(enumerate(results[: self.results]))
        plain = [i for i in self.plain if isinstance(items[i], torch.Tensor)]
        # one value may be new contents without a history and a result with one: two tensors
        taken = {id(items[i]) for i in items if i not in self.plain} if plain else ()
        # autograd would turn an input that is another's new contents into a leaf without a gradient, for the caller too
        items |= {i: items[i].detach() for i in plain if items[i].requires_grad or id(items[i]) in taken}
        ctx.mark_non_differentiable(*[items[i] for i in plain])
        return tuple(items.values())

    def unpacked(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
        """What was saved, in order."""
        if not numbers and len(tensors) == len(self.saved):
            return list(tensors)
        values: list[Any] = [None] * len(self.saved)
        for places, found in ((self.tensors, tensors), (self.numbers, numbers)):
            for i, value in zip(places, found, strict=True):
                values[i] = value
        return values

    def readable(
        self, ctx: Any, half: _Half, sizes: dict[str, int], numbers: Sequence[int], error: RuntimeError
    ) -> list[Any]:
        """What was saved, of which autograd refuses some since it was written: an error only if the backward reads that.

        In eager each operation looks at its own. What is not read has its sizes, and some numbers; what has no elements has no
        number that a write could change.
        """
        found = []
        versions = dict(zip(self.given, numbers, strict=True))
        for i, saved in zip(self.tensors, ctx._raw_saved_tensors, strict=True):
            spec = self._whole.inputs[i]
            assert isinstance(spec, TensorSpec)
            if i in half.reads and 0 in evaluator(spec.sizes)(sizes):
                found.append(_layout(spec)(None, sizes))
                continue
            if i in half.reads and i not in versions:
                found.append(saved.unpack())
                continue
            if i in half.reads and saved.data._version != versions[i]:
                raise error
            found.append(saved.data)
        return found

    def by_number(self, tangents: Sequence[Any]) -> list[Any]:
        """The gradients of the operation's results as the backward's tangents."""
        return [tangents[i] for i in self.tangents]

    def is_as_saved(self, values: Sequence[Any], names: dict[str, int]) -> bool:
        """Whether what was saved has the sizes and types that the backward was compiled for, whose kernels look no further."""
        return all(
            values[i].dtype is dtype and values[i].shape == sizes(names)
            for i, sizes, dtype in self.saved_shapes
        )

    def by_operators(
        self, values: list[Any], tangents: Sequence[Any], sizes: dict[str, int]
    ) -> tuple[Any, ...]:
        """The gradients by ATen's operators: under ``vmap``, for many tangents at once, of which each knows how; or of what has another shape by now, as in eager."""
        found = self.by_number(tangents)
        given = [tangent is not None for tangent in found]
        for tangent, layout in zip(found, self.layouts, strict=True):
            values.append(layout(None, sizes) if tangent is None else tangent.contiguous())
        return self.gradients_of(run_by_operators(self._whole.graph, values), self._whole.gradients, given)

    def gradients_of(
        self, found: Sequence[Any], owners: tuple[int, ...], given: Sequence[bool]
    ) -> tuple[Any, ...]:
        """One gradient per argument; None where no tangent of those it is made of was given, as in eager."""
        if owners == self.arguments and all(given):
            return tuple(found)
        gradients: dict[int, Any] = {}
        for i, gradient in zip(owners, found, strict=True):
            depends = self.depends[i]
            if not depends or any(given[k] for k in depends):
                gradients[i] = gradient
        return tuple([gradients.get(i) for i in self.arguments])

    def kept(self) -> list[Kept]:
        """The saved values, for the C core."""
        rows = zip(self.sources, range(len(self.saved)), strict=True)
        return [Kept(*source, i in self.foreign, i in self.early, i in self.given) for source, i in rows]

    def read(self) -> tuple[list[Read], list[Read]]:
        """The saved tensors, and the tangents, for the C core."""
        specs = [
            spec for spec in self._whole.inputs if isinstance(spec, TensorSpec)
        ]  # all of them, as it is straight
        places = [*range(len(self.saved)), *self.tangents]
        found: list[tuple[Read, int]] = [
            (Read(i, spec.device.type, spec.dtype, spec.sizes, spec.strides), int(_bytes(spec)))  # type: ignore[arg-type]
            for i, spec in zip(places, specs, strict=True)
        ]
        saved, tangents = found[: len(self.saved)], found[len(self.saved) :]
        large = [x._replace(large=size) if size >= LARGE else x for x, size in tangents]
        return [x for x, _ in saved], large

    @hidden_from_dynamo
    def plain_backward(self) -> Callable[[list[Any]], Sequence[Any]] | None:
        """The backward for tangents that all come in as they are wanted: ``f(saved and tangents) -> gradients``, if it is as simple."""
        if not self.straight:
            return None
        half = self.backward((True,) * len(self.tangents))
        return _hidden(half.call) if half.owners == self.arguments and not half.unread else None

    @hidden_from_dynamo
    def late(
        self, ctx: Any, tangents: tuple[Any, ...], saved: tuple[Any, ...] | RuntimeError | None
    ) -> tuple[Any, ...]:
        """What autograd is given, where the C core leaves it to Python."""
        return (None, *self.gradients(ctx, tangents, saved))

    def gradients(
        self, ctx: Any, tangents: tuple[Any, ...], saved: tuple[Any, ...] | RuntimeError | None = None
    ) -> tuple[Any, ...]:
        """What the operation's backward gives. ``saved``: the saved tensors, or why some cannot be had, where that is known already."""
        if torch.is_grad_enabled():
            raise BackwardError(
                "BZ2023",
                "a gradient of a gradient (create_graph=True) through a compiled graph",
                why="braze compiles first derivatives only",
                hints=[
                    'call the model uncompiled, or under `with braze.set_stance("force_eager"):`, where you need second derivatives',
                    "or compile the function that takes the derivative, too: torch.func.grad, jacrev and hessian are captured, and the graph that ends at "
                    "torch.autograd.grad(..., create_graph=True) runs as it is captured there",
                ],
            )
        given = tuple([tangent is not None for tangent in self.by_number(tangents)])
        if not any(given):  # in eager nothing of it would run: what it has saved may have been written since
            return (None,) * len(self.arguments)
        sizes, numbers, versions = getattr(ctx, "kept", _NOTHING)
        try:
            if not self.saving:  # autograd lets nobody ask a second time, though nothing was freed
                saved = ()
            elif isinstance(saved, RuntimeError):
                raise saved
            values = self.unpacked(ctx.saved_tensors if saved is None else saved, numbers)
        except RuntimeError as error:
            if is_of_program(error):  # a hook that unpacks
                raise
            half = self.backward(given)
            values = self.unpacked(self.readable(ctx, half, sizes, versions, error), numbers)
        if any(map(torch_compat.is_batched, tangents)) or not self.is_as_saved(values, sizes):
            refuse_stretched(values, self.saved_shapes, sizes)
            return self.by_operators(values, tangents, sizes)
        del saved
        for i, layout in self.saved_layouts:
            values[i] = layout(values[i], sizes)
        # unless the graph is retained, only this list now holds what was saved: the backward empties it as it goes
        ctx.maybe_clear_saved_tensors()
        found = self.by_number(tangents if self.small else taken_over(tangents, LARGE))
        del tangents
        half = self.backward(given)
        for i, (layout, shape) in enumerate(zip(self.layouts, self.shapes, strict=True)):
            values.append(shape(sizes) if i in half.unread else layout(found[i], sizes))
        del found
        return self.gradients_of(native.in_range(self.range, half.call, values), half.owners, given)


def _function(plan: _Plan, run: Boxed) -> Any:
    """The class that autograd wants: one per operation."""

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: Any, *arguments: Any) -> Any:
            return plan.save(ctx, given, _roots(run(given)))

        @staticmethod
        @hidden_from_dynamo
        def backward(ctx: Any, *tangents: Any) -> Any:
            return (None, *(plan.gradients(ctx, tangents) or (None,)))

    return Compiled


def _hidden(call: Boxed) -> Boxed:
    """A backward into which Dynamo does not look, where nothing in Python stands around it."""

    def hidden(values: Sequence[Any]) -> Sequence[Any]:
        return call(values)

    return hidden_from_dynamo(call if isinstance(call, FunctionType) else hidden)


def _again(values: Sequence[Any], first: int, end: int) -> list[int]:
    """The places, from ``first`` on, of tensors that stand at an earlier place there, too."""
    seen: set[int] = set()
    found = []
    for i in range(first, end):
        if isinstance(values[i], torch.Tensor):
            if id(values[i]) in seen:
                found.append(i)
            seen.add(id(values[i]))
    return found


def _roots(results: Sequence[Any]) -> list[Any]:
    """The results, each a tensor of its own where kernels gave a view: autograd lets nobody write to views of functions."""
    return [r.detach() if isinstance(r, torch.Tensor) and r._is_view() else r for r in results]


def _layout(spec: Any) -> Callable[[torch.Tensor | None, dict[str, int]], torch.Tensor]:
    """f(tangent, sizes) -> the tangent in the memory layout that the backward was compiled for; zeros for None.

    Below zero: added to what another tangent gives they leave the signs of its zeros.
    """
    sizes, strides = evaluator(spec.sizes), evaluator(spec.strides)

    def laid_out(tangent: torch.Tensor | None, names: dict[str, int]) -> torch.Tensor:
        wanted = strides(names)
        if tangent is None:
            fresh = torch.empty_strided(sizes(names), wanted, dtype=spec.dtype, device=spec.device)
            return fresh.fill_(-0.0) if spec.dtype.is_floating_point else fresh.zero_()
        tangent = torch_compat.with_memory(tangent)
        if tangent.stride() == wanted or _same(tangent, wanted):
            return tangent
        return _copied(tangent, wanted)

    return laid_out


def _stand_in(spec: TensorSpec) -> Callable[[dict[str, int]], torch.Tensor]:
    """f(sizes) -> a tensor of one number, of which at most the shape is read."""
    sizes, strides = evaluator(spec.sizes), (0,) * len(spec.sizes)
    return lambda names: torch.empty_strided(sizes(names), strides, dtype=spec.dtype, device=spec.device)


def _copied(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A copy with these strides; of what lies at one place the first is written."""
    each = tensor
    for d, stride in enumerate(strides):
        if stride == 0 and tensor.shape[d] > 1:
            each = each.narrow(d, 0, 1)
    fresh = torch.empty_strided(each.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return fresh.copy_(each).expand(tensor.shape)


def _reads(backward: Backward) -> frozenset[int]:
    """The saved values whose numbers a backward reads, not their sizes alone: those may not have been written since."""
    saved = placeholders(backward.graph)[: len(backward.saved)]
    return frozenset(i for i, node in enumerate(saved) if node.users)


def _bytes(spec: Any) -> float:
    """The bytes of a tensor's elements; infinitely many where its sizes are not known."""
    return math.prod(spec.sizes) * spec.dtype.itemsize if is_fixed(spec) else math.inf


def _shape(spec: Any) -> Callable[[dict[str, int]], torch.Tensor | None]:
    """f(sizes) -> what stands for a tangent of which at most the shape is read."""
    return (lambda names: None) if is_fixed(spec) else _stand_in(spec)


def _same(tensor: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Whether strides differ only where they do not matter."""
    return all(
        n == 1 or have == want for n, have, want in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )
