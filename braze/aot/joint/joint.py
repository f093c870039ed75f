"""The forward and its gradients as one ATen graph.

The captured graph runs on fakes that autograd watches; then ``torch.autograd.grad`` runs on the same fakes, and the
operators of PyTorch's own derivative formulas are recorded behind the forward's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Set
from typing import Any

import torch

from braze.aot.cut.min_cut import ancestors
from braze.aot.facts.records import OutputRole
from braze.aot.facts.views import is_dense, is_view
from braze.aot.facts.writes import is_write, written_arguments
from braze.aot.joint.ended_late import written_after_saves
from braze.aot.joint.histories import (
    Operations,
    behind,
    comings,
    is_function,
    leads_nowhere,
    leaves_first,
    operations_of,
    reached_leaves,
)
from braze.aot.joint.outputs import Outputs
from braze.aot.trace import derivatives
from braze.aot.trace.recorder import Recorder
from braze.graph.calls.autograd_calls import Hooked, applied
from braze.graph.fakes import probe
from braze.graph.fakes.fakes import FakeMode, spec_of
from braze.graph.nodes.facts import facts, set_facts
from braze.graph.private import torch_compat
from braze.graph.private.torch_symbols import is_unbacked
from braze.support.errors import Origin, Unsupported

Node = torch.fx.Node
#: a storage, and the line of the program that is told of it
Place = tuple[int, Origin | None]
#: what PyTorch's derivatives raise, in eager's backward too: of means of nothing, which on fakes are divisions; of a dim that is not
OF_FORMULAS = (RuntimeError, ArithmeticError, IndexError)


class Inseparable(Exception):
    """Operations of autograd's that seemed to be apart are not."""


