"""What somebody else's partition function made of a joint graph: checked, and put into the form that autograd runs.

Nothing is taken on trust: the forward must give what the joint graph gives, the backward must take only what is saved
and the tangents, and give every gradient; a random draw of the forward may not be drawn again. Where saved values are views, or
inputs that the graph writes, the forward and backward are mended rather than refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from braze.aot.cut.min_cut import is_random
from braze.aot.facts.inserted import evaluate
from braze.aot.facts.records import Backward, JointGraph
from braze.aot.facts.roles import placeholders
from braze.aot.facts.views import root_of, sees_memory
from braze.aot.joint.outputs import copied, same_strides
from braze.aot.joint.split_joint import keep_read_inputs, sources_of, spec_of_input, tangents_of
from braze.graph.fakes.fakes import on_fakes, text_of
from braze.graph.nodes.passes import drop_unread
from braze.graph.nodes.printer import describe
from braze.support.errors import UserError
from braze.support.spoken import name_of_callable

Node = torch.fx.Node


def divided(joint: JointGraph, partition_fn: Callable[..., Any]) -> tuple[torch.fx.GraphModule, Backward]:
    """The forward, and the backward with where its inputs come from; a UserError (BZ0041) where the two do not fit."""
    with on_fakes(joint.mode):
        keep_read_inputs(joint.module.graph, joint.written, joint.tangents, joint.mode)
    given = torch.fx.GraphModule(joint.module, copy.deepcopy(joint.module.graph))
    given.meta.update(joint.module.meta)
    primals = [n.meta["val"] for n in placeholders(joint.module) if n not in joint.tangents]
    tangents = [n.meta["val"] for n in joint.tangents]
    answer = partition_fn(given, (primals, tangents), num_fwd_outputs=joint.results)
    with on_fakes(joint.mode):
        return _Division(joint, partition_fn, answer).made()


class _Division:
    """The two graphs of one answer, on their way into a Backward."""

    def __init__(self, joint: JointGraph, partition_fn: Callable[..., Any], answer: Any) -> None:
        self.joint = joint
        self.name = name_of_callable(partition_fn)
        values = _items(joint.module)
        self.results, self.gradients = values[: joint.results], values[joint.results :]
        if not (isinstance(answer, (tuple, list)) and len(answer) == 2) or not all(
            isinstance(part, torch.fx.GraphModule) for part in answer
        ):
            kinds = (
                ", ".join(type(part).__name__ for part in answer)
                if isinstance(answer, (tuple, list))
                else type(answer).__name__
            )
            raise self._error(f"gave {kinds}", "it must give a forward and a backward, two graph modules")
        self.forward, self.backward = answer

    def made(self) -> tuple[torch.fx.GraphModule, Backward]:
        """Everything in order; the checks come before the changes."""
        for module, half in ((self.forward, "forward"), (self.backward, "backward")):
            self._well_formed(module, half)
        self._same_inputs()
        items = _items(self.forward)
        if len(items) < len(self.results):
            missing = self.results[len(items)]
            raise self._error(
                f"returns {len(items)} items from its forward, which has {len(self.results)} before what is saved",
                f"item {len(items)} of the joint graph, {missing.name} ({_describe(missing)}), is missing",
            )
        self._same_values(items[: len(self.results)], self.results, "item {} of its forward")
        gradients = _items(self.backward)
        if len(gradients) != len(self.gradients):
            raise self._error(
                f"returns {len(gradients)} gradients from its backward, of {len(self.gradients)}",
                "the backward gives one gradient for each input that has one, in the order of the joint graph",
            )
        self._same_values(gradients, self.gradients, "gradient {} of its backward")
        self._draws_once()
        saved, tangents = self._matched(items[len(self.results) :])
        return self._joined(items[: len(self.results)], saved, tangents)

    # -- checks ------------------------------------------------------------------------------

    def _well_formed(self, module: torch.fx.GraphModule, half: str) -> None:
        """A graph that can run, each of whose nodes has a fake value; where one has none, it is computed."""
        try:
            module.graph.lint()
            for node in module.graph.nodes:
                if node.op == "call_function" and "val" not in node.meta:
                    evaluate(node, self.joint.mode)
        except (RuntimeError, KeyError, AttributeError, TypeError, ValueError) as error:
            raise self._error(f"gave a {half} that cannot run", f"{type(error).__name__}: {error}") from error
        if not isinstance(module.graph.output_node().args[0], (tuple, list)):
            raise self._error(f"gave a {half} that does not return a tuple", "it must, also of one item")

    def _same_inputs(self) -> None:
        mine = [n for n in placeholders(self.joint.module) if n not in self.joint.tangents]
        theirs = placeholders(self.forward)
        if len(mine) != len(theirs):
            raise self._error(
                f"gave a forward of {len(theirs)} inputs, not {len(mine)}",
                "the forward takes all inputs of the joint graph but the tangents, in order: "
                + ", ".join(n.name for n in mine),
            )
        self._same_values(theirs, mine, "input {} of its forward")

    def _same_values(self, have: Sequence[Any], want: Sequence[Any], what: str) -> None:
        for i, (mine, theirs) in enumerate(zip(want, have, strict=True)):
            if (
                "val" not in getattr(theirs, "meta", {})
                and isinstance(theirs, Node)
                and theirs.op == "placeholder"
            ):
                theirs.meta["val"] = mine.meta["val"]
            if not _alike(mine, theirs):
                raise self._error(
                    f"made {what.format(i)} {_describe(theirs)}",
                    f"it is {_describe(mine)} in the joint graph ({getattr(mine, 'name', mine)})",
                )

    def _draws_once(self) -> None:
        """No draw of the forward in the backward; those that nothing reads are no harm, and go."""
        drawn = {n.name for n in _draws(self.forward)}
        own = {n.name for n in _draws(self.joint.module)} - drawn
        for node in reversed(_draws(self.backward)):
            if node.name in own:
                continue
            if not node.users:
                self.backward.graph.erase_node(node)
                continue
            raise self._error(
                f"draws random numbers, {node.name} ({node.target}), in the backward that the forward draws",
                "they would be others: save them",
            )

    def _matched(self, saved: list[Any]) -> tuple[list[tuple[Node, Node]], list[Node]]:
        """(value of the forward, input of the backward) for what is saved; the backward's tangents in order."""
        for i, value in enumerate(saved):
            if not isinstance(value, Node):
                raise self._error(f"saves {value!r} as item {i}", "only values of the graph can be saved")
        inputs = placeholders(self.backward)
        names = {node.name: node for node in saved}
        tangents = {node.name: node for node in self.joint.tangents}
        if all(n.name in names or n.name in tangents for n in inputs):
            pairs = [(names[n.name], n) for n in inputs if n.name not in tangents]
            own = {n.name: n for n in inputs}
            ends = [own.get(name) or self._unread_tangent(node) for name, node in tangents.items()]
        elif len(inputs) == len(saved) + len(tangents):
            pairs = list(zip(saved, inputs, strict=False))
            ends = inputs[len(saved) :]
        else:
            strange = [n.name for n in inputs if n.name not in names and n.name not in tangents]
            raise self._error(
                f"gave a backward that needs {', '.join(strange)}, which its forward does not save",
                f"saved: {', '.join(names) or 'nothing'}; tangents: {', '.join(tangents)}",
            )
        self._same_values([n for _, n in pairs], [n for n, _ in pairs], "saved input {} of its backward")
        self._same_values(ends, self.joint.tangents, "tangent {} of its backward")
        return pairs, ends

    def _unread_tangent(self, tangent: Node) -> Node:
        graph = self.backward.graph
        with graph.inserting_after(placeholders(self.backward)[-1] if placeholders(self.backward) else None):
            made = graph.placeholder(tangent.name)
        made.meta["val"] = tangent.meta["val"]
        return made

    # -- changes -----------------------------------------------------------------------------

    def _joined(
        self, results: list[Node], pairs: list[tuple[Node, Node]], tangents: list[Node]
    ) -> tuple[torch.fx.GraphModule, Backward]:
        joint, graph = self.joint, self.backward.graph
        output = self.forward.graph.output_node()
        inputs = placeholders(self.forward)
        mine = [n for n in placeholders(joint.module) if n not in joint.tangents]
        written = {inputs[mine.index(n)] for n in joint.written}
        shared = {root_of(n) for n in results} | set(inputs)
        known: dict[Node, Node] = {}
        for value, taken in pairs:
            value, taken = self._by_its_base(value, taken, known)
            if root_of(value) in written or (
                value not in results and value not in inputs and root_of(value) in shared
            ):
                # by the time of the backward the memory may hold something else, and nobody could tell
                value = copied(value, output, joint.mode)
            if taken is not known.setdefault(value, taken):
                taken.replace_all_uses_with(known[value])
                graph.erase_node(taken)
        saved = list(known)
        _put_first(graph, [*known.values(), *tangents])
        sources, extra = sources_of(saved, inputs, results, ())
        output.args = ((*results, *extra),)
        for module in (self.forward, self.backward):
            drop_unread(module.graph)
            module.graph.lint()
            module.recompile()
        depends = tangents_of(joint.module.graph, self.gradients, joint.tangents)
        specs = tuple(spec_of_input(n.meta["val"], joint.mode) for n in placeholders(self.backward))
        backward = Backward(
            self.backward, sources, joint.tangent_of, joint.gradients, depends, specs, joint.results
        )
        return self.forward, backward

    def _by_its_base(self, value: Node, taken: Node, known: dict[Node, Node]) -> tuple[Node, Node]:
        """A saved view as what it is a view of, and the view made again in the backward."""
        steps = []
        while sees_memory(value) and value.all_input_nodes == [value.args[0]]:
            steps.append(value)
            value = value.args[0]  # type: ignore[assignment]
        if not steps:
            return value, taken
        graph = self.backward.graph
        with graph.inserting_before(taken):
            base = known.get(value) or graph.placeholder(f"{value.name}_base")
        base.meta.setdefault("val", value.meta["val"])
        made, after = base, placeholders(self.backward)[-1]
        for step in reversed(steps):
            with graph.inserting_after(after):
                made = after = graph.node_copy(step, lambda n, source=made: source)  # type: ignore[misc]
        taken.replace_all_uses_with(made)
        graph.erase_node(taken)
        return value, base

    def _error(self, what: str, why: str) -> UserError:
        return UserError(
            "BZ0041",
            f"the partition function {self.name} {what}",
            why=why,
            hints=["braze.aot.default_partition and braze.aot.min_cut_partition show what is expected"],
        )


def _items(module: torch.fx.GraphModule) -> list[Any]:
    return list(module.graph.output_node().args[0])  # type: ignore[arg-type]


def _draws(module: torch.fx.GraphModule) -> list[Node]:
    return [n for n in module.graph.nodes if n.op == "call_function" and is_random(n)]


def _put_first(graph: torch.fx.Graph, inputs: list[Node]) -> None:
    """Let the graph's inputs stand in this order."""
    for node in reversed(inputs):
        first = next(iter(graph.nodes))
        if first is not node:
            first.prepend(node)


def _alike(a: Any, b: Any) -> bool:
    """Whether two nodes have values of one kind, shape and layout."""
    if not (isinstance(a, Node) and isinstance(b, Node)):
        return a is b  # None, where there is no gradient
    x, y = a.meta.get("val"), b.meta.get("val")
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
        return type(x) is type(y) and str(x) == str(y)
    if (x.dtype, x.device, x.dim()) != (y.dtype, y.device, y.dim()):
        return False
    return [*map(text_of, x.shape)] == [*map(text_of, y.shape)] and same_strides(x, y)


def _describe(value: Any) -> str:
    return describe(value.meta.get("val")) if isinstance(value, Node) else repr(value)
