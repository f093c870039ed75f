"""Who reads and writes what: the accesses of each step, and the order they force.

Buffers that may share storage (results of an aliasing extern call) form one *family*; an access
to one member counts as an access to the family.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping

from braze.loops.inputs_written import may_fail_by_data
from braze.loops.ir import (
    Buffer,
    BufferView,
    ExternCall,
    LoopNest,
    LoopProgram,
    Op,
    Step,
    Store,
    StoreMode,
    TemplateCall,
    views_in,
)
from braze.loops.rewrite import attr_exprs, index_exprs, roots, store_roots, walk
from braze.runtime.operators.purity import gives_results, may_draw_by_name
from braze.schedule.facts.records import Group
from braze.support.nested import leaves
from braze.symbolic.expr import Expr, Symbol

#: stands for "anywhere in the buffer"
ANYWHERE = None
#: stands for what is not in a buffer but must happen in order: the random generator, checks, output
ORDER = "<order>"
#: gradients that are made by one loop over operands of one type, and called of several as their kernels refuse these: who asks for
#: two hears of the first
REFUSING = frozenset({"aten.mse_loss_backward.default", "aten.huber_loss_backward.default"})


@dataclasses.dataclass(slots=True)
class Accesses:
    """Indices read and written, by buffer; ``ANYWHERE`` in a set means an index we cannot compare."""

    reads: dict[str, set[Expr | None]] = dataclasses.field(default_factory=lambda: defaultdict(set))
    writes: dict[str, set[Expr | None]] = dataclasses.field(default_factory=lambda: defaultdict(set))

    def merge(self, other: Accesses) -> Accesses:
        out = Accesses()
        for mine, theirs, both in (
            (self.reads, other.reads, out.reads),
            (self.writes, other.writes, out.writes),
        ):
            for name, indices in (*mine.items(), *theirs.items()):
                both[name] |= indices
        return out

    def touched(self) -> set[str]:
        return {*self.reads, *self.writes}


def accesses(step: Step) -> Accesses:
    """What one step reads and writes."""
    if isinstance(step, ExternCall):
        return _of_extern(step)
    if isinstance(step, TemplateCall):
        found = Accesses()
        for view in step.args:
            found.reads[view.buffer].add(ANYWHERE)
        for nest in step.prologue:
            for name in _of_nest(nest).reads:
                found.reads[name].add(ANYWHERE)
        for name in step.inside:
            found.reads.pop(name, None)
        _add_stores(found, step.epilogue)
        for node in walk(*store_roots(step.epilogue)):
            if node.op is Op.LOAD:
                _add_load(found, node.attr, bool(node.args))
        return found
    return _of_nest(step)


def symbol_name(symbol: Symbol) -> str:
    """What stands for a size symbol among the buffers that a step reads or writes."""
    return f"<{symbol}>"


def symbol_accesses(
    step: Step, made: frozenset[Symbol], buffers: Mapping[str, Buffer], touched: Iterable[str]
) -> tuple[set[str], set[str]]:
    """(symbols that a step needs, symbols that it makes known) of those that calls make known."""
    if not made:
        return set(), set()
    own = {m.symbol for m in step.makes} if isinstance(step, ExternCall) else set()
    exprs: list[Expr] = []
    if isinstance(step, ExternCall):
        exprs += exprs_in(step.given)
    elif isinstance(step, TemplateCall):
        exprs += [*exprs_in(step.args), *(a.extent for a in step.axes)]
        exprs += [s.index for s in step.epilogue]
        exprs += [e for n in walk(*store_roots(step.epilogue)) for e in attr_exprs(n.attr)]
    else:
        exprs += [a.extent for a in (*step.axes, *step.reduce_axes)]
        exprs += index_exprs(step)
    for name in touched:
        if name in buffers:
            exprs += [*buffers[name].sizes, *buffers[name].strides]
    needed = frozenset().union(*(e.symbols() for e in exprs)) & made
    return {symbol_name(s) for s in needed - own}, {symbol_name(s) for s in own}


def exprs_in(values: object) -> list[Expr]:
    """Every size in nested tuples of arguments."""
    found: list[Expr] = []
    for leaf in leaves(values):
        if isinstance(leaf, Expr):
            found.append(leaf)
        elif isinstance(leaf, BufferView):
            found += [*leaf.sizes, *leaf.strides, leaf.offset]
    return found


def with_symbols(
    found: Accesses, step: Step, made: frozenset[Symbol], buffers: Mapping[str, Buffer]
) -> Accesses:
    """A step's accesses, with the symbols that calls make known as if they were buffers."""
    reads, writes = symbol_accesses(step, made, buffers, tuple(found.touched()))
    for name in reads:
        found.reads[name].add(ANYWHERE)
    for name in writes:
        found.writes[name].add(ANYWHERE)
    return found


