"""Around a compiled forward: write mutated inputs back, rebuild outputs that are views, put constants in place."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from braze import native
from braze.aot.calls.promises import Promises
from braze.aot.calls.rebuild import Build, builder, early_builder, guarding, straight
from braze.aot.facts.overlap import are_apart, may_overlap
from braze.aot.facts.records import Around, OutputKind, Partition
from braze.aot.facts.views import is_view
from braze.aot.joint.ended_late import computed_whole
from braze.aot.joint.histories import is_written_past_its_history
from braze.graph.nodes.specs import Dialect, SymbolSpec, TensorSpec
from braze.graph.operators.modes import with_modes
from braze.graph.private.torch_compat import (
    copy_all,
    copy_uncounted,
    count_writes,
    put_versions,
    saving_hooks,
    storage_key,
    take_back_counts,
)
from braze.runtime.call.boxed import Boxed, Written, boxed
from braze.support import trace
from braze.support.errors import Unsupported
from braze.support.layouts import span
from braze.support.log import warn_once


class Window(NamedTuple):
    """An output: the graph's next value (``input`` is -1), an input, or what is seen of it through sizes and strides, ``shift`` elements on.

    ``apart``: it has no history.
    """

    input: int
    sizes: tuple[int, ...] | None = None
    strides: tuple[int, ...] = ()
    shift: int = 0
    apart: bool = False


def windows_of(around: Around) -> tuple[Window, ...] | None:
    """The outputs of a graph that writes to no input as windows; None where one is something else, or moves with a symbol."""
    if around.mutations:
        return None
    found = []
    for role in around.outputs:
        spec = role.spec
        if role.kind is OutputKind.VALUE:
            found.append(Window(-1))
        elif role.kind is not OutputKind.ALIAS:
            return None
        elif spec is None:
            found.append(Window(role.input))
        else:
            base = around.inputs[role.input]
            numbers = (*spec.sizes, *spec.strides, spec.offset, getattr(base, "offset", None))
            plain = isinstance(base, TensorSpec) and base.dtype is spec.dtype and not role.absolute
            if not plain or not all(isinstance(n, int) for n in numbers):
                return None
            shift = spec.offset - base.offset  # type: ignore[operator, union-attr]
            found.append(Window(role.input, spec.sizes, spec.strides, shift, not spec.requires_grad))  # type: ignore[arg-type]
    return tuple(found)


def wrap(
    partition: Partition, compiled: Boxed, *, eager: Callable[..., Any] | None = None, verify: int = 0
) -> Boxed:
    """``f(inputs) -> user outputs`` around ``compiled(inputs) -> the forward graph's tuple``.

    Where the graph writes to an input that in some call shares its memory with another input, the functional
    graph would miss the write through the other: such a call runs ``eager(*inputs)`` instead. ``verify``: the option.
    """
    plain = not (
        partition.mutations or partition.made or partition.shared or partition.anchored or partition.turned
    )
    if verify < 2 and plain and all(r.kind is OutputKind.VALUE and not r.guard for r in partition.outputs):
        return compiled
    call = _Wrapped(partition, compiled, eager, Promises(partition) if verify >= 2 else None)
    alone = _one_view(partition, call)
    if alone is not None:
        return alone
    written: Written | None = getattr(compiled, "written", None)
    if written is None or written.unseen or not call.short or call.beyond:
        return call
    if set(call.mutated) != set(written.roots):
        return call
    looked = [(i, partition.inputs[i].dtype.itemsize, i in written.roots) for i in call.tensors]  # type: ignore[union-attr]
    return native.written_call(
        written.call, count_writes, take_back_counts, call, looked, written.places, call.places
    )


def _one_view(partition: Partition, call: _Wrapped) -> Boxed | None:
    """``call`` of a graph that gives one view of an input, and nothing else, as that alone: most of what it costs beside eager were steps for others."""
    if len(partition.outputs) != 1 or call.computes or not call.reads:
        return None
    if call.windows is not None:
        place, sizes, strides, shift, apart = call.windows[0]
        if place < 0 or sizes is None:
            return None

        @boxed
        def seen(inputs: Sequence[Any]) -> list[Any]:
            x = inputs[place].detach() if apart and inputs[place].requires_grad else inputs[place]
            if shift:
                return [x.as_strided(sizes, strides, x.storage_offset() + shift)]
            return [x.as_strided(sizes, strides)]

    else:
        role = partition.outputs[0]
        found = straight(role.way) if role.kind is OutputKind.ALIAS and role.way else None
        if found is None:
            return None
        modes, steps = found

        @boxed
        def seen(inputs: Sequence[Any]) -> list[Any]:
            if (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) != modes:
                return call(inputs)
            x = inputs[role.input]
            for op, args in steps:
                x = op(x, *args)
            return [x]

    seen.general = call  # type: ignore[attr-defined]
    return seen


#: more writes than a program makes
NO_COUNT = 2**31
#: outputs that a forward's results and inputs are enough for
_OF_INPUTS = (OutputKind.VALUE, OutputKind.ALIAS, OutputKind.SAME, OutputKind.CONSTANT)


def wrap_again(around: Around, compiled: Boxed, eager: Callable[..., Any] | None) -> Boxed:
    """``compiled`` with what stands around it, as ``wrap`` has put it there."""
    forward = GraphModule({}, Graph())
    partition = Partition(
        forward, Dialect.CORE, around.inputs, (), around.mutations, around.outputs, beyond=around.beyond
    )
    return wrap(partition, compiled, eager=eager)


def with_own_results(partition: Partition, call: Boxed, viewed: frozenset[int] | None = None) -> Boxed:
    """``call(inputs) -> the forward graph's tuple``, in which no view stands for what autograd lets the caller write to in eager.

    A graph runs without gradients, and nobody may write to a view that is made so. ``viewed``: the items that may be views (those that
    are in the graph). Where a backward follows, its operation sees to that.
    """
    if partition.backward is not None:
        return call
    if viewed is None:
        items: Any = partition.forward.graph.output_node().args[0]
        viewed = frozenset(i for i, item in enumerate(items) if _is_view_of_graph(item))
    bases = {role.output for role in partition.outputs if role.kind is OutputKind.ALIAS_OF_OUTPUT}
    values = [role for role in partition.outputs if role.kind is OutputKind.VALUE]
    first = len(partition.mutations) + len(bases)
    places = [i for i, role in enumerate(values, first) if i in viewed and role.spec and not role.locked]
    if not places:
        return call

    @boxed
    def owning(inputs: Sequence[Any]) -> tuple[Any, ...]:
        results = list(call(inputs))
        for i in places:
            if results[i]._is_view():
                results[i] = results[i].data
        return tuple(results)  # as graphs do, which the C core asks

    return owning


def _is_view_of_graph(node: Any) -> bool:
    if isinstance(node, Node) and node.target is operator.getitem:
        node = node.args[0]
    return isinstance(node, Node) and is_view(node)


def _around_of(partition: Partition) -> Around | None:
    """What stands around a forward, where no graph but the forward's is needed for it."""
    more = partition.made or partition.shared or partition.anchored or partition.turned or partition.ordered
    if more or partition.backward is not None or any(role.differentiable for role in partition.mutations):
        return None
    if any(r.way or r.guard or r.kind not in _OF_INPUTS for r in partition.outputs):
        return None
    return Around(partition.inputs, partition.mutations, partition.outputs, partition.beyond)


