"""Control flow as operators of ATen graphs: ``braze::subgraphs(entry, tensors, sizes) -> Tensor[]``.

Gradients come from ``braze::subgraph_gradients``, which runs what was chosen again, under autograd.

An entry is what a node of a captured graph said: which operator, over which subgraphs, with which arguments; its number stands
in the ATen graph and in the code made of it. Subgraphs run as captured until somebody compiles them.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from braze.graph.calls.control_flow import no_gradient
from braze.graph.private.torch_compat import storage_key
from braze.support.record import record

Runner = Callable[..., Sequence[Any]]

_numbers = itertools.count(1)
_entries: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()


@record
class Hole:
    """A place in the arguments: the ``index``-th tensor, size or subgraph."""

    kind: str
    index: int


class Entry:
    """One node's operator and arguments. Whoever runs code that names its number keeps it alive."""

    def __init__(self, target: Any, args: tuple[Any, ...], results: Sequence[Any]) -> None:
        self.number = next(_numbers)
        self.target = target
        self.tensors: list[torch.Tensor] = []
        self.sizes: list[Any] = []
        self.modules: list[torch.fx.GraphModule] = []
        self.template = self._with_holes(args)
        self.runners: list[Runner] = list(self.modules)
        self.is_compiled = False
        #: sizes in the arguments; those behind them only tell compiled subgraphs of symbols
        self.own = len(self.sizes)
        self.sizes += untold(self.tensors)
        #: the tensors of which gradients may be asked
        self.wanted = [i for i, x in enumerate(self.tensors) if x.requires_grad]
        #: fakes that the results are like
        self.results = tuple(results)
        _entries[self.number] = self

    def _with_holes(self, part: Any) -> Any:
        if isinstance(part, tuple | list):
            return tuple([self._with_holes(p) for p in part])
        for kind, cls, found in self._kinds():
            if isinstance(part, cls):
                found.append(part)
                return Hole(kind, len(found) - 1)
        return part

    def _kinds(self) -> tuple[tuple[str, type, list[Any]], ...]:
        return (
            ("tensor", torch.Tensor, self.tensors),
            ("size", torch.SymInt, self.sizes),
            ("module", torch.fx.GraphModule, self.modules),
        )

    def run(self, tensors: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
        """The results for these arguments."""
        told = sizes[self.own :]
        runners = [
            _telling(run, told) if told and run is not module else run
            for run, module in zip(self.runners, self.modules, strict=True)
        ]
        given = {"tensor": tensors, "size": sizes, "module": runners}
        with torch.no_grad():
            return list(self.target(*_filled(self.template, given)))

    def pull_back(
        self, places: Sequence[int], grads: Sequence[Any], tensors: Sequence[Any], sizes: Sequence[Any]
    ) -> list[Any]:
        """The gradients of the wanted tensors, given those of the results at ``places``: what was chosen runs again, under autograd."""
        values = [x.detach().requires_grad_() if i in self.wanted else x for i, x in enumerate(tensors)]
        given = {"tensor": values, "size": sizes, "module": self.modules}
        with torch.enable_grad():
            results = self.target(*_filled(self.template, given))
        pairs = [
            (results[i], grad) for i, grad in zip(places, grads, strict=True) if results[i].requires_grad
        ]
        wanted = [values[i] for i in self.wanted]
        out, given_grads = [x for x, _ in pairs], [grad for _, grad in pairs]
        found = (
            torch.autograd.grad(out, wanted, given_grads, allow_unused=True)
            if pairs
            else [None] * len(wanted)
        )
        made = [
            no_gradient(x.shape, x.dtype, x.device) if grad is None else grad
            for x, grad in zip(wanted, found, strict=True)
        ]
        return owned(made, (*grads, *tensors))

    def compile(self, compiled: Callable[[torch.fx.GraphModule], Runner | None]) -> None:
        """Let subgraphs run as what ``compiled`` makes of them, once; None where it makes nothing."""
        if self.is_compiled:
            return
        self.is_compiled = True
        for i, module in enumerate(self.modules):
            self.runners[i] = compiled(without_gradients(module, self.sizes[self.own :])) or module


def owned(results: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Dense tensors in memory of their own: an operator's results are nobody else's."""
    taken = {storage_key(x) for x in others}
    made: list[torch.Tensor] = []
    for x in results:
        x = x.contiguous()
        made.append(x.clone() if storage_key(x) in taken else x)
        taken.add(storage_key(made[-1]))
    return made


def untold(tensors: Sequence[torch.Tensor]) -> list[torch.SymInt]:
    """The symbols of sizes and strides that are formulas over them (``s + 3`` of a padded tensor): a subgraph cannot read these from its inputs."""
    extents = [n for x in tensors for n in (*x.shape, *x.stride()) if isinstance(n, torch.SymInt)]
    # not the first size: a loop takes rows, which do not have it
    later: list[Any] = [n for x in tensors for n in x.shape[1:] if isinstance(n, torch.SymInt)]
    read = {n.node.expr for n in later}
    found: dict[Any, torch.SymInt] = {}
    for n in extents:
        if not n.node.expr.is_symbol:
            for symbol in sorted(n.node.expr.free_symbols - read - found.keys(), key=str):
                found[symbol] = n.node.shape_env.create_symintnode(symbol, hint=None)
    return list(found.values())


def _telling(run: Runner, told: Sequence[Any]) -> Runner:
    """A compiled subgraph that is told of symbols behind its own inputs."""
    return lambda *inputs: run(*inputs, *told)


def without_gradients(module: torch.fx.GraphModule, told: Sequence[torch.SymInt]) -> torch.fx.GraphModule:
    """A copy of a subgraph whose values, as noted, want no gradients: entries run below autograd. Behind its inputs it takes the symbols ``told``."""
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    with torch.no_grad():
        for node in module.graph.nodes:
            if told and node.op != "placeholder":
                for i, symbol in enumerate(told):
                    graph.placeholder(f"told_{i}").meta["val"] = symbol
                told = ()
            copied = made[node] = graph.node_copy(node, made.__getitem__)
            if "val" in copied.meta:
                copied.meta["val"] = _detached(copied.meta["val"])
    return torch.fx.GraphModule(module, graph)


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach() if value.requires_grad else value
    if isinstance(value, tuple | list):
        return type(value)([_detached(x) for x in value])
    return value


def _filled(template: Any, given: dict[str, Sequence[Any]]) -> Any:
    if type(template) is Hole:
        return given[template.kind][template.index]
    if type(template) is tuple:
        return tuple([_filled(part, given) for part in template])
    return template


@functools.cache
def operators() -> tuple[Any, Any]:
    """The operator, and the one for subgraphs that draw random numbers; registered when first wanted."""
    schema = "(int entry, Tensor[] tensors, SymInt[] sizes) -> Tensor[]"
    for name, tags in (("subgraphs", ()), ("random_subgraphs", (torch.Tag.nondeterministic_seeded,))):
        torch.library.define(f"braze::{name}", schema, tags=tags)
        torch.library.impl(f"braze::{name}", "CompositeExplicitAutograd")(_run)
        torch.library.register_fake(f"braze::{name}")(_fake)
    torch.library.define(
        "braze::subgraph_gradients",
        "(int entry, int[] places, Tensor[] grads, Tensor[] tensors, SymInt[] sizes) -> Tensor[]",
    )
    torch.library.impl("braze::subgraph_gradients", "CompositeExplicitAutograd")(_pull_back)
    torch.library.register_fake("braze::subgraph_gradients")(_fake_gradients)
    torch.library.register_autograd("braze::subgraphs", _backward, setup_context=_save)
    return torch.ops.braze.subgraphs.default, torch.ops.braze.random_subgraphs.default


def runs_subgraphs(target: Any) -> bool:
    """Whether an operator is one of these, whose subgraphs were traced for operands that lie as they did."""
    known = bool(operators.cache_info().currsize)
    return known and target in (*operators(), torch.ops.braze.subgraph_gradients.default)


def _run(entry: int, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
    return _entries[entry].run(tensors, sizes)


def _fake(entry: int, tensors: Sequence[torch.Tensor], sizes: Sequence[Any]) -> list[torch.Tensor]:
    return [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        for x in _entries[entry].results
    ]


def _pull_back(
    entry: int,
    places: Sequence[int],
    grads: Sequence[torch.Tensor],
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[int],
) -> list[torch.Tensor]:
    return _entries[entry].pull_back(places, grads, tensors, sizes)


def _fake_gradients(
    entry: int, places: Any, grads: Any, tensors: Sequence[torch.Tensor], sizes: Any
) -> list[torch.Tensor]:
    return [
        torch.empty(tensors[i].shape, dtype=tensors[i].dtype, device=tensors[i].device)
        for i in _entries[entry].wanted
    ]


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    # zeros in the place of a gradient that does not come in would be followed through what was chosen, and meet others' signs
    ctx.set_materialize_grads(False)
    ctx.entry, tensors, ctx.sizes = inputs
    ctx.held = _entries[ctx.entry]
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grads: Sequence[Any]) -> Any:
    places = [i for i, grad in enumerate(grads) if grad is not None]
    given = [grads[i] for i in places]
    found = torch.ops.braze.subgraph_gradients(ctx.entry, places, given, list(ctx.saved_tensors), ctx.sizes)
    made: list[Any] = [None] * ctx.count
    for i, grad in zip(ctx.held.wanted, found, strict=True):
        made[i] = grad
    return None, made, [None] * len(ctx.sizes)


def numbers_in(graph: torch.fx.Graph, names: Sequence[str]) -> list[Any]:
    """The first arguments of a graph's calls of operators of these names."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    return [n.args[0] for n in calls if getattr(getattr(n.target, "_schema", None), "name", "") in names]


def entries_of(graph: torch.fx.Graph) -> list[Entry]:
    """The entries that an ATen graph names."""
    names = ("braze::subgraphs", "braze::random_subgraphs", "braze::subgraph_gradients")
    return [_entries[number] for number in numbers_in(graph, names)]
