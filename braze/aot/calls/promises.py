"""Layouts that a partition promises, held against those of its graph and of what its calls give.

A caller's next write goes where strides, offset and shared memory say: a layout that is not eager's makes wrong values far
from here. ``require_promised`` compares what the roles say with the metadata of the graph, at each compile; ``Promises``, where
stages are verified at level 2, with the tensors of each call.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from braze.aot.calls.rebuild import evaluator
from braze.aot.facts.records import OutputKind, OutputRole, Partition
from braze.aot.facts.roles import results_of
from braze.graph.fakes.fakes import mode_of, text_of
from braze.graph.nodes.specs import TensorSpec
from braze.graph.sizes.shape_guards import relations, settled_sizes, traced_sizes
from braze.support.errors import InternalError
from braze.support.record import record


def require_promised(part: Partition) -> None:
    """Raise InternalError BZ9026 where a result of the forward graph is not laid out as its role says."""
    items: Any = part.forward.graph.output_node().args[0]
    roles = results_of(part)
    for i, (node, role) in enumerate(zip(items, roles, strict=False)):
        spec = role.spec
        val = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if spec is None or not isinstance(val, torch.Tensor):
            continue
        if not (_holds(role, spec, val, NOTHING) or _holds(role, spec, val, _known(val))):
            sizes, strides = tuple(map(text_of, val.shape)), tuple(map(text_of, val.stride()))
            promised, found = _words(spec.sizes, spec.strides, spec.dtype), _words(sizes, strides, val.dtype)
            raise _broken(f"result {i}, {node.name},", promised, found)


@record
class Known:
    """What a trace has found of its size symbols, some of it since a promise was written."""

    #: symbols that are a number or another symbol, and that as Python
    settled: Mapping[str, str] = MappingProxyType({})
    #: the number that each stood for while tracing
    traced: Mapping[str, int | float] = MappingProxyType({})
    #: what the graph asks of those of a call, as Python
    guards: tuple[str, ...] = ()

    def tried(self, *formulas: int | str) -> Iterator[tuple[Any, ...]]:
        """What formulas give for sizes that a call of the graph may have: few give the same for all of them by chance.

        Where something is divided by zero, no call has such sizes.
        """
        settled = tuple(self.settled.values())
        symbols = sorted(set(_SYMBOL.findall(" ".join(map(str, (*formulas, *self.guards, *settled))))))
        given, asked, stand_for = map(evaluator, (formulas, self.guards, settled))
        for sizes in (*_apart(symbols), *self._near(symbols)):
            with contextlib.suppress(ZeroDivisionError):
                sizes.update(zip(self.settled, stand_for(sizes), strict=True))
                if all(asked(sizes)):
                    yield given(sizes)

    def _near(self, symbols: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The sizes of the trace, which keep all guards, those around them, and multiples, which keep guards of what divides what."""
        if not self.traced:
            return
        traced = {name: self.traced.get(name, 2) for name in symbols}
        yield from ({name: size * factor for name, size in traced.items()} for factor in _FACTORS)
        yield from (traced | {name: traced[name] + step} for name in symbols for step in _STEPS)


NOTHING = Known()


