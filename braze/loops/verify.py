"""The rules that every LoopProgram obeys, one function each; ``verify`` runs them all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from braze.loops.bounds import Access, open_questions, stores_of
from braze.loops.build import nodes_of
from braze.loops.ir import (
    Buffer,
    BufferKind,
    BufferView,
    DType,
    ExternCall,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    Step,
    StoreMode,
    TemplateCall,
    views_in,
)
from braze.loops.scalars import SCALARS, TESTS
from braze.support.errors import InternalError
from braze.symbolic.expr import Expr, FloorDiv, Integer, Max, Min, Mod, Product, Sum, Symbol

Problems = Iterator[str]


def verify(program: LoopProgram) -> None:
    """Raise InternalError with every broken rule, and the step that breaks it."""
    found = [f"{rule.__name__}: {problem}" for rule in RULES for problem in rule(program)]
    if found:
        raise InternalError(
            "BZ9002", f"loop program {program.name} is not well formed", why="; ".join(found[:5])
        )


def require_fresh_writes(program: LoopProgram) -> None:
    """The one rule that is checked at each compile: raise InternalError BZ9006 where a call writes what others read."""
    found = next(calls_write_what_nobody_read(program), None)
    if found is not None:
        raise InternalError("BZ9006", f"a call of {program.name} writes in place what it must not", why=found)


def buffers_have_one_name(program: LoopProgram) -> Problems:
    """No two buffers share a name; sizes and strides pair up."""
    seen: set[str] = set()
    for b in program.buffers:
        if b.name in seen:
            yield f"two buffers named {b.name}"
        seen.add(b.name)
        if len(b.sizes) != len(b.strides):
            yield f"{b.name} has {len(b.sizes)} sizes and {len(b.strides)} strides"


def reads_follow_writes(program: LoopProgram) -> Problems:
    """A step reads inputs, constants, and what earlier steps wrote; outputs name written buffers."""
    known = {b.name for b in program.buffers}
    written = {b.name for b in program.buffers if b.kind in (BufferKind.INPUT, BufferKind.CONSTANT)}
    for step in program.steps:
        for name in reads_of(step):
            if name not in known:
                yield f"{step.name} reads {name}, which is no buffer"
            elif name not in written:
                yield f"{step.name} reads {name} before it is written"
        for name in writes_of(step):
            if name not in known:
                yield f"{step.name} writes {name}, which is no buffer"
            written.add(name)
    for o in program.outputs:
        if isinstance(o, BufferView) and o.buffer not in written:
            yield f"output {o.buffer} is never written"


def buffers_are_written_once(program: LoopProgram) -> Problems:
    """One step stores a buffer (plainly; parts of it side by side), inputs are written only by calls that say so."""
    kinds = {b.name: b.kind for b in program.buffers}
    seen: set[str] = set()
    for step in program.steps:
        stores = [s for s in stores_of(step) if s.mode is StoreMode.PLAIN]
        for a, b in itertools.combinations(stores, 2):
            if a.buffer == b.buffer and a.index == b.index:
                yield f"{step.name} stores {a.buffer} twice at one place"
        names = list(dict.fromkeys(s.buffer for s in stores))
        names += step.outputs if isinstance(step, ExternCall) else ()
        for name in filter(None, names):
            if name in seen:
                yield f"{step.name} stores {name}, which is stored already"
            if kinds.get(name) in (BufferKind.INPUT, BufferKind.CONSTANT) and name not in program.mutated:
                yield f"{step.name} stores the input {name}"
            seen.add(name)


def calls_write_what_nobody_read(program: LoopProgram) -> Problems:
    """A call that writes to an argument writes a buffer made for it: no input, and nothing that was read before."""
    if not any(isinstance(step, ExternCall) and step.mutates for step in program.steps):
        return
    kinds = {b.name: b.kind for b in program.buffers}
    read: dict[str, str] = {}
    written: dict[str, str] = {}
    for step in program.steps:
        mutates = step.mutates if isinstance(step, ExternCall) else ()
        for name in mutates:
            if kinds.get(name) in (BufferKind.INPUT, BufferKind.CONSTANT) and name not in program.mutated:
                yield f"{step.name} writes to the input {name}"
            if name in written:
                yield f"{step.name} writes to {name}, to which {written[name]} has written"
            elif name in read:
                yield f"{step.name} writes to {name}, which {read[name]} reads before"
            written[name] = step.name
        if isinstance(step, ExternCall):
            seen = [v.buffer for v in views_in(step.given)]
            if any(seen.count(name) > 1 for name in mutates):
                yield f"{step.name} writes to an argument that it is given twice"
        for name in reads_of(step):
            if name not in mutates:
                read.setdefault(name, step.name)


def symbols_are_in_scope(program: LoopProgram) -> Problems:
    """Indices use the nest's axes, size symbols known by then, and `ind<k>` for an argument that exists."""
    sizes = {s.symbol for s in program.sizes}
    for step in program.steps:
        if isinstance(step, ExternCall):
            sizes.update(m.symbol for m in step.makes)
            continue
        axes = {a.symbol for a in step.axes}
        inner = {a.symbol for a in step.reduce_axes} if isinstance(step, LoopNest) else set()
        for a in (*step.axes, *(step.reduce_axes if isinstance(step, LoopNest) else ())):
            for s in a.extent.symbols() - sizes:
                yield f"{step.name}: the extent {a.extent} holds {s}"
        for node in _nodes(step, True):
            for s in _index_symbols(node) - sizes - axes - inner:
                if not _is_argument(s, len(node.args)):
                    yield f"{step.name}: {s} in {node.attr} is not in scope"
        for store in stores_of(step):
            for s in store.index.symbols() - sizes - axes:
                if not _is_argument(s, len(store.args)):
                    yield f"{step.name}: {s} in the store to {store.buffer} is not in scope"
        for node in _nodes(step, False):
            for s in _index_symbols(node) & inner:
                yield f"{step.name}: the reduce axis {s} is used after the reduction"