@boxed
class _Wrapped:
    """What the wrapper does on each call, worked out beforehand."""

    def __init__(
        self,
        partition: Partition,
        compiled: Boxed,
        eager: Callable[..., Any] | None,
        promises: Promises | None = None,
    ) -> None:
        self.compiled = compiled
        self.promises = promises
        self.eager = eager
        #: for who keeps the call; None: it needs more
        self.around = _around_of(partition) if promises is None else None
        #: what each output is, where all are values, inputs, and windows on inputs that no symbol moves
        self.windows = windows_of(self.around) if self.around is not None else None
        #: whether the graph does anything: all may be windows. One that is kept is not there to be looked at
        kinds = {n.op for n in partition.forward.graph.nodes}
        self.computes = kinds != {"placeholder", "output"}
        self.differentiated = partition.backward is not None
        self.specs = partition.inputs
        #: whether some inputs have no elements
        self.some_empty = any(isinstance(spec, TensorSpec) and 0 in spec.sizes for spec in self.specs)
        self.tensors = tuple(i for i, s in enumerate(self.specs) if isinstance(s, TensorSpec))
        self.symbols = symbol_reader(partition)
        self.extents = () if partition.beyond else _extents(partition)
        #: stands for this graph where it is written down that something was told: an address would come to be another's
        self.told = object()
        self.shared, self.beyond, self.anchored = partition.shared, partition.beyond, partition.anchored
        self.turned, self.ordered = partition.turned, partition.ordered
        #: of written inputs that are the memory of several, those several
        first = len(partition.inputs) - len(self.shared)
        self.members = {first + k: frozenset(each.inputs) for k, each in enumerate(self.shared)}
        self._note_writes(partition)
        self._note_outputs(partition)
        more = self.made or self.shared or self.anchored or self.turned or self.bases or promises is not None
        self.short = -1 not in self.places and not (more or self.ordered or self.derived)
        #: whether inputs are only read, so that outputs are no more than results and views
        self.reads = not (more or self.mutated or self.early)

    def _note_writes(self, partition: Partition) -> None:
        """Which inputs are written, and how."""
        self.mutated = tuple(role.input for role in partition.mutations)
        written = [(role.input, k, role.differentiable) for k, role in enumerate(partition.mutations)]
        uncounted = {role.input for role in partition.mutations if not role.counted}
        #: (input, place of its new contents), for those without a history, of one type together, and those with one; or written without a count
        self.overwritten = self._alike(
            [(i, k) for i, k, differentiable in written if not differentiable and i not in uncounted]
        )
        self.unnoticed = self._alike([(i, k) for i, k, _ in written if i in uncounted])
        self.derived = tuple((i, k) for i, k, differentiable in written if differentiable)
        #: places of the new contents of those that eager writes after the last tensor that it saves
        self.unreached = tuple(k for k, role in enumerate(partition.mutations) if role.after_saves)
        #: whether a backward may keep what lies in one memory with a written input
        self.keeps_others = self.differentiated and bool(self.overwritten or self.derived)

    def _note_outputs(self, partition: Partition) -> None:
        """How each output is made of what the graph gives, and where in its tuple that stands."""
        build = [builder(role, partition) for role in partition.outputs]
        roles = partition.outputs
        early = [
            (i, found) for i, r in enumerate(roles) if (found := early_builder(r, partition)) is not None
        ]
        of_results = {i for i, _ in early if roles[i].kind is OutputKind.ALIAS_OF_OUTPUT}
        #: (output, what makes it, or the first steps to it, before inputs are written); of results, before they were
        self.early = tuple((i, found[0]) for i, found in early if i not in of_results)
        self.early_of_results = tuple((i, found[0]) for i, found in early if i in of_results)
        #: places of results that have been written since views of them were made
        self.written_since = sorted({roles[i].output for i in of_results})
        whole = {i for i, found in early if found[1]}
        self.build = tuple(_made_early(i) if i in whole else make for i, make in enumerate(build))
        self.repeated = tuple(
            (i, role.output) for i, role in enumerate(partition.outputs) if role.kind is OutputKind.SAME
        )
        # bases of views stand between the mutations and the values
        self.bases = sorted({r.output for r in partition.outputs if r.kind is OutputKind.ALIAS_OF_OUTPUT})
        position, places = len(partition.mutations) + len(self.bases), []
        for role in partition.outputs:
            places.append(position if role.kind is OutputKind.VALUE else -1)
            position += role.kind is OutputKind.VALUE
        self.build = tuple(
            guarding(places[i], role.guard) if (role := roles[i]).guard else make
            for i, make in enumerate(self.build)
        )
        places = [-1 if role.guard else place for role, place in zip(roles, places, strict=True)]
        self.places = tuple(places)
        #: (name, place in the graph's tuple) of sizes that only the graph tells
        count = len(places) - len(partition.made)
        self.made = tuple(zip(partition.made, places[count:], strict=True))
        #: (place in the graph's tuple or -1, what makes it) of each output
        self.found = tuple(zip(places[:count], self.build, strict=False))

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        if self.windows is not None:
            return self._seen_through(self.windows, given)
        if not self.differentiated or torch.is_grad_enabled():
            return self._run(given)
        with torch.enable_grad():  # the graph turns it on itself
            return self._run(given, grad=False)

    def _run(self, given: Sequence[Any], *, grad: bool = True) -> list[Any]:
        """``grad``: whether it was on when the call began, if the graph is differentiated."""
        if self.short:
            return self._values(given, grad)
        if self.reads:
            results = self.compiled(given) if self.computes else ()
            return self._outputs(given, results, self.symbols(given), {})
        inputs = self._with_shared(given) if self.shared else given
        if (
            inputs is None
            or any(inputs[i].storage_offset() != offset for i, offset in self.anchored)
            or (self.mutated and self._shares_written_memory(inputs))
            or any(storage_key(inputs[i]) == storage_key(inputs[k]) for i, k in self.ordered)
        ):
            return self._as_captured(given, grad)
        if any(is_written_past_its_history(inputs[i]) for i, _ in self.derived):
            return self._as_captured(given, grad, "BZ2030")
        known: dict[int, Any] = {}
        if self.early:
            names = self.symbols(inputs)
            for i, build in self.early:
                known[~i] = build(inputs, (), names, known)
        _count_writes([inputs[i] for i in self.turned])
        results = self._computed(inputs)
        for each in self.shared:
            _count_writes([inputs[i] for i in each.counted])
        names = self.symbols(inputs)
        if self.made:
            names = {**names, **{name: results[place] for name, place in self.made}}
        if self.bases:
            results = self._with_plain_bases(results)
            self._make_early_views(inputs, results, names, known)
        outputs = self._outputs(inputs, results, names, known)
        if self.promises is not None:
            self.promises.check(inputs, results, outputs, names)
        return outputs

    def _outputs(
        self, inputs: Sequence[Any], results: Sequence[Any], names: dict[str, int], known: dict[int, Any]
    ) -> list[Any]:
        outputs = [
            results[place] if place >= 0 else build(inputs, results, names, known)
            for place, build in self.found
        ]
        for i, first in self.repeated:
            outputs[i] = outputs[first]
        return outputs

    def _seen_through(self, windows: Sequence[Window], inputs: Sequence[Any]) -> list[Any]:
        """Values of the graph, inputs, and windows on them: three quarters of what a call takes that makes a view alone were steps for other calls."""
        results = self.compiled(inputs) if self.computes else ()
        outputs, values = [], iter(results)
        for place, sizes, strides, shift, apart in windows:
            if place < 0:
                outputs.append(next(values))
                continue
            x = inputs[place]
            if sizes is not None:
                if apart and x.requires_grad:
                    x = x.detach()
                x = (
                    x.as_strided(sizes, strides, x.storage_offset() + shift)
                    if shift
                    else x.as_strided(sizes, strides)
                )
            outputs.append(x)
        return outputs

    def _values(self, inputs: Sequence[Any], grad: bool) -> list[Any]:
        """All results are values of the graph, and what it writes has no history."""
        if self.mutated and self._shares_written_memory(inputs):
            return self._as_captured(inputs, grad)
        results = self._computed(inputs)
        return [results[place] for place in self.places]

    def _computed(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The graph's results, and written inputs have their new contents.

        Autograd counts writes of all that lie in one memory together. In eager what is kept of the inputs beside a written one is kept
        when that has been written: the write is counted before the graph runs, and not again.
        """
        counted = self._written_beside_others(inputs) if self.keeps_others else []
        before = [tensor._version for tensor in counted]
        for tensor in counted:
            torch.autograd.graph.increment_version(tensor)
        after = [tensor._version for tensor in counted]
        hooks, end = saving_hooks() if self.differentiated else None, None
        try:
            if hooks is None:
                results = self.compiled(inputs)
            else:
                results, end = computed_whole(self.compiled, inputs, self.unreached, hooks)
        except Exception as error:
            take_back_counts(error, counted)
            raise
        self._overwrite(inputs, results)
        if self.derived:
            if counted:  # a view notes the count at which it got its history: that must not come again
                put_versions(counted, before)
            with torch.enable_grad():
                for i, place in self.derived:
                    if results[place] is not None:
                        without_history(inputs[i]).copy_(results[place])
        if counted:
            put_versions(counted, after)
        if end is not None:
            raise end
        return results

    def _written_beside_others(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Inputs that get new contents, in the memory of which other inputs lie."""
        if not self.some_empty and not any(inputs[i].storage_offset() for i in self.tensors):
            return []  # of two that lie apart in one memory, one begins behind its start
        places = [storage_key(inputs[i]) for i in self.tensors]
        written = [inputs[i] for pairs in (*self.overwritten, self.derived) for i, _ in pairs]
        return [t for t in written if places.count(storage_key(t)) > 1 and not t.is_inference()]

    def _overwrite(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Give written inputs without a history their new contents; where there are none, the graph has written to the input itself."""
        for pairs in self.overwritten:
            made = [(i, place) for i, place in pairs if results[place] is not None]
            if self.differentiated and len(made) < len(pairs):
                _count_writes([inputs[i] for i, place in pairs if results[place] is None])
            if made:
                with torch.no_grad():
                    copy_all([inputs[i] for i, _ in made], [results[place] for _, place in made])
        for pairs in self.unnoticed:
            made = [(i, place) for i, place in pairs if results[place] is not None]
            if made:
                with torch.no_grad():
                    copy_uncounted([inputs[i] for i, _ in made], [results[place] for _, place in made])

    def _alike(self, pairs: list[tuple[int, int]]) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Inputs of one type and device together, which one call copies: a network's running means, its counters."""
        found: dict[Any, list[tuple[int, int]]] = {}
        for i, k in pairs:
            spec = self.specs[i]
            key = (spec.dtype, spec.device) if isinstance(spec, TensorSpec) else i
            found.setdefault(key, []).append((i, k))
        return tuple(map(tuple, found.values()))

    def _make_early_views(
        self, inputs: Sequence[Any], results: Sequence[Any], names: dict[str, int], known: dict[int, Any]
    ) -> None:
        """Add the views that were made before what they are of was written, which look their histories up again.

        They note the count of writes at which they got theirs: that is another one behind them. What a backward keeps has noted the count
        before, so that where there is one the views note a count that does not come.
        """
        written = [results[k] for k in self.written_since if not results[k].is_inference()]
        counts = [t._version for t in written]
        if self.differentiated and written:
            put_versions(written, [NO_COUNT] * len(written))
        for i, build in self.early_of_results:
            known[~i] = build(inputs, results, names, known)
        if self.differentiated and written:
            put_versions(written, counts)
        else:
            _count_writes(written)

    def _with_plain_bases(self, results: Sequence[Any]) -> list[Any]:
        """The results; those that others are views of are views of nothing, as in eager."""
        found = list(results)
        for i in self.bases:
            if found[i]._is_view() and not found[i].requires_grad:
                found[i] = found[i].detach()
        return found

    def _as_captured(self, inputs: Sequence[Any], grad: bool, code: str = "BZ2017") -> list[Any]:
        """A call whose inputs share memory, or have histories, otherwise than the graph was made for."""
        what, hint = (
            "inputs that share memory, of which the graph writes one",
            "pass tensors that do not overlap",
        )
        if code == "BZ2030":
            what = "a written input that is a view with hooks, or a window beside another view, or keeps its gradient"
            hint = "write to a copy"
        elif self.anchored and not self.shared:
            what = "an input that begins elsewhere in its memory, to which as_strided refers"
        if self.eager is None:
            raise Unsupported(code, what, hints=[hint])
        trace.count("calls_run_as_captured")
        warn_once(
            (code, self.told),
            f"{code}: a call runs eagerly, as captured: {what}, other than in the call that it was compiled for",
        )
        if grad:
            return list(self.eager(*inputs))
        with torch.no_grad():
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
        if self.extents and self._ends_apart(inputs):
            return False
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

    def _ends_apart(self, inputs: Sequence[Any]) -> bool:
        """Whether each written input ends before each other tensor begins, or begins where it ends: by addresses alone."""
        return are_apart([(inputs[i].data_ptr(), size, written) for i, size, written in self.extents])

    def _overlaps(self, i: int, other: int, inputs: Sequence[Any]) -> bool:
        if i == other or other in self.members.get(i, ()):
            return False
        return self.beyond or may_overlap(inputs[i], inputs[other])


def _count_writes(tensors: Sequence[torch.Tensor]) -> None:
    """Let autograd count a write of each."""
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def _made_early(i: int) -> Build:
    """Finds output ``i``, which was made before inputs were written."""
    return lambda inputs, results, names, made: made[~i]


def _extents(partition: Partition) -> tuple[tuple[int, int, bool], ...]:
    """(input, bytes from its first element to the end of its last, whether it is written) of tensors with elements.

    Nothing where a number is a symbol or a tensor's elements come before its first.
    """
    written = {role.input for role in partition.mutations}
    found = []
    for i, spec in enumerate(partition.inputs):
        if isinstance(spec, TensorSpec):
            sizes, strides = ([n for n in each if isinstance(n, int)] for each in (spec.sizes, spec.strides))
            if len(sizes) + len(strides) < 2 * len(spec.sizes) or min([0, *strides]) < 0:
                return ()
            if 0 not in sizes:
                found.append((i, span(sizes, strides) * spec.dtype.itemsize, i in written))
    return tuple(found)


def without_history(written: torch.Tensor) -> torch.Tensor:
    """A tensor that is written whole, cut off from what made its old contents: the compiled backward has their gradient.

    ``copy_`` would add zeros to it, which takes the sign off a zero, and time. Views stay connected to their bases; hooks
    stay at the operation that made the old contents, whose gradient they see.
    """
    kept = written.is_leaf or written._is_view() or written.retains_grad
    return written if kept else written.detach_()


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
    """Run an ATen graph itself, as ``compiled``; autocast's casts stand in it. How modules are called the program may have replaced."""
    if isinstance(forward, GraphModule):
        forward = forward.forward

    @boxed
    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        return forward(*inputs)  # type: ignore[no-any-return]

    return with_modes(run)
