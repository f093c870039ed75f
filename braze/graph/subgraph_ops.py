"""Control flow as operators of ATen graphs: ``braze::subgraphs(entry, tensors, sizes) -> Tensor[]``.

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

Runner = Callable[..., Sequence[Any]]

_numbers = itertools.count(1)
_entries: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()


class Hole:
    """A place in the arguments: the ``index``-th tensor, size or subgraph."""

    __slots__ = ("index", "kind")

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.index = index


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
        given = {"tensor": tensors, "size": sizes, "module": self.runners}
        with torch.no_grad():
            return list(self.target(*_filled(self.template, given)))

    def compile(self, compiled: Callable[[torch.fx.GraphModule], Runner | None]) -> None:
        """Let subgraphs run as what ``compiled`` makes of them; None where it makes nothing."""
        for i, module in enumerate(self.modules):
            self.runners[i] = compiled(module) or module


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
    return torch.ops.braze.subgraphs.default, torch.ops.braze.random_subgraphs.default


def _run(entry: int, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
    return _entries[entry].run(tensors, sizes)


def _fake(entry: int, tensors: Sequence[torch.Tensor], sizes: Sequence[Any]) -> list[torch.Tensor]:
    return [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        for x in _entries[entry].results
    ]


def entries_of(graph: torch.fx.Graph) -> list[Entry]:
    """The entries that an ATen graph names."""
    names = ("braze::subgraphs", "braze::random_subgraphs")
    return [
        _entries[node.args[0]]  # type: ignore[index]
        for node in graph.nodes
        if node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "name", "") in names
    ]