def _of_extern(step: ExternCall) -> Accesses:
    found = Accesses()
    if in_order(step.target):
        found.writes[ORDER].add(ANYWHERE)
    for view in views_in(step.given):
        found.reads[view.buffer].add(ANYWHERE)
    for name in (*step.outputs, *step.mutates):
        if name:
            found.writes[name].add(ANYWHERE)
    return found


def in_order(target: str) -> bool:
    """Whether an operator may draw random numbers, have effects that its results do not show, or refuse its operands as another does."""
    return may_draw_by_name(target) or not gives_results(target) or target in REFUSING


def _of_nest(step: LoopNest) -> Accesses:
    found = Accesses()
    for node in walk(*roots(step)):
        if node.op is Op.LOAD:
            _add_load(found, node.attr, bool(node.args))
    _add_stores(found, step.stores)
    return found


def _add_load(found: Accesses, attr: tuple[str, Expr], indirect: bool) -> None:
    found.reads[attr[0]].add(ANYWHERE if indirect else attr[1])


def _add_stores(found: Accesses, stores: tuple[Store, ...]) -> None:
    for s in stores:
        index = ANYWHERE if s.args or s.mode is not StoreMode.PLAIN else s.index
        found.writes[s.buffer].add(index)
        if s.mode is not StoreMode.PLAIN:
            found.reads[s.buffer].add(ANYWHERE)


def families(program: LoopProgram) -> dict[str, str]:
    """Buffer -> the representative of all buffers that may share its storage."""
    parent: dict[str, str] = {b.name: b.name for b in program.buffers}

    def find(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for name, root in program.again:
        parent[find(name)] = find(root)
    for step in program.steps:
        if isinstance(step, ExternCall) and step.aliases:
            for name in (*filter(None, step.outputs), *step.aliases[1:]):
                parent[find(name)] = find(step.aliases[0])
    return {name: find(name) for name in parent}


def edges(steps: list[Accesses], family: dict[str, str]) -> list[set[int]]:
    """For each step the earlier steps that must come before it (read after write, write after read or write)."""
    before: list[set[int]] = []
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = defaultdict(list)
    for k, step in enumerate(steps):
        needs: set[int] = set()
        for name in step.reads:
            root = family.get(name, name)
            if root in writer:
                needs.add(writer[root])
        for name in step.writes:
            root = family.get(name, name)
            needs.update(readers[root])
            if root in writer:
                needs.add(writer[root])
        for name in step.reads:
            readers[family.get(name, name)].append(k)
        for name in step.writes:
            root = family.get(name, name)
            writer[root] = k
            readers[root] = []
        needs.discard(k)
        before.append(needs)
    return before


def group_accesses(group: Group, made: frozenset[Symbol], buffers: Mapping[str, Buffer] | None) -> Accesses:
    """A group's reads and writes, by name only."""
    if isinstance(group.call, ExternCall):
        return with_symbols(accesses(group.call), group.call, made, buffers or {})
    found = Accesses()
    for name in group.reads:
        found.reads[name].add(ANYWHERE)
    for name in group.writes:
        found.writes[name].add(ANYWHERE)
    if made:
        for step in group.work:
            with_symbols(found, step, made, buffers or {})
    return found


def with_errors_that_may_be(program: LoopProgram) -> LoopProgram:
    """The program that makes for their errors only what may still fail: a look-up whose places are known to exist may not."""
    if not program.for_errors:
        return program
    failing = {name for step in program.steps if may_fail_by_data(step) for name in accesses(step).writes}
    return dataclasses.replace(program, for_errors=tuple(n for n in program.for_errors if n in failing))


def needed_steps(steps: tuple[Step, ...], kept: set[str]) -> list[Step]:
    """The steps that compute something anybody reads; calls that write into buffers always stay."""
    wanted = set(kept)
    out: list[Step] = []
    for step in reversed(steps):
        found = accesses(step)
        effect = isinstance(step, ExternCall) and (
            bool(step.mutates) or not any(step.outputs) or ORDER in found.writes or bool(step.makes)
        )
        if effect or wanted & set(found.writes):
            wanted |= set(found.reads)
            out.append(step)
    return out[::-1]