def accesses_are_in_bounds(program: LoopProgram) -> Problems:
    """An access lies inside its buffer at all sizes that pass the program's checks (loads under a mask may be anywhere)."""
    table = {b.name: b for b in program.buffers}
    for access, question in open_questions(program):
        if isinstance(question, str):
            yield question
        elif question is None:
            yield from _outside_somewhere(access, table[access.buffer])
        elif question not in program.checks:
            yield f"{question.message}, and nothing checks that {question.condition}"


#: points of a loop that are looked at one by one
_FEW = 1 << 16


def _outside_somewhere(access: Access, buffer: Buffer) -> Problems:
    """Look at each point, where the sizes are known and the points are few."""
    extents = [a.extent.value for a in access.axes]
    last = [(n.value or 0) - 1 for n in buffer.sizes]
    steps = [s.value for s in buffer.strides]
    known = access.index.symbols() <= {a.symbol for a in access.axes} and None not in (*extents, *steps)
    if not known or any(n.value is None for n in buffer.sizes) or math.prod(n or 0 for n in extents) > _FEW:
        return
    grid = np.indices([n or 0 for n in extents])
    places = value_of(access.index, {a.symbol: grid[k] for k, a in enumerate(access.axes)})
    if places.size and (
        places.min() < 0 or places.max() > sum(n * (s or 0) for n, s in zip(last, steps, strict=True))
    ):
        yield f"{access.step}: {buffer.name}[{access.index}] reaches {places.min()}..{places.max()}"


def value_of(e: Expr, env: Mapping[Symbol, Any]) -> Any:
    """An index expression over arrays of index values."""
    if isinstance(e, Integer):
        return e.number
    if isinstance(e, Symbol):
        return env[e]
    if isinstance(e, Sum):
        out: Any = e.constant
        for m, k in e.parts:
            out = out + k * value_of(m, env)
        return out
    parts = [value_of(c, env) for c in e.children()]
    if isinstance(e, Product):
        return math.prod(parts[1:], start=parts[0])
    operation = {FloorDiv: np.floor_divide, Mod: np.mod, Max: np.maximum, Min: np.minimum}[type(e)]
    return operation(*parts)


def types_agree(program: LoopProgram) -> Problems:
    """Operands have one type, tests give bools, loads and stores have their buffer's type."""
    table = {b.name: b.dtype.stored for b in program.buffers}
    for step in program.steps:
        if isinstance(step, ExternCall):
            continue
        for store in stores_of(step):
            if table.get(store.buffer, store.value.dtype) is not store.value.dtype:
                yield f"{step.name} stores {store.value.dtype.label} to {store.buffer}"
        for node in (*_nodes(step, True), *_nodes(step, False)):
            problem = _type_problem(node, table)
            if problem:
                yield f"{step.name}: {problem}"


