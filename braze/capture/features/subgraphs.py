"""Functions that the program hands to PyTorch, as graphs of their own: interpreted under a recorder of their own.

What such a function uses from outside - tensors of the graph around it, parameters, sizes - becomes an input of its graph.
"""

from __future__ import annotations

import contextlib
import operator
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from braze.capture.facts.breaks import HINT_MOVE, BreakSignal, Retry, Stopped
from braze.capture.facts.purity import memory_written
from braze.capture.graph.recorder import Recorder
from braze.capture.outside import changes
from braze.capture.outside.looked_into import fill_arguments
from braze.capture.python.unwinding import resumable_step
from braze.capture.state.trace import GraphState, Recording, Trace
from braze.graph.nodes.captured import Captured
from braze.graph.nodes.facts import facts, set_facts
from braze.graph.private import torch_compat
from braze.graph.private.torch_compat import pytree, storage_key


class Inner(Recorder):
    """The recorder of a function's graph. ``lifted``: what came from outside, in order of first use."""

    def __init__(self, outer: Recording) -> None:
        super().__init__(outer.t, outer.mode, outer)
        self.around = outer
        self.own: list[Any] = []
        self.lifted: list[Any] = []

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is operator.getitem and self.by_index:
            key = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(x, torch.Tensor) or type(x) is int for x in key):
                if any(isinstance(x, torch.Tensor) and not x.dim() for x in key):
                    return self._looked_up(args[0], key)
        return super().call(func, args, kwargs)

    def _looked_up(self, table: Any, key: tuple[Any, ...]) -> Any:
        like = next(x for x in key if isinstance(x, torch.Tensor))
        call = super().call
        places = [x if isinstance(x, torch.Tensor) else call(torch.full_like, (like, x), {}) for x in key]
        return call(torch.ops.aten.index.Tensor, (table, places), {})

    def knows(self, value: Any) -> bool:
        return id(value) in self.nodes or self.around.knows(value)

    def operand(self, value: Any) -> None:
        """An input of the function's own."""
        self.own.append(value)
        self._enter(value, "arg")

    def node_of(self, value: Any) -> torch.fx.Node:
        found = self.nodes.get(id(value))
        if found is not None:
            return found[1]
        return self._lift(value, self.around.node_of(value))

    def placeholder(self, place: Any, fake: Any) -> torch.fx.Node:
        return self._lift(place.value, self.around.placeholder_of(place))

    def _lift(self, value: Any, outer: torch.fx.Node) -> torch.fx.Node:
        if outer.op == "placeholder":
            value = outer.meta["val"]
        found = self.nodes.get(id(value))
        if found is not None:
            return found[1]
        self.lifted.append(value)
        return self._enter(value, outer.name)

    def _enter(self, value: Any, name: str) -> torch.fx.Node:
        first = next(iter(self.graph.nodes), None)
        with self.graph.inserting_before(first) if first is not None else contextlib.nullcontext():
            node = self.graph.create_node("placeholder", name, (), {}, name=name)
        node.meta["val"] = value
        self.nodes[id(value)] = (value, node)
        return node