def _apart(symbols: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Sizes of which nothing is known."""
    for first, step in _TRIED:
        yield {name: first + i * step for i, name in enumerate(symbols)}


def _holds(role: OutputRole, spec: TensorSpec, val: torch.Tensor, known: Known) -> bool:
    """Whether the metadata of a result of the graph are what its role says."""
    sizes, strides = tuple(map(text_of, val.shape)), tuple(map(text_of, val.stride()))
    if val.dtype is not spec.dtype or not all(_same(a, b, known) for a, b in zip(sizes, spec.sizes)):
        return False
    # new contents of an input are copied into it, whatever their strides
    return role.kind is not OutputKind.VALUE or _alike(sizes, strides, spec.strides, known)


def _known(val: torch.Tensor) -> Known:
    """What the trace of a tensor knows by now."""
    mode = mode_of((val,))
    if mode is None or mode.env is None:
        return NOTHING
    guards = tuple(text for text, _ in relations(mode.env))
    return Known(settled_sizes(mode.env), traced_sizes(mode.env), guards)


class Promises:
    """What each call's results and outputs are to look like, worked out beforehand.

    A size that only the data tell is what the first result says that has it (``told``: symbol -> result and dim); layouts of such
    sizes that no result says are not held against anything.
    """

    def __init__(self, part: Partition) -> None:
        values = [
            (i, role.spec)
            for i, role in enumerate(results_of(part))
            if role.kind is OutputKind.VALUE and role.spec is not None
        ]
        known = set(part.made)
        for given in part.inputs:
            known |= _says(given) if isinstance(given, TensorSpec) else {getattr(given, "name", "")}
        self.told: dict[str, tuple[int, int]] = {}
        for i, spec in values:
            for dim, size in enumerate(spec.sizes):
                if isinstance(size, str) and size.isidentifier() and size not in known:
                    self.told.setdefault(size, (i, dim))
        known |= self.told.keys()
        self.results = [(i, _layout(spec)) for i, spec in values if _says(spec) <= known]
        self.views = [
            (i, role, _layout(role.spec), _start(role, part))
            for i, role in enumerate(part.outputs)
            if role.kind in _VIEWS and role.spec is not None and _says(role.spec) <= known
        ]

    def check(
        self, inputs: Sequence[Any], results: Sequence[Any], outputs: Sequence[Any], names: dict[str, int]
    ) -> None:
        """Raise InternalError BZ9026 where a tensor of a call is laid out otherwise than promised."""
        names = names | {name: results[i].shape[dim] for name, (i, dim) in self.told.items()}
        for i, layout in self.results:
            _compare(f"result {i}", results[i], layout(names))
        for i, role, layout, start in self.views:
            whole = inputs[role.input] if role.kind is OutputKind.ALIAS else results[role.output]
            _compare(f"output {i}", outputs[i], layout(names))
            if not outputs[i].numel():
                continue
            if outputs[i].untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
                raise _broken(f"output {i}", "a view", "memory of its own")
            if start is not None:
                here, there = start(names)
                found = outputs[i].storage_offset() * outputs[i].itemsize
                wanted = whole.storage_offset() * whole.itemsize + here * outputs[i].itemsize
                if found != wanted - there * whole.itemsize:
                    raise _broken(f"output {i}", "a view that begins elsewhere", f"byte {found}")


_VIEWS = (OutputKind.ALIAS, OutputKind.ALIAS_OF_OUTPUT)

_SYMBOL = re.compile(r"\b[a-z]+\d+\b")
#: sizes to try formulas with: the first symbol's, and how much larger each next one's is
_TRIED = ((2, 1), (1009, 7919), (104729, 1299709))
#: what all sizes of the trace are multiplied by, and by how much one of them is larger
_FACTORS = (1, 2, 3, 1009)
_STEPS = tuple(range(1, 17))

#: sizes, strides and type of a tensor
Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def _says(spec: TensorSpec) -> set[str]:
    """The symbols in a layout."""
    texts = [n for n in (*spec.sizes, *spec.strides, spec.offset) if isinstance(n, str)]
    return {name for text in texts for name in _SYMBOL.findall(text)}


def _layout(spec: TensorSpec) -> Callable[[dict[str, int]], Layout]:
    sizes, strides = evaluator(spec.sizes), evaluator(spec.strides)
    return lambda names: (sizes(names), strides(names), spec.dtype)


def _start(role: OutputRole, part: Partition) -> Callable[[dict[str, int]], tuple[int, ...]] | None:
    """Where a view begins, and what it is of; None where its steps count from the start of the memory."""
    assert role.spec is not None
    base = part.inputs[role.input] if role.kind is OutputKind.ALIAS else results_of(part)[role.output].spec
    if role.absolute and role.kind is OutputKind.ALIAS:
        return None
    return evaluator((role.spec.offset, base.offset if isinstance(base, TensorSpec) else 0))


def _compare(what: str, found: torch.Tensor, layout: Layout) -> None:
    sizes, strides, dtype = layout
    if tuple(found.shape) != sizes or found.dtype is not dtype or not _alike(sizes, found.stride(), strides):
        raise _broken(what, _words(sizes, strides, dtype), _words(found.shape, found.stride(), found.dtype))


def _alike(sizes: Sequence[Any], have: Sequence[Any], want: Sequence[Any], known: Known = NOTHING) -> bool:
    """Whether strides are the same where they matter."""
    if 0 in sizes:
        return True
    return all(n == 1 or _same(a, b, known) for n, a, b in zip(sizes, have, want, strict=True))


def _same(a: int | str, b: int | str, known: Known = NOTHING) -> bool:
    """Whether two sizes are the same number in all calls of the graph, in whichever form.

    PyTorch multiplies some formulas out that its other operators do not, and writes a size in one way where a guard says that it is the other, too.
    """
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return a == b
    tried = list(known.tried(a, b))
    return bool(tried) and all(mine == its for mine, its in tried)


def _words(sizes: Sequence[Any], strides: Sequence[Any], dtype: torch.dtype) -> str:
    return f"{dtype} of sizes {tuple(sizes)} and strides {tuple(strides)}"


def _broken(what: str, promised: str, found: str) -> InternalError:
    return InternalError(
        "BZ9026", f"{what} of a graph is not laid out as promised", why=f"not {promised} but {found}"
    )