def results_exist(program: LoopProgram) -> Problems:
    """REDUCED names a result of the nest, with its type."""
    for step in program.steps:
        if isinstance(step, ExternCall):
            continue
        types = [DType.F32] * len(step.rights) if isinstance(step, TemplateCall) else []
        if isinstance(step, LoopNest):
            for r in step.reductions:
                types += r.results
                if r.value.dtype is not r.dtype:
                    yield f"{step.name} reduces {r.value.dtype.label} values as {r.dtype.label}"
        for node in _nodes(step, False):
            if node.op is Op.REDUCED and (node.attr >= len(types) or types[node.attr] is not node.dtype):
                yield f"{step.name}: no result {node.attr} of type {node.dtype.label}"


RULES: tuple[Callable[[LoopProgram], Problems], ...] = (
    buffers_have_one_name, reads_follow_writes, buffers_are_written_once, calls_write_what_nobody_read,
    symbols_are_in_scope, accesses_are_in_bounds, types_agree, results_exist,
)  # fmt: skip


# -- what steps read and write


def reads_of(step: Step) -> list[str]:
    """Every buffer that a step reads, each once."""
    names: dict[str, None] = {}
    if isinstance(step, ExternCall):
        names.update(dict.fromkeys(v.buffer for v in views_in(step.given)))
        return list(names)
    if isinstance(step, TemplateCall):
        names.update(dict.fromkeys(v.buffer for v in step.args))
        names.update(dict.fromkeys(n for nest in step.prologue for n in reads_of(nest)))
        names = {n: None for n in names if n not in step.inside}
    for node in (*_nodes(step, True), *_nodes(step, False)):
        if node.op is Op.LOAD:
            names[node.attr[0]] = None
    names.update((s.buffer, None) for s in stores_of(step) if s.mode is not StoreMode.PLAIN)
    return list(names)


def writes_of(step: Step) -> list[str]:
    """Every buffer that a step writes, each once."""
    if isinstance(step, ExternCall):
        return list(dict.fromkeys([*filter(None, step.outputs), *step.mutates]))
    return list(dict.fromkeys(s.buffer for s in stores_of(step)))


def _nodes(step: Step, inside: bool) -> list[Node]:
    """Nodes evaluated inside the reduction, or at the stores."""
    if inside:
        return nodes_of(*(r.value for r in step.reductions)) if isinstance(step, LoopNest) else []
    return nodes_of(*(s.value for s in stores_of(step)), *(a for s in stores_of(step) for a in s.args))


def _index_symbols(node: Node) -> frozenset[Symbol]:
    if node.op is Op.LOAD:
        at: Expr = node.attr[1]
        return at.symbols()
    return node.attr.symbols() if node.op in (Op.INDEX, Op.CHECK_INDEX) else frozenset()


def _is_argument(s: Symbol, count: int) -> bool:
    return s.place is not None and s.place < count


_HALF = (DType.F16, DType.BF16)


def _type_problem(node: Node, table: dict[str, DType]) -> str:
    if not node.dtype.is_computable:
        return f"{node.op.value} on {node.dtype.label}"
    if node.op is Op.LOAD and table.get(node.attr[0], node.dtype) is not node.dtype:
        return f"{node.attr[0]} is loaded as {node.dtype.label}"
    types = {a.dtype for a in node.args}
    row = SCALARS.get(node.op)
    if row is not None and node.op is not Op.RANDOM and len(types) > 1:
        return f"{node.op.value} of {', '.join(a.dtype.label for a in node.args)}"
    if node.op in TESTS:
        return "" if node.dtype is DType.BOOL else f"{node.op.value} gives {node.dtype.label}"
    if node.op in (Op.WHERE, Op.MASKED):
        c, x, y = node.args
        fine = c.dtype is DType.BOOL and x.dtype is y.dtype is node.dtype
        return "" if fine else f"{node.op.value} of {', '.join(a.dtype.label for a in node.args)}"
    if row is not None and row.floats and not node.dtype.is_float:
        return f"{node.op.value} on {node.dtype.label}"
    if row is not None and (row.arity > 1 or row.floats) and node.dtype in _HALF:
        return f"{node.op.value} computes in {node.dtype.label}"
    return ""
