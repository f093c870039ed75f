"""A kernel that walks its rows, tile after tile, once a pass.

Values of an earlier pass are computed again from their inputs rather than read back from memory. Of these inputs a part may stay in
registers from one walk to the next (``KernelPlan.held``): those tiles are asked for first, and are on their way while others are walked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from braze.codegen.triton.accumulate import LANES, XR, Accumulator
from braze.codegen.triton.emit import NOTHING, Scope, Value
from braze.codegen.triton.extremes import among
from braze.codegen.triton.writer import Writer
from braze.loops.build import nodes_of
from braze.loops.ir import LoopNest, Node, Op, ReduceKind, Reduction
from braze.loops.rewrite import roots
from braze.schedule.facts.passes import kinds_of, loads_along, read_again
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.schedule.gpu.row_ends import RowEnd, last_apart, row_end
from braze.schedule.gpu.tile_sizes import PLAIN

#: a step of a walk, and the state of its reductions
Taken = tuple[LoopNest, list[Accumulator]]
#: a part of a walk: its steps, the reductions that are under way, whether it is walked back
Part = Callable[[Sequence[LoopNest], list[Taken], bool], None]


class Walker(Writer):
    """Writes the body of a kernel, of one that walks its rows too."""

    def __init__(self, group: Group, plan: KernelPlan) -> None:
        super().__init__(group, plan)
        self.masked = self.emitter.masks.get("r", False)
        self.emitter.shifted = dict(group.shifted)
        if plan.held:  # what all rows share is better kept
            self.emitter.told = XR
        #: what lies around the whole vectors of the row, as the last walk that reduces took it in
        self.edges: list[Accumulator] = []
        self.at_edges = False
        #: elements of a tile that a thread has, where it has one number of these as well, and takes it in with them; else 0
        self.around = plan.lanes_around if plan.walked is not None or plan.lanes_around == LANES else 0
        #: whether it is written where they begin
        self.vectors_found = False
        #: what later walks read again, its values of each tile that stays in registers, and what walks so far have read
        self.again = read_again(group, plan.passes)
        #: (the last two: of the tile that its row fills in part, and of what lies around its vectors)
        self.kept: list[dict[Node, Value]] = [{} for _ in range(plan.held + 2)]
        self.seen: set[Node] = set()
        #: where the program's part of a row ends; whether the tile that a row fills in part is told apart
        self.end = row_end(plan)
        #: (not where sums have masks for their columns: of 832 times 400 rows of 100 numbers of bfloat16 on an H200 44 us, 22 in one loop)
        sums = plan.form is Form.COLUMNS and kinds_of(group.steps) <= PLAIN
        one = sums and any(self.emitter.masks[letter] for letter in self.points)
        self.last_apart = last_apart(plan) and (self.end is not None or (self.masked and not one))

    def of_any_size(self) -> None:
        super().of_any_size()
        self.masked, self.last_apart, self.end = "r" in self.emitter.masks, False, None

    def write(self) -> list[str]:
        """The lines of the body."""
        if self.plan.row is None or self.plan.whole or self.plan.walked is not None:
            return super().write()
        self._points()
        self._row_numbers(self.plan.row)
        if self.end is not None:
            self._row_ends(self.end)
        for number in range(len(self.plan.passes)):
            self._pass(number)
        return self.base.lines

    def _row_ends(self, end: RowEnd) -> None:
        """Where the program's part of a row ends, and the tiles of it that are whole and have no column that ends before them."""
        emit, lines = self.emitter, self.base.lines
        known = dict(emit.symbols)
        if (
            self.plan.form is Form.ROWS
        ):  # the one point as a number, of which the compiler sees what divides it
            self._split("xoffset", "s", self.plan.points[0].axes, self.base, NOTHING)
        begin = emit.text(end.begin)
        emit.symbols = known
        lines.append(f"    left = {end.length} - ({begin})")
        rows, whole = "left", "rnumel"
        if end.step > 1:
            rows = f"(left + {end.step - 1}) // {end.step}"
        if end.spread:
            whole = f"tl.minimum(rnumel, (left + {end.step - 1 - end.spread}) // {end.step})"
        lines.append(f"    rnumel = tl.minimum({self.width}, {rows})")
        lines.append(f"    full = {whole} // RBLOCK * RBLOCK")

    def _pass(self, number: int) -> None:
        """One walk over the row: one that reduces nothing begins at the row's end, which the caches still hold from the walk before."""
        this, before, later = (
            self.plan.passes[number],
            self.plan.passes[:number],
            self.plan.passes[number + 1 :],
        )
        back = not this.reduces and any(each.along for each in before)
        if this.along:
            again = bool(later) and not later[0].reduces
            self._loop(this.along, back, "evict_first" if back else "evict_last" if again else "")
        for step in this.behind:
            self._stores(step, self.base)
        self.emitter.end(self.base)

    def _loop(self, steps: Sequence[LoopNest], back: bool, eviction: str) -> None:
        """One walk over the row: accumulate every step's reductions, store what is stored along the row.

        The tiles that stay in registers come behind the others, and before them where the row is walked back.
        """
        emit, opened = self.emitter, list[Taken]()
        if self.plan.limit is not None:
            self._same_for_all_points()
        parts = self._parts()
        if self.around or any(r.kind is ReduceKind.WELFORD for step in steps for r in step.reductions):
            # lanes begin with their first numbers, or lie about one of them, which a whole tile has
            parts.remove(self._held)
            parts.insert(1, self._held)
        needed = self._needed(steps)
        for part in reversed(parts) if back else parts:
            emit.eviction = eviction
            part(steps, opened, back)
        self.seen.update(needed)
        emit.walked()
        emit.vectors, emit.eviction, emit.masks["r"] = None, "", self.masked
        for axis in self.group.row_axes:
            emit.symbols.pop(axis.symbol)
        for accumulator, edges in zip([a for _, taken in opened for a in taken], self.edges):
            accumulator.edges = edges
        self._results_of_all(opened)
        for step, accumulators in opened:
            self._forget_reduced(self.base)
            emit.reduced = dict(enumerate(self._results(step, accumulators)))
            self._stores(step, self.base)
        emit.end(self.base)

    def _results_of_all(self, opened: Sequence[Taken]) -> None:
        """What is asked of a walk's reductions at once, before each step's."""

    def _parts(self) -> list[Part]:
        """The parts of a walk, in their order."""
        if self.plan.begin is None:
            last = [self._last] if self.last_apart else []
            return [self._ahead, self._tiles, *last, self._held]
        self._vectors()
        between = [] if self.plan.to_its_end else [self._tiles]
        return [self._ahead, self._edges, *between, self._tail, self._held]

    def _results(self, step: LoopNest, accumulators: Sequence[Accumulator]) -> list[Value]:
        """What a walk's reductions of one step give."""
        tellers = [self._teller(a.reduction, step) for a in accumulators]
        found: list[list[Value]] = []
        for accumulator, teller in zip(accumulators, tellers, strict=True):
            found.append([] if teller is not None else accumulator.results(self.emitter, self.base))
        results: list[Value] = []
        for accumulator, teller, own in zip(accumulators, tellers, found, strict=True):
            if teller is not None:
                results.append(found[teller][0])
            elif accumulator.reduction.kind.finds_place and accumulator.lanes > 1:
                self.emitter.masks["r"] = self.masked
                best, begin = own
                results.append(
                    among(self, accumulator.reduction.value, best, begin, accumulator.lanes, self.base)
                )
            else:
                results += own
        return results

    def _tiles(self, steps: Sequence[LoopNest], opened: list[Taken], back: bool) -> None:
        """The tiles of a row that are walked, one after the other."""
        plan, base = self.plan, self.base
        held = plan.held * self._block()
        if plan.begin is None and plan.row is not None and plan.row.extent.value == held:
            return
        self._lies_at("roffset + rbase")
        self.emitter.masks["r"] = self.masked and plan.begin is None and not self.last_apart
        self.emitter.holds = frozenset([self.end.condition] if self.end is not None else [])
        body = Scope([], "        ", outer=base)
        if back:
            whole = plan.begin is not None or self.last_apart
            last = f"{self._full()} - RBLOCK" if whole else self._last_tile()
            body.lines.append(f"        roffset = {last}{f' + {held}' if held else ''} - rstep")
        self.row_scope(body, "roffset + rbase")
        self._body(steps, body, opened, -1)
        # a literal where there is one: the interpreter turns assigned numbers into arrays
        head = self._turns() if any(step.reductions for step in steps) else "range({begin}, {end}, RBLOCK)"
        head = head.format(begin=held, end=self._full())
        base.lines.append(f"    for {'rstep' if back else 'roffset'} in {head}:")
        base.lines.extend(body.lines)
        self.emitter.holds = frozenset()

    def _last(self, steps: Sequence[LoopNest], opened: list[Taken], back: bool) -> None:
        """The tile that a row fills in part, if there is one."""
        full, end = self._full(), self.end
        self.emitter.masks["r"] = True
        # where all columns end at one row, the mask says so
        self.emitter.holds = frozenset([end.condition] if end is not None and not end.spread else [])
        body = Scope([], "        ", outer=self.base)
        self.row_scope(body, "roffset + rbase")
        self._body(steps, body, opened, -1)
        self.emitter.holds = frozenset()
        lines = [re.sub(r"\broffset\b", full, line) for line in body.lines]
        if end is not None:
            self.base.lines += ["    if full < rnumel:", *lines]
        else:
            self.base.lines += [line[4:] for line in lines]

    def _full(self) -> str:
        """Where those tiles of a walk end that have no mask; or all, where each has one."""
        plan = self.plan
        if plan.begin is not None or (self.last_apart and self.end is not None):
            return "full"
        length = plan.row.extent.value if plan.row is not None else None
        if self.last_apart and length is not None:
            return str(length // self._block() * self._block())
        return self._end()

    def _ahead(self, steps: Sequence[LoopNest], opened: list[Taken], back: bool) -> None:
        """The loads of all tiles that are to stay in registers, which are on their way while the others are walked."""
        needed = self._needed(steps)
        again = [n for n in self.again if n in needed and all(n not in kept for kept in self.kept)]
        if not again:
            return
        self._asked_for_all(again)

    def _asked_for_all(self, loads: Sequence[Node]) -> None:
        """Load what is to stay in registers of each tile."""
        tiles = self._every_tile()
        for number, tile in enumerate(tiles):
            begin = len(self.base.lines)
            self._asked_for(loads, number, tile())
            if number > self.plan.held:
                self._small(begin)

    def _every_tile(self) -> list[Callable[[], Scope]]:
        """The tiles of a row that may stay in registers."""
        held: list[Callable[[], Scope]] = [partial(self._held_tile, n) for n in range(self.plan.held)]
        return [*held, self._tail_tile, self._edge_tile] if self.plan.to_its_end else held

    def _needed(self, steps: Sequence[LoopNest]) -> set[Node]:
        """The loads that a walk needs."""
        return loads_along(steps, self.emitter.recomputed)

    def _asked_for(self, again: Sequence[Node], number: int, body: Scope) -> None:
        """Load what is to stay in registers of one tile."""
        for node in again:
            self.kept[number][node] = self.emitter.value(node, body)
        self.emitter.end(body)
        self.base.lines.extend(line[4:] for line in body.lines)

    def _known(self, steps: Sequence[LoopNest], number: int, body: Scope) -> Scope:
        """The scope of a tile, with what stays of it in registers."""
        needed = self._needed(steps)
        for node in [n for n in self.kept[number] if n in needed]:
            body.known[node] = self._kept(node, number, body)
        return body

    def _held(self, steps: Sequence[LoopNest], opened: list[Taken], back: bool) -> None:
        """The tiles of a row that stay in registers from one walk to the next: what is read again is there, as it was read."""
        for number in range(self.plan.held):
            body = self._known(steps, number, self._held_tile(number))
            self._body(steps, body, opened, number, first=not number)
            self.base.lines.extend(line[4:] for line in body.lines)

    def _held_tile(self, number: int) -> Scope:
        place = f"{number * self._block()} + rbase"
        self._lies_at(place)
        self.emitter.masks["r"], self.emitter.eviction = False, "evict_first"
        return self.row_scope(Scope([], "        ", outer=self.base), place)

    def _kept(self, node: Node, number: int, body: Scope) -> Value:
        """A value that stays in registers; where it has been made use of already, as one that nobody knows."""
        kept = self.kept[number][node]
        return self.emitter.assign(f"bz_again({kept.name}, HELD)", XR, body) if node in self.seen else kept

    def _body(
        self, steps: Sequence[LoopNest], body: Scope, opened: list[Taken], number: int, *, first: bool = False
    ) -> None:
        """What is done with one tile of a walk, of those that may stay in registers the one of this ``number``; the accumulators of each step, ``opened`` by the walk's first one."""
        known = iter([a for _, accumulators in opened for a in accumulators])
        taken: list[Taken] = []
        for step in steps:
            if step.reductions:
                found = [
                    self._accumulate(r, body, next(known, None), first, self._teller(r, step) is not None)
                    for r in step.reductions
                ]
                taken.append((step, found))
            else:
                self._stores(step, body)
                for store in step.stores:
                    self.emitter.recomputed[store.buffer, store.index] = store.value
        if not opened:
            opened += taken
        self.emitter.end(body)

    # -- whole vectors ----------------------------------------------------------------------------

    def _vectors(self) -> None:
        """Where a row's whole vectors begin, how many there are, and how many elements the whole tiles of them have."""
        plan, base = self.plan, self.base
        if self.vectors_found:
            return
        self.vectors_found = True
        assert plan.begin is not None
        text = self.emitter.text(plan.begin)
        vector = plan.vector
        base.lines += [
            self._first_vector(),
            f"    head = {self._one_number(f'first - ({text})')}.to(tl.int32)",
            f"    vectors = tl.maximum(rnumel - head, 0) // {vector}",
        ]
        if not plan.to_its_end:
            base.lines.append(f"    full = vectors // (RBLOCK // {vector}) * RBLOCK")

    def _one_number(self, text: str) -> str:
        """A number of the program's row as such, so that a row's elements are no tile of rows; where it has several rows, a number of each."""
        return f"({text})" if any(tile.block > 1 for tile in self.plan.points) else f"tl.sum({text})"

    def _first_vector(self) -> str:
        """The line that says where a row's first whole vector is, from which the compiler sees that it is one."""
        assert self.plan.begin is not None
        vector = self.plan.vector
        return f"    first = (({self.emitter.text(self.plan.begin)}) + {vector - 1}) // {vector} * {vector}"

    def _lies_at(self, text: str) -> None:
        """A tile of a row that is walked along whole vectors lies there, counted from the first of them."""
        plan = self.plan
        if plan.begin is not None and plan.row is not None:
            self.emitter.vectors = plan.begin, plan.row.axes[0].symbol, f"first + ({text})"
            self.emitter.behind = f"{plan.vector} + {text}"

    def _tail(self, steps: Sequence[LoopNest], opened: list[Taken], back: bool) -> None:
        """The last tile of whole vectors."""
        body = self._known(steps, self.plan.held, self._tail_tile())
        self._body(steps, body, opened, self.plan.held)
        self.base.lines.extend(line[4:] for line in body.lines)

    def _tail_tile(self) -> Scope:
        place = f"{self.plan.held * self._block() if self.plan.to_its_end else 'full'} + rbase"
        self._lies_at(place)
        self.emitter.masks["r"] = True
        body = Scope([], "        ", outer=self.base)
        return self.row_scope(body, place, f"({place}) // {self.plan.vector} < vectors")

    def _edges(self, steps: Sequence[LoopNest], opened: list[Taken], back: bool) -> None:
        """What lies before a row's first whole vector and behind its last one: a small tile, whose names are its own."""
        base = self.base
        begin, taken = len(base.lines), list[Taken]()
        body = self._known(steps, self.plan.held + 1, self._edge_tile())
        self.at_edges = True
        self._body(steps, body, taken, self.plan.held + 1)
        self.at_edges = False
        base.lines.extend(line[4:] for line in body.lines)
        self.edges = [a for _, accumulators in taken for a in accumulators]
        for accumulator in self.edges if not self.around else ():
            accumulator.close(base.lines)
        self._small(begin)

    def _edge_tile(self) -> Scope:
        emit, vector, half = self.emitter, self.plan.vector, self._around() // 2
        emit.vectors, emit.eviction, emit.masks["r"] = None, "", True
        index = f"tl.where(rbase < {half}, rbase - head, vectors * {vector} + rbase - {half})"
        inside = f"(rindex < rnumel) & ((rbase >= {half}) | (rbase < head))"
        if self.around:  # those ahead of the vectors and those behind are next to each other
            index = f"tl.where(rbase < head, rbase, rbase + vectors * {vector}) - head"
            inside = f"rbase < rnumel - vectors * {vector}"
        body = Scope(["        rbase = tl.arange(0, RBLOCK)[None, :]"], "        ", outer=self.base)
        return self.row_scope(body, index, inside)

    def _around(self) -> int:
        """Elements of the small tile: one a thread, or as many as may lie around the vectors."""
        return 32 * self.plan.warps if self.around else 2 * max(self.plan.vector, LANES // 2)

    def _small(self, begin: int) -> None:
        """Lines from one on in the small tile's own names."""
        lines = self.base.lines
        lines[begin:] = [self._in_small_names(line) for line in lines[begin:]]

    def _in_small_names(self, line: str) -> str:
        small = {"RBLOCK": str(self._around()), "rindex": "eindex", "rmask": "emask", "rbase": "ebase"}
        return re.sub(
            r"\b(RBLOCK|rindex|rmask|rbase|r\d+)\b", lambda m: small.get(m[0], f"e{m[0][1:]}"), line
        )

    def _last_tile(self) -> str:
        return f"((({self.width}) + RBLOCK - 1) // RBLOCK - 1) * RBLOCK"

    def _turns(self) -> str:
        """The range of a walk that reduces, as the plan wants its turns."""
        plan = self.plan
        options = f", loop_unroll_factor={plan.unrolled}" if plan.unrolled > 1 else ""
        if plan.form is Form.COLUMNS and plan.stages > 1:
            options += f", num_stages={plan.stages}"
        return f"{'tl.' if options else ''}range({{begin}}, {{end}}, RBLOCK{options})"

    def _same_for_all_points(self) -> None:
        """Load before the walk what a program needs one number of, and find out where it ends."""
        own = {axis.symbol for axis in self.plan.outer}
        for node in nodes_of(*(r for step in self.group.steps for r in roots(step))):
            if node.op is Op.LOAD and not node.args and node.attr[1].symbols() <= own:
                self.emitter.value(node, self.base)
        assert self.plan.limit is not None
        self.emitter.value(self.plan.limit, self.base)
        self.emitter.end(self.base)

    def _end(self) -> str:
        """Where a walk ends: with the row, or where the plan knows that nothing more counts."""
        if self.plan.limit is None:
            return self.width
        limit = self.emitter.value(self.plan.limit, self.base).name
        if self.plan.limit.op is not Op.LOAD:  # constants in it make it a tile of one number
            limit = f"tl.max({limit})"
        return f"tl.minimum({limit}, {self.width}).to(tl.int{64 if self.plan.wide else 32})"

    def _block(self) -> int:
        return self.plan.row.block if self.plan.row is not None else 1

    def _teller(self, reduction: Reduction, step: LoopNest) -> int | None:
        """Which reduction of a step finds the place of the extreme that this one asks for, and so tells it."""
        for number, other in enumerate(step.reductions):
            alike = (
                other.kind.extreme is reduction.kind
                and other.value is reduction.value
                and other.kind.finds_place
            )
            if alike and self._lanes(other)[0] > 1:
                return number
        return None

    def _accumulate(
        self, reduction: Reduction, body: Scope, known: Accumulator | None, first: bool, told: bool
    ) -> Accumulator:
        """Take a tile of one reduction in; ``known``: where other tiles of the walk were; ``told``: another one tells its result."""
        if told:
            return known or Accumulator(reduction, "")
        value = self.full(self.emitter.value(reduction.value, body), body)
        accumulator = known
        if accumulator is None:
            lanes, apart = self._lanes(reduction)
            name = f"acc{self.emitter.count}"
            accumulator = Accumulator(
                reduction, name, lanes, apart=apart, edge=self.at_edges, around=self.around
            )
            if self.plan.begin is not None:
                accumulator.length = f"(vectors * {self.plan.vector})"
            self.emitter.count += 1
            if first and self.around and accumulator.begin(value.name, body.lines):
                return accumulator
            accumulator.open(self.base.lines)
        accumulator.add(value.name, body.lines, self.emitter.masks["r"], first=first)
        return accumulator

    def _lanes(self, reduction: Reduction) -> tuple[int, bool]:
        """How many elements of a row one thread has at once, and whether they lie apart: a row that begins anywhere is read one by one."""
        plan, block = self.plan, self._block()
        if self.at_edges and plan.lanes_around:
            return 1, False
        if plan.form is not Form.ROWS or block % LANES:
            return 1, False
        if reduction.kind is ReduceKind.WELFORD and not plan.held:
            return 1, False
        if plan.begin is not None:
            return LANES, False
        loads = [n for n in nodes_of(reduction.value) if n.op is Op.LOAD]
        width = min((self.vector(n) for n in loads), default=LANES)
        if reduction.kind.finds_place:
            return self._lanes_of_places(reduction, loads, width), False
        if 2 * width >= LANES:
            return LANES, False
        return max(1, block // (32 * plan.warps * width)), True

    def _lanes_of_places(self, reduction: Reduction, loads: Sequence[Node], width: int) -> int:
        """Elements that one instruction loads, where what is computed of them can be computed again."""
        drawn = any(n.op is Op.RANDOM for n in nodes_of(reduction.value))
        several = any(tile.block > 1 for tile in self.plan.points)
        # what is stored along the row may lie where it was read
        stored = any(not step.reductions for each in self.plan.passes for step in each.along)
        if not loads or width < LANES or drawn or several or stored or any(n.args for n in loads):
            return 1
        widest = max(n.dtype.itemsize for n in loads)
        return LANES if widest <= 2 else 1  # four at once are no quicker than one by one