class Traced:
    """A function's graph, not closed yet: its recorder, and what it gave."""

    def __init__(self, recorder: Inner, result: Any) -> None:
        self.recorder = recorder
        self.result = result
        self.leaves, self.spec = flatten(recorder.t, result)
        self.leaves = [result_of(recorder, x) for x in self.leaves]

    def separate(self) -> None:
        """Copy results that are memory of an input, or of another result."""
        call = self.recorder.call
        inputs = (*self.recorder.own, *self.recorder.lifted)
        taken = {storage_key(x) for x in inputs if isinstance(x, torch.Tensor)}
        for i, leaf in enumerate(self.leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            if storage_key(leaf) in taken:
                self.leaves[i] = call(torch.clone, (leaf,), {})
            taken.add(storage_key(self.leaves[i]))

    def module(self, inputs: Sequence[Any]) -> torch.fx.GraphModule:
        """The closed graph, with these inputs in this order, used or not. It gives a tuple."""
        graph, made = torch.fx.Graph(), {}
        for value in inputs:
            known = self.recorder.nodes.get(id(value))
            node = graph.placeholder(known[1].name if known is not None else f"unused_{len(graph.nodes)}")
            node.meta["val"] = value
            if known is not None:
                made[known[1]] = node
        for node in self.recorder.graph.nodes:
            if node.op != "placeholder":
                made[node] = graph.node_copy(node, made.__getitem__)
                place = facts(node).place
                if place is not None:
                    set_facts(made[node], origin=place[0].origin(place[1]), place=None)
        results = [self.recorder.argument(x) for x in self.leaves]
        output = graph.output(tuple([made[x] if isinstance(x, torch.fx.Node) else x for x in results]))
        output.meta["val"] = tuple(self.leaves)
        return Captured(graph, self.recorder.modules)


def flatten(t: Trace, value: Any) -> tuple[list[Any], Any]:
    """The leaves of a value and its structure; dicts from outside are read whole."""
    fill_arguments(t.outside, (value,))
    return pytree.tree_flatten(value)  # type: ignore[no-any-return]


def result_of(recorder: Recording, value: Any) -> Any:
    """A result, which is an input of the graph too where the function gives one back."""
    if isinstance(value, torch.Tensor):
        return recorder.node_of(value).meta["val"]
    return value


def traced(
    t: Trace, function: Any, args: Sequence[Any], own: Sequence[Any], kwargs: dict[str, Any] | None = None
) -> Traced:
    """Interpret ``function(*args, **kwargs)`` into a graph whose first inputs are ``own``."""
    outer = t.graph.recorder
    inner = Inner(outer)
    for value in own:
        inner.operand(value)
    t.graph.recorder = inner
    try:
        return Traced(inner, t.call(function, tuple(args), kwargs or None))
    finally:
        t.graph.recorder = outer


def union(*parts: Traced) -> list[Any]:
    """What any of these functions uses from outside."""
    found: dict[int, Any] = {}
    for part in parts:
        for value in part.recorder.lifted:
            found.setdefault(id(value), value)
    return list(found.values())


def note(
    graph: GraphState, target: Any, before: Any, modules: dict[str, Any], after: Any, results: Any
) -> None:
    """The node of an operator: a call with what comes before the subgraphs, the subgraphs, and what comes after."""
    recorder = graph.recorder
    held = []
    for stem, module in modules.items():
        name = f"{stem}_{len(recorder.modules)}"
        recorder.modules[name] = module
        node = recorder.graph.create_node("get_attr", name, (), {}, name=name)
        recorder.place(node)
        held.append(node)
    args = (*map(recorder.argument, before), *held, *map(recorder.argument, after))
    node = recorder.add_node("call_function", target, args, {})
    recorder.place(node)
    node.meta["val"] = results
    recorder.calls += 1
    recorder.spread(node, results)


def noted(graph: GraphState, target: Any, modules: dict[str, Any], after: tuple[Any, ...]) -> Any:
    """Run an operator on fakes, and note its node; its results."""
    symbolic = torch_compat.python_dispatcher() if graph.mode.env is not None else contextlib.nullcontext()
    with symbolic:
        results = target(*modules.values(), *after)
    results = results if isinstance(results, torch.Tensor) else tuple(results)
    note(graph, target, (), modules, after, results)
    return results


# -- what such a function may not do


@contextlib.contextmanager
def region(
    t: Trace, what: str, functions: Sequence[Any], pure: bool = True, tensors: bool = True
) -> Iterator[None]:
    """Around the interpretation of functions: whatever cannot be captured in them breaks before the whole call.

    ``pure``: they may not write to objects that they did not make, nor (``tensors``) to such tensors.
    """
    position, written = resumable_step(t.frames), changes.so_far(t)
    before, met = versions(t.graph), len(t.outside.tree.inputs)
    outer, visible = t.graph.recorder, Visible(t, functions)
    parts = len(outer.parts)
    try:
        yield
        if pure:
            if visible.changed() or changes.so_far(t) != written:
                raise BreakSignal("BZ1019", "it writes to objects from outside")
            if tensors and written_since(t, before, met, outer.nodes_of_parts(parts)):
                raise BreakSignal("BZ1019", "it writes to tensors from outside")
    except BreakSignal as signal:
        if not signal.reason.startswith(what):
            signal.reason = f"{what}: {signal.reason}" + (
                f" ({signal.code})" if signal.code != "BZ1019" else ""
            )
            signal.hints = signal.hints or (HINT_MOVE,)
            signal.code = "BZ1019"
        signal.position, signal.skip = position, False
        raise
    except Stopped:
        raise Retry(position) from None
    except Exception as error:
        said = str(error).partition("\nException raised from")[0]
        failed = BreakSignal("BZ1019", f"{what}: {type(error).__name__}: {said}", (HINT_MOVE,))
        failed.position = position
        raise failed from error
    finally:
        t.graph.recorder = outer


def versions(graph: GraphState) -> list[tuple[Any, int]]:
    """How often each tensor known so far has been written."""
    found: list[tuple[Any, int]] = []
    recorder: Recording | None = graph.recorder
    while recorder is not None:
        found += [(x, x._version) for x, _ in recorder.nodes.values() if isinstance(x, torch.Tensor)]
        recorder = recorder.outer
    return found


def written_since(t: Trace, before: list[tuple[Any, int]], met: int, nodes: Iterable[torch.fx.Node]) -> bool:
    """Whether a tensor from outside was written, by one of these nodes; those met meanwhile (after the first ``met``) were fresh."""
    new = [n.value for n in t.outside.tree.inputs[met:] if isinstance(n.value, torch.Tensor)]
    theirs = [*before, *[(x, t.graph.born.get(id(x), 0)) for x in new]]
    if any(x._version != then for x, then in theirs):
        return True
    written = memory_written(nodes)
    return bool(written) and any(storage_key(x) in written for x, _ in theirs)


class Visible:
    """What functions can reach of the objects that the trace has made: their contents before and after must be the same."""

    def __init__(self, t: Trace, values: Sequence[Any]) -> None:
        self.t = t
        self.seen: dict[int, Any] = {}
        self.contents: list[tuple[Any, tuple[int, ...]]] = []
        for value in values:
            self._walk(value, 0)

    def _walk(self, value: Any, depth: int) -> None:
        if depth > 4 or id(value) in self.seen or len(self.seen) > 2000:
            return
        self.seen[id(value)] = value
        parts = self._parts(value)
        if issubclass(type(value), list | dict | set | types.CellType):
            self.contents.append((value, tuple(map(id, parts))))
        for part in parts:
            self._walk(part, depth + 1)

    def _parts(self, value: Any) -> list[Any]:
        if issubclass(type(value), types.FunctionType):
            return [*(value.__closure__ or ()), *(value.__defaults__ or ())]
        if issubclass(type(value), types.MethodType):
            return [value.__self__, value.__func__]
        if issubclass(type(value), types.CellType):
            try:
                return [value.cell_contents]
            except ValueError:
                return []
        if self.t.outside.tree.node_of(value) is not None:
            return []  # outside: writes are in the overlay
        if issubclass(type(value), dict):
            return [*dict.keys(value), *dict.values(value)]
        if issubclass(type(value), list | tuple | set):
            return list(value)
        return []

    def changed(self) -> bool:
        """Whether any container or cell holds other objects than before."""
        return any(tuple(map(id, self._parts(value))) != held for value, held in self.contents)