class Differentiation:
    """What ``trace`` calls when the forward stands: records the backward behind it.

    ``outputs``: what the user gets. ``seeds``: what gradients come in for, as ("input", k) for the new contents of
    input k, ("computed", k) for item k of ``outputs.computed()`` or ("hidden", k) for hidden result k of ``operations``; ``tangents`` are their placeholders. The
    gradients' nodes come in the order of ``wanted``: the inputs that require grad, and ``~k`` for the k-th of ``seeds``
    where later operations take it. ``functions``: the program has backwards of its own in the graph; ``between``: results may
    be taken by operations of others.
    """

    def __init__(self, functions: bool, between: bool) -> None:
        self.functions = functions
        self.between = between
        self.outputs: Outputs
        self.seeds: list[tuple[str, int]] = []
        #: how many items ``outputs.computed()`` has, which tells by memory that is changed later
        self.computed = 0
        self.tangents: list[Node] = []
        self.wanted: list[int] = []
        #: for each gradient of ``wanted`` the tangents that autograd leads there, whatever the operations on the way make of them
        self.reaching: list[set[int]] = []
        self.operations = Operations(())
        #: the memory that is written when all is saved
        self.written_last: set[int] = set()

    def __call__(self, recorder: Recorder, pairs: list[tuple[Any, Any]]) -> list[Node | None]:
        self.outputs = Outputs(recorder.graph, pairs, recorder.ways)
        self.written_last = written_after_saves(recorder.graph)
        try:
            fakes = self._seeds(recorder)
            starts = [fake.grad_fn for fake in fakes]
            self._refuse_other_histories(recorder)
        # of views that were made or written in a way that autograd does not follow; of a dim that a view has since it was turned
        # in place, where autograd makes it again
        except (RuntimeError, IndexError) as error:
            raise Unsupported(
                "BZ2030", "a result of which autograd knows no history", why=str(error)
            ) from error
        if self.functions:
            _refuse_choices_of_functions(fakes, set(recorder.histories), recorder.mode.env is not None)
        histories = set(recorder.histories)
        edges = [(fake.grad_fn, fake.output_nr) for fake in fakes]
        self.operations = operations_of(edges, histories, self._seen_by_the_user() if self.between else None)
        self.seeds += [("hidden", k) for k in range(len(self.operations.hidden))]
        edges += self.operations.hidden
        starts = [node for node, _ in edges]
        self.wanted = [i for i, leaf in enumerate(recorder.leaves) if leaf is not None]
        tangents = self._tangents(recorder, fakes)
        recorder.origin = None
        recorder.in_backward = True
        leaves = [recorder.leaves[i] for i in self.wanted]
        _refuse_missing_derivatives(starts)
        _refuse_lone_statistics(fakes, histories)
        if not self.functions:  # whose own backwards run when they are asked
            _refuse_hidden_errors(starts, leaves)
        if not leaves:
            raise Unsupported(
                "BZ2021", "gradients that end at a leaf which the program makes, and reach no input"
            )
        derivatives.correct(leaves_first(starts), self.tangents)
        _tell_read_late(starts)
        taken = self.operations.taken
        recorder.coming, come = comings(edges, {edges[j]: j for j in taken})
        reaching = [*reached_leaves(leaves, recorder.coming), *(come[j] for j in taken)]
        self.reaching = [{i for i in range(len(starts)) if bits >> i & 1} for bits in reaching]
        self.wanted += [~j for j in taken]
        forward = set(recorder.graph.nodes)
        gradients = self._differentiated(recorder, fakes, tangents, leaves)
        _tell_read_early(recorder.graph, forward)
        return gradients

    def _differentiated(
        self, recorder: Recorder, fakes: list[Any], tangents: list[Any], leaves: list[Any]
    ) -> list[Node | None]:
        """The gradients of ``wanted``, traced by autograd."""
        taken = self.operations.taken
        #: the gradients that results get of those which take them; the tangents go on in their place
        arrived: dict[int, Node] = {}
        for j in taken:
            if j < len(fakes):
                fakes[j].register_hook(functools.partial(_handed_over, recorder, arrived, j, tangents[j]))
        for j, (node, place) in enumerate(self.operations.hidden, len(fakes)):
            node.register_prehook(functools.partial(self._met, recorder, arrived, j, place))
        ends = [i for i in range(len(fakes)) if i not in taken]
        try:
            with recorder, torch_compat.disable_autocast():
                found = torch.autograd.grad(
                    [fakes[i] for i in ends], leaves, [tangents[i] for i in ends], allow_unused=True
                )
            if len(arrived) < len(taken):
                raise Inseparable
            gradients = [None if g is None else recorder.argument(g) for g in found]
            return [*gradients, *(arrived[j] for j in taken)]
        except OF_FORMULAS as error:
            if torch_compat.is_out_of_memory(error):
                raise
            # eager raises it too, when the user calls backward
            raise Unsupported("BZ2021", "the backward cannot be traced", why=str(error)) from error

    def _met(
        self,
        recorder: Recorder,
        arrived: dict[int, Node],
        number: int,
        place: int,
        gradients: tuple[Any, ...],
    ) -> tuple[Any, ...] | None:
        """A hook on a node to which a hidden result goes: as ``_handed_over``, of a tangent that looks like what comes."""
        gradient = gradients[place]
        # an empty one of that size stands for the result, which the forward's inputs must tell
        if gradient is None or any(isinstance(n, torch.SymInt) and is_unbacked(n) for n in gradient.shape):
            return None
        arrived[number] = recorder.argument(gradient)
        tangent = _tangent(recorder.mode, gradient)
        recorder.know(tangent, self.tangents[number])
        self.tangents[number].meta["val"] = tangent
        return (*gradients[:place], tangent, *gradients[place + 1 :])

    def with_histories(self, mutations: tuple[OutputRole, ...]) -> tuple[OutputRole, ...]:
        """The mutations' roles; those that gradients come in for are differentiable."""
        carried = {k for kind, k in self.seeds if kind == "input"}
        places = [torch_compat.storage_key(self.outputs.placeholders[r.input].meta["val"]) for r in mutations]
        return tuple(
            dataclasses.replace(r, differentiable=r.input in carried, after_saves=place in self.written_last)
            for r, place in zip(mutations, places, strict=True)
        )

    def positions(self, mutations: tuple[OutputRole, ...]) -> tuple[int, ...]:
        """The item of the forward's tuple that each tangent belongs to; hidden ones come behind the user's."""
        written = {role.input: i for i, role in enumerate(mutations)}
        first = {"computed": len(mutations), "hidden": len(mutations) + self.computed}
        return tuple(written[k] if kind == "input" else first[kind] + k for kind, k in self.seeds)

    def owners(self, mutations: tuple[OutputRole, ...]) -> tuple[int, ...]:
        """What each of ``wanted`` is the gradient of: an input, or ``~i`` for item i of the forward's tuple."""
        positions = self.positions(mutations)
        return tuple(i if i >= 0 else ~positions[~i] for i in self.wanted)

    def _seen_by_the_user(self) -> list[int]:
        """The seeds that are results themselves, or new contents of inputs: what others are only made of is seen by nobody."""
        first = len(self.outputs.bases)
        return [i for i, (kind, k) in enumerate(self.seeds) if kind == "input" or k >= first]

    def _refuse_other_histories(self, recorder: Recorder) -> None:
        """Views are made again by autograd's own, of the whole; what was written apart from it has another history."""
        apart = self._with_own_histories(recorder)
        beside = [
            (torch_compat.storage_key(view), facts(view.__dict__["_node"]).origin)
            for view in self.outputs.ways.windows_beside()
        ]
        if not (apart or beside or recorder.turned):
            return
        written = _written(recorder.graph)
        # a value of the graph that the caller may write has no whole to be made again of
        alone = self.outputs.groups.keys() - self.outputs.bases.keys()
        _refuse_places(apart, written, "a result with a history of its own, over memory of another")
        # of a fake, autograd makes views again of what they were called on, and not of the whole; and as they were made, not turned
        _refuse_places(
            beside,
            written | alone,
            "a view that sees what its own base does not, of memory that is written or may be by the caller",
        )
        _refuse_places(recorder.turned, written, "a write to memory of which a view was turned in place")

    def _with_own_histories(self, recorder: Recorder) -> list[Place]:
        """Results over memory of an input or of another result that are no views of it by autograd, and have a history which neither has."""
        wholes = [n.meta["val"] for n in (*self.outputs.placeholders, *self.outputs.bases.values())]
        wholes = [value for value in wholes if isinstance(value, torch.Tensor)]
        bases = [value._base if value._is_view() else value for value in wholes]
        known = {None, *recorder.histories, *[value.grad_fn for value in wholes]}
        found = []
        for node, value in self.outputs.outputs:
            if not isinstance(value, torch.Tensor) or any(value is whole for whole in wholes):
                continue
            key, origin = torch_compat.storage_key(value), facts(node).origin
            if value.requires_grad and self.outputs.ways.is_outdated(value):
                raise Unsupported(
                    "BZ2030",
                    "one of several views made at once, whose memory was written since",
                    origin=origin,
                )
            if id(value) not in self.outputs.sources and key not in self.outputs.bases:
                continue
            self._refuse_lost_history(value, key, known, origin)
            if value.grad_fn not in known and not any(value._base is base for base in bases):
                found.append((key, origin))
        return found

    def _refuse_lost_history(
        self, value: torch.Tensor, key: int, known: set[Any], origin: Origin | None
    ) -> None:
        """Refuse a result over known memory whose history a view made again would not have."""
        if self.functions and _has_function(value.grad_fn, known):
            raise Unsupported(
                "BZ2028",
                "a result that an autograd function gives, over the memory of an input or of another result",
                origin=origin,
            )
        whole = self.outputs.bases.get(key)
        # a view made without gradients has no `grad_fn`, and requires them as what it is of does
        if whole is not None and value.requires_grad and not whole.meta["val"].requires_grad:
            raise Unsupported(
                "BZ2030", "a result with a history, over memory whose own has none", origin=origin
            )

    def _seeds(self, recorder: Recorder) -> list[Any]:
        """The fakes that gradients come in for."""
        found = []
        for i, node in enumerate(self.outputs.placeholders):
            value = node.meta["val"]
            if isinstance(value, torch.Tensor) and value.grad_fn is not recorder.histories[i]:
                # autograd lets nobody write to a leaf that requires grad
                was_leaf = recorder.histories[i] is None and recorder.leaves[i] is not None
                if was_leaf or not value.requires_grad:
                    raise Unsupported("BZ2009", "aten.detach_.default on an input of the graph")
                self.seeds.append(("input", i))
                found.append(value)
        computed = self.outputs.computed()
        self.computed = len(computed)
        for i, value in enumerate(computed):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                if leads_nowhere(value):
                    self.outputs.astray.add(id(value))
                    continue
                self.seeds.append(("computed", i))
                found.append(value)
        return found

    def _tangents(self, recorder: Recorder, fakes: list[Any]) -> list[Any]:
        """A placeholder behind the inputs for each gradient that comes in, and a fake for those of ``fakes``."""
        anchor = next((n for n in recorder.graph.nodes if n.op != "placeholder"), None)
        for k in range(len(self.seeds)):
            assert anchor is not None, "what is computed has a node"
            with recorder.graph.inserting_before(anchor):
                self.tangents.append(recorder.graph.placeholder(f"tangents_{k + 1}"))
        made = [_tangent(recorder.mode, like) for like in fakes]
        for node, fake in zip(self.tangents, made, strict=False):
            recorder.know(fake, node)
            node.meta["val"] = fake
        return made


