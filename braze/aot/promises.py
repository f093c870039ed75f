"""Layouts that a partition promises, held against those of its graph and of what its calls give.

A caller's next write goes where strides, offset and shared memory say: a layout that is not eager's makes wrong values far
from here. ``require_promised`` compares what the roles say with the metadata of the graph, at each compile; ``Promises``, where
stages are verified at level 2, with the tensors of each call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from braze.aot.rebuild import evaluator
from braze.aot.records import OutputKind, OutputRole, Partition
from braze.aot.roles import results_of
from braze.graph.fakes import mode_of, text_of
from braze.graph.shape_guards import settled_sizes
from braze.graph.specs import TensorSpec
from braze.support.errors import InternalError


def require_promised(part: Partition) -> None:
    """Raise InternalError BZ9026 where a result of the forward graph is not laid out as its role says."""
    items: Any = part.forward.graph.output_node().args[0]
    roles = results_of(part)
    for i, (node, role) in enumerate(zip(items, roles, strict=False)):
        spec = role.spec
        val = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if spec is None or not isinstance(val, torch.Tensor):
            continue
        if not (_holds(role, spec, val, {}) or _holds(role, spec, val, _settled(val))):
            sizes, strides = tuple(map(text_of, val.shape)), tuple(map(text_of, val.stride()))
            promised, found = _words(spec.sizes, spec.strides, spec.dtype), _words(sizes, strides, val.dtype)
            raise _broken(f"result {i}, {node.name},", promised, found)


def _holds(role: OutputRole, spec: TensorSpec, val: torch.Tensor, settled: Mapping[str, str]) -> bool:
    """Whether the metadata of a result of the graph are what its role says."""
    sizes, strides = tuple(map(text_of, val.shape)), tuple(map(text_of, val.stride()))
    if val.dtype is not spec.dtype or not all(_same(a, b, settled) for a, b in zip(sizes, spec.sizes)):
        return False
    # new contents of an input are copied into it, whatever their strides
    return role.kind is not OutputKind.VALUE or _alike(sizes, strides, spec.strides, settled)


def _settled(val: torch.Tensor) -> Mapping[str, str]:
    """What symbols were found to be, some of them since the promise was written."""
    mode = mode_of((val,))
    return settled_sizes(mode.env) if mode is not None and mode.env is not None else {}


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
_NONE: Mapping[str, str] = {}
#: sizes to try formulas with: the first symbol's, and how much larger each next one's is
_TRIED = ((2, 1), (1009, 7919), (104729, 1299709))

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


def _alike(
    sizes: Sequence[Any], have: Sequence[Any], want: Sequence[Any], settled: Mapping[str, str] = _NONE
) -> bool:
    """Whether strides are the same where they matter."""
    if 0 in sizes:
        return True
    return all(n == 1 or _same(a, b, settled) for n, a, b in zip(sizes, have, want, strict=True))


def _same(a: int | str, b: int | str, settled: Mapping[str, str] = _NONE) -> bool:
    """Whether two sizes are the same number, in whichever form: PyTorch multiplies some formulas out that its other operators do not.

    A symbol that was found to be another number since one of them was written (``settled``) is that in both.
    They are tried with sizes that no formula of these few factors gives the same number for by chance.
    """
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return a == b
    symbols = sorted(set(_SYMBOL.findall(" ".join(map(str, (a, b, *settled.values()))))))
    numbers, known = evaluator((a, b)), evaluator(tuple(settled.values()))
    for first, step in _TRIED:
        tried = {name: first + i * step for i, name in enumerate(symbols)}
        mine, its = numbers(tried | dict(zip(settled, known(tried), strict=True)))
        if mine != its:
            return False
    return True


def _words(sizes: Sequence[Any], strides: Sequence[Any], dtype: torch.dtype) -> str:
    return f"{dtype} of sizes {tuple(sizes)} and strides {tuple(strides)}"


def _broken(what: str, promised: str, found: str) -> InternalError:
    return InternalError(
        "BZ9026", f"{what} of a graph is not laid out as promised", why=f"not {promised} but {found}"
    )
