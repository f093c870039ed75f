"""What each walk over a long row would compute or look up again is made once, by a kernel before.

A row that no program holds is walked for its reductions and then for what follows, and each walk has the row's numbers again from
where they come. That is cheap where they lie side by side and little is computed of them. A number that is looked up or lies across
takes a sector of memory each time, many rows at once leave little of what they read in the cache, and functions take longer than a
copy's write and read. There eager's way is the cheaper one: such numbers are written once, side by side, in the order of memory, and
each walk reads them there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod

from braze.loops import build
from braze.loops.ir import Axis, Buffer, BufferKind, LoopNest, Node, Op, ReduceKind, Store, StoreMode
from braze.loops.rewrite import nest_with_nodes, rewriter, roots
from braze.loops.scalars import COARSE, SCALARS
from braze.loops.simplify import merge_axes
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.passes import Pass, passes_of, writes_what_it_reads
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.forms.split import inlined
from braze.schedule.fusion.canonical import part_of
from braze.schedule.gpu.along_threads import SECTOR
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.schedule.gpu.kernels import limit_of, plan_kernel
from braze.support.record import record
from braze.symbolic.expr import ZERO, Symbol, contiguous_strides, linear, product
from braze.symbolic.guess import likely_size

#: elements of a row whose size each call tells, likely and at least: even the shortest of these are walked
LONG = 8192
#: what an H200 computes in the time of one byte of memory, in additions: in most kernels, and where a few warps walk down columns
WORK, WORK_DOWN = 5.5, 4.5
#: what a random number takes, and at most a function whose cheap form is exact enough, beyond an addition
DRAWN, COARSELY = 25, 5
#: what a reduction does with each number
TAKEN_IN = {ReduceKind.ONLINE_SOFTMAX: 15, ReduceKind.WELFORD: 6}
#: bytes of an H200's cache, and the part of a walk's bytes that a later walk does not find in it where all rows at once fit
CACHE, AGAIN = 50 << 20, 0.5
#: bytes that are in the nearest cache, wherever in them one looks: of a table, or of a row of each program of NEAR_WARPS warps
NEAR, NEAR_WARPS = 64 << 10, 16
#: of the time as it is, at most, that the other way may take
WORTH = 0.9


@record
class _Cost:
    """Of one element of the rows: bytes of memory, and additions."""

    bytes: float = 0.0
    work: float = 0.0

    def __add__(self, other: _Cost) -> _Cost:
        return _Cost(self.bytes + other.bytes, self.work + other.work)

    def time(self, work: float) -> float:
        """In bytes, where so much is computed in the time of one: memory and arithmetic go on beside each other."""
        return max(self.bytes, self.work / work)


class _Numbers:
    """The values of a group's walks: along which axes they differ, and what they cost."""

    def __init__(self, group: Group, plan: KernelPlan, steps: Sequence[LoopNest], cores: int) -> None:
        assert plan.row is not None
        self.plan = plan
        lies = plan.points[-1] if plan.form is Form.COLUMNS else plan.row
        #: the symbol that lies along the threads
        self.along = lies.axes[-1].symbol
        self.rows = frozenset(a.symbol for a in group.row_axes)
        self.points = frozenset(a.symbol for a in group.axes)
        self.written = {s.buffer for step in steps for s in step.stores}
        self._over: dict[Node, frozenset[Symbol]] = {}
        length = product([a.extent for a in group.row_axes])
        rows = product([a.extent for a in group.axes])
        at_once = cores * prod(tile.block for tile in plan.points)
        #: elements of the rows that programs walk at one time
        self.at_once = likely_size(length) * min(likely_size(rows), at_once)
        own = [n for n in build.nodes_of(*(r for step in steps for r in roots(step))) if self._is_read(n)]
        #: whether nothing lies in the order of the threads: then other kernels of the group's read along memory
        self.turned = bool(own) and not any(
            self._sector(n, tiled=False) <= n.dtype.itemsize for n in own if not n.args
        )

    def _is_read(self, node: Node) -> bool:
        return node.op is Op.LOAD and node.attr[0] not in self.written and self.is_of_rows(node)

    def over(self, node: Node) -> frozenset[Symbol]:
        """The symbols that a value depends on."""
        for n in build.nodes_of(node, known=self._over):
            own = n.attr[1] if n.op is Op.LOAD else n.attr if n.op is Op.INDEX else None
            found = frozenset(own.symbols()) if own is not None else frozenset()
            self._over[n] = found.union(*(self._over[a] for a in n.args))
        return self._over[node]

    def is_of_rows(self, node: Node) -> bool:
        """Whether each row has numbers of its own there, which nothing that its kernel makes tells."""
        over = self.over(node)
        if not over & self.rows or (self.points and not over & self.points):
            return False
        below = build.nodes_of(node)
        return not any(n.op is Op.REDUCED or (n.op is Op.LOAD and n.attr[0] in self.written) for n in below)

    def cost(
        self,
        nodes: Collection[Node],
        made: Collection[Node] = (),
        *,
        again: float = 1.0,
        tiled: bool = False,
    ) -> _Cost:
        """What the values ``nodes`` take, where those in ``made`` lie in memory; ``again``: the part of their bytes that are not in the cache;
        ``tiled``: what is read across is read by squares."""
        total, seen = _Cost(), set[Node]()
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in made:
                total += self._read(node.dtype.itemsize, node.dtype.itemsize, again)
            else:
                total += self._own(node, again, tiled)
                stack.extend(node.args)
        return total

    def is_plain(self, node: Node) -> bool:
        """Whether a value lies in memory as a copy of it would."""
        return node.op is Op.LOAD and not node.args and self._sector(node, tiled=False) <= node.dtype.itemsize

    def _is_far(self, load: Node, tiled: bool) -> bool:
        """Whether programs look up in so much memory that hardly two find what they read beside each other."""
        if not any(self.along in self.over(a) for a in load.args):
            return False
        reach = load.dtype.itemsize
        for symbol in load.attr[1].symbols():
            if symbol.place is not None and self.along in self.over(load.args[symbol.place]):
                high = symbol.bounds()[1]
                reach *= NEAR if high is None else high + 1
        plan, beside = self.plan, frozenset(load.attr[1].symbols())
        if plan.form is Form.COLUMNS and beside & self.rows and not tiled:
            return reach > SECTOR * plan.points[-1].block  # a tile looks up a few numbers in each line
        return reach * (NEAR_WARPS / plan.warps if beside & self.points and not tiled else 1) > NEAR

    def _own(self, node: Node, again: float, tiled: bool) -> _Cost:
        """What a value takes beside its operands; nothing where rows share it: then it is in the nearest cache."""
        over = self.over(node)
        if not over & self.rows or (self.points and not over & self.points):
            return _Cost()
        if node.op is Op.LOAD:
            return self._read(self._sector(node, tiled), node.dtype.itemsize, again)
        if node.op is Op.RANDOM:
            return _Cost(0, DRAWN)
        told = SCALARS.get(node.op)
        if told is None:
            return _Cost()
        coarse = self.plan.coarse and node.op in COARSE - {
            Op.ERF
        }  # whose form for half types is no short one
        most = COARSELY if coarse else told.cost
        return _Cost(0, 1 + min(told.cost, most))

    def _read(self, moved: int, itemsize: int, again: float) -> _Cost:
        return _Cost(moved * (again if moved == itemsize else 1), 1)

    def _sector(self, node: Node, tiled: bool) -> int:
        """Bytes that memory gives for one number."""
        itemsize = node.dtype.itemsize
        if self._is_far(node, tiled):
            return max(SECTOR, itemsize)
        if any(self.along in self.over(a) for a in node.args):
            return itemsize
        c = node.attr[1].coefficient(self.along)
        step = None if c is None else abs(likely_size(c))
        if tiled or step == 0:
            return itemsize
        most = max(1, SECTOR // itemsize)
        return itemsize * (most if step is None else min(step, most))


def made_once(
    group: Group, buffers: Mapping[str, Buffer], choices: Choices, cores: int
) -> tuple[list[Group], list[Buffer]]:
    """The group, or a kernel that makes what its walks would each have again and the group that reads it; and the buffers between."""
    plan = plan_kernel(group, dict(buffers)) if _may_be_cut(group) else None
    if plan is None or plan.whole or plan.row is None:
        return [group], []
    steps = inlined(group, buffers)
    passes = passes_of(steps, group.row_axes)
    numbers = _Numbers(group, plan, steps, cores)
    found = _shared(passes, numbers)
    cuts = _best(found, passes, numbers, group, choices) if found else ()
    return _apart(group, steps, cuts, numbers.along) if cuts else ([group], [])


def _may_be_cut(group: Group) -> bool:
    """Whether a group of a GPU has rows that may be walked, and a kernel may stand before it."""
    if group.device == "cpu" or not group.row_axes or group.walked is not None or group.whole:
        return False
    if group.kind not in (GroupKind.LOOPED, GroupKind.PERSISTENT):
        return False
    length = product([a.extent for a in group.row_axes])
    if length.value is None and likely_size(length) <= LONG:
        return False
    return not writes_what_it_reads(group) and limit_of(group) is None


def _walked(walk: Pass) -> list[Node]:
    """The expressions that a walk evaluates along the row."""
    return [r for step in walk.along for r in roots(step)]


def _shared(passes: Sequence[Pass], numbers: _Numbers) -> list[Node]:
    """The largest values of the rows' own numbers that several walks have, each as the narrowest that it is made of."""
    each = [build.nodes_of(*_walked(p), inside_masks=False) for p in passes]
    count: dict[Node, int] = {}
    for nodes in each:
        for node in nodes:
            count[node] = count.get(node, 0) + 1
    shared = {n for n, k in count.items() if k > 1 and numbers.is_of_rows(n)}
    tops: dict[Node, None] = {}
    for walk, nodes in zip(passes, each, strict=True):
        ends = [*_walked(walk), *(a for n in nodes if n not in shared for a in _outside(n))]
        tops.update((_narrowest(n), None) for n in ends if n in shared)
    return [n for n in tops if not numbers.is_plain(n)]


def _outside(node: Node) -> Iterator[Node]:
    """The operands of a value that are computed whether a condition holds or not."""
    yield from (node.args[0], node.args[2]) if node.op is Op.MASKED else node.args


def _narrowest(node: Node) -> Node:
    """What a value is a wider form of."""
    while (
        node.op is Op.CAST
        and node.args[0].dtype.itemsize < node.dtype.itemsize
        and node.args[0].dtype.is_float
    ):
        node = node.args[0]
    return node


def _best(
    found: Sequence[Node], passes: Sequence[Pass], numbers: _Numbers, group: Group, choices: Choices
) -> tuple[Node, ...]:
    """Those of some values that are better made before: one of them, or all; none where that gains too little."""
    elements = likely_size(product([a.extent for a in (*group.axes, *group.row_axes)]))
    now = _time((), passes, numbers)
    tried = [(n,) for n in found] + ([tuple(found)] if len(found) > 1 else [])
    times = {cuts: _time(cuts, passes, numbers) for cuts in tried}
    best = min(times, key=lambda cuts: times[cuts])
    gained = (now - times[best]) * elements
    return best if times[best] <= WORTH * now and gained >= choices.launch_bytes else ()


def _time(cuts: Sequence[Node], passes: Sequence[Pass], numbers: _Numbers) -> float:
    """What a group takes for each element of its rows, with a kernel before that makes some values."""
    total, again = _Cost(), 1.0
    for number, walk in enumerate(passes):
        taken = numbers.cost(_walked(walk), cuts, again=again, tiled=numbers.turned)
        if number == 0 and taken.bytes * numbers.at_once <= CACHE:
            again = AGAIN
        total += taken
        for step in walk.along:
            stored = 0 if step.reductions else sum(s.value.dtype.itemsize for s in step.stores)
            total += _Cost(stored, sum(TAKEN_IN.get(r.kind, 1) for r in step.reductions))
    written = _Cost(sum(n.dtype.itemsize for n in cuts))
    walks = total.time(WORK_DOWN if numbers.plan.form is Form.COLUMNS else WORK)
    return walks + (numbers.cost(cuts, tiled=True) + written).time(WORK)


def _apart(
    group: Group, steps: Sequence[LoopNest], cuts: Sequence[Node], along: Symbol
) -> tuple[list[Group], list[Buffer]]:
    """The kernel that makes some values, the group that reads them, and where they lie: side by side for that group's threads."""
    axes = tuple(sorted((*group.axes, *group.row_axes), key=lambda a: a.symbol is along))
    sizes = tuple(a.extent for a in axes)
    place = linear([a.symbol for a in axes], contiguous_strides(sizes), ZERO)
    made: list[Buffer] = []
    stores: list[Store] = []
    places: dict[Node, Node] = {}
    kept = {
        s.value: s for step in steps if not step.reductions for s in step.stores if _is_whole(s, step, axes)
    }
    for node in cuts:
        store = kept.get(node)
        if store is None:
            name = f"{group.name}_{len(made)}"
            made.append(
                Buffer(name, node.dtype, sizes, contiguous_strides(sizes), group.device, BufferKind.TEMPORARY)
            )
            store = Store(name, place, node)
        stores.append(store)
        places[node] = build.load(store.buffer, node.dtype, store.index)
    rest = _without(steps, stores, rewriter(lambda n: places.get(n, n)))
    ops = tuple(dict.fromkeys(op for step in steps for op in step.ops))
    first = merge_axes(
        LoopNest(f"{group.name}_made", axes, (), (), tuple(stores), group.device, ops, steps[0].origin)
    )
    outside = set(group.writes)
    needed, why = {s.buffer for s in stores}, "made once for all walks"
    before = part_of(group, "made", GroupKind.POINTWISE, (first,), first.axes, (), needed, why)
    return [before, part_of(group, "rows", group.kind, rest, group.axes, group.row_axes, outside, why)], made


def _is_whole(store: Store, step: LoopNest, axes: Sequence[Axis]) -> bool:
    """Whether a store is a plain one at all points of a group's rows."""
    return store.mode is StoreMode.PLAIN and not store.args and {*step.axes} == {*axes}


def _without(
    steps: Sequence[LoopNest], stores: Sequence[Store], replace: Callable[[Node], Node]
) -> tuple[LoopNest, ...]:
    """Steps that do not do some of their stores, with other values in place of some."""
    left = [
        dataclasses.replace(step, stores=tuple(s for s in step.stores if s not in stores)) for step in steps
    ]
    return tuple(nest_with_nodes(step, replace) for step in left if step.stores)