def _written(graph: torch.fx.Graph) -> set[int]:
    """The storages that operators of a graph write."""
    return {
        torch_compat.storage_key(target.meta["val"])
        for node in graph.nodes
        if is_write(node)
        for target in written_arguments(node)
    }


def _refuse_places(places: Iterable[Place], refused: Set[int], what: str) -> None:
    """Refuse the first of some places whose memory is among the refused."""
    for key, origin in places:
        if key in refused:
            raise Unsupported("BZ2030", what, origin=origin)


def _has_function(start: Any, known: set[Any]) -> bool:
    """Whether there is a function of the program's among the operations that made a view, back to what is known."""
    return any(is_function(node) for node, _ in behind([(start, 0)], known))


def _refuse_choices_of_functions(fakes: list[Any], known: set[Any], symbolic: bool) -> None:
    """Refuse functions whose backward depends on which gradients come in, which is known at run time only.

    A backward of several results gets zeros, or None, for one that has no part in the loss, and may make of them what it will.
    PyTorch's own make nothing of them, nor do most of the program's. One that gets no gradient at all does not run: see ``missing``, where sizes are known.
    """
    reaching = _reaching(fakes, known, is_function)
    for node, places in reaching.items():
        if node._forward_cls is not Hooked and applied(node._forward_cls).scales:
            continue
        ways = list(places.values())
        if any(way != ways[0] for way in ways) or (symbolic and len(ways[0]) < len(fakes)):
            raise Unsupported(
                "BZ2028",
                f"the backward of {node.name().removesuffix('Backward')}, which may run for some of its gradients only",
                why="which results have a part in the loss is known when the backward runs",
            )


def _reaching(
    fakes: list[Any], known: set[Any], wanted: Callable[[Any], bool]
) -> dict[Any, dict[int, set[int]]]:
    """Of each operation that is wanted, and each of its results, the seeds whose gradients lead there."""
    found: dict[Any, dict[int, set[int]]] = {}
    for seed, fake in enumerate(fakes):
        for node, place in behind([(fake.grad_fn, fake.output_nr)], known):
            if wanted(node):
                found.setdefault(node, {}).setdefault(place, set()).add(seed)
    return found


def _is_group_norm(node: Any) -> bool:
    return type(node) is torch_compat.OF_GROUP_NORM


def _refuse_lone_statistics(fakes: list[Any], known: set[Any]) -> None:
    """Refuse a group norm whose mean and deviation get gradients apart: PyTorch makes none of one alone, and the trace has both."""
    if not any(map(_is_group_norm, leaves_first([fake.grad_fn for fake in fakes]))):
        return
    for places in _reaching(fakes, known, _is_group_norm).values():
        if places.get(1) != places.get(2):
            raise Unsupported(
                "BZ2028",
                "the backward of a group norm's statistics, which runs where gradients of both come in",
                why="which results have a part in the loss is known when the backward runs",
            )


def _refuse_missing_derivatives(starts: list[Any]) -> None:
    """What PyTorch has no derivative of raises in eager's backward, also where nothing that is asked for is behind it."""
    if any(type(node) is torch_compat.WITHOUT_DERIVATIVE for node in leaves_first(starts)):
        raise Unsupported("BZ2021", "the backward of an operation that has none")


def _refuse_hidden_errors(starts: list[Any], leaves: list[Any]) -> None:
    """An operation from which no leaf is reached is asked for its derivative, which it may not have, or may have lost to a write.

    Eager's backward comes there all the same; that of the trace goes to leaves alone, and meets the errors on its way.
    """
    wanted, leading = {id(leaf) for leaf in leaves}, set()
    for node in leaves_first(starts):
        if id(getattr(node, "variable", None)) in wanted or any(n in leading for n, _ in node.next_functions):
            leading.add(node)
        elif not hasattr(node, "variable"):
            try:
                with torch_compat.disable_autocast(), probe.Hearing():
                    torch_compat.differentiate_at_zero(node)
            except OF_FORMULAS as error:
                raise Unsupported("BZ2021", "the backward cannot be traced", why=str(error)) from error


def _tell_read_late(starts: list[Any]) -> None:
    """Inputs that derivatives read as they are by then, though autograd counts no write to them: no value that the forward makes of them stands for that.

    Nor are what the forward makes of them, and copies of them that eager keeps, made again of what they hold by then.
    """
    for node in leaves_first(starts):
        for value in torch_compat.statistics_read_late(node):
            known = value.__dict__.get("_node")
            for source in ancestors([known]) if known is not None else ():
                if source.op == "placeholder":
                    moved = source is known or facts(source).moved_after
                    set_facts(source, written_after=True, moved_after=moved)


def _tell_read_early(graph: torch.fx.Graph, forward: Set[Node]) -> None:
    """What derivatives read as it was, whatever memory the program gives it later: not itself, but views of it or, of an input, what is made of it.

    What a checkpoint reads it reads when it runs again.
    """
    late = [n for n in graph.nodes if n not in forward or facts(n).checkpoint is not None]
    themselves = {read for node in late for read in node.all_input_nodes}
    seen = set(graph.find_nodes(op="placeholder"))
    for node in themselves & forward:
        while is_view(node):
            node = node.all_input_nodes[0]
            seen.add(node)
    for node in seen - themselves:
        set_facts(node, read_early=True)


def _handed_over(
    recorder: Recorder, arrived: dict[int, Node], number: int, tangent: Any, gradient: Any
) -> Any:
    """A hook on a result that other operations take: what they give it goes out, and what comes in for it goes on."""
    arrived[number] = recorder.argument(gradient)
    return tangent


def _tangent(mode: FakeMode, like: Any) -> Any:
    """A fake gradient laid out like what it is of, if that is dense."""
    with torch_compat.outside_modes():
        strides = like.stride() if is_dense(like) else _row_major(like.shape)
        meta = torch.empty_strided(like.shape, strides, dtype=like.dtype, device="meta")
        return torch_compat.assemble_fake(mode.dispatch, meta, torch_compat.device_of_fake(like), False)


def _row_major(sizes: Any) -> list[Any]:
    strides: list[Any] = []
    reach: Any = 1
    for size in reversed(sizes):
        strides.insert(0, reach)
        reach = reach * size
    return strides


def _is_leaf_alone(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf, and no view of what requires grad, which would give it gradients of its own beside."""
    return tensor.is_leaf and not (tensor._base is not None and tensor._base.requires_grad)


def check_as_captured(gm: torch.fx.GraphModule, pairs: list[tuple[Any, Any]], outputs: Outputs) -> None:
    """Refuse where an output requires grad in the trace but did not when captured, or the other way round.

    A view that is made again of the caller's tensor requires grad as it does in eager, whatever either thought; but not by a
    leaf that the program made of a view of it on the way, or by what became one when the view had been made.
    """
    leaves = [
        n.args[0].meta["val"]
        for n in gm.graph.nodes
        if n.target in ("requires_grad_", torch.Tensor.requires_grad_) and isinstance(n.args[0], Node)
    ]
    memory = {torch_compat.storage_key(leaf) for leaf in leaves}
    output: Any = gm.graph.output_node()
    values = output.args[0]
    for captured, (_, traced) in zip(
        values if isinstance(values, (tuple, list)) else (values,), pairs, strict=True
    ):
        if not isinstance(captured, Node) or captured.op == "placeholder":
            continue
        was = captured.meta.get("val")
        if not isinstance(was, torch.Tensor):
            continue
        if outputs.is_remade(traced):
            by_itself = any(was is leaf for leaf in leaves) and _is_leaf_alone(was)
            if was.requires_grad and not by_itself and torch_compat.storage_key(was) in memory:
                raise Unsupported(
                    "BZ2021",
                    "a view of a leaf that the program makes of an input's memory",
                    origin=facts(captured).origin,
                )
            continue
        if was.requires_grad is not traced.requires_grad:
            raise Unsupported(
                "BZ2001",
                f"a result, {captured.name}, whose need of a gradient the trace does not reproduce",
                why=f"it was {spec_of(was)}, and is {spec_of(traced)}",
                origin=facts(captured).origin,
            )
