"""The running state of reductions in a kernel that walks the row: a tile combined lane by lane, then collapsed."""

from __future__ import annotations

from dataclasses import dataclass, field

from braze.codegen.triton.emit import Emitter, Scope, Value
from braze.codegen.triton.ops import TYPES
from braze.loops.dtypes import neutral
from braze.loops.ir import DType, ReduceKind, Reduction

#: elements of a row that one thread has at once, of which an online softmax keeps one maximum and one sum
LANES = 8

X = frozenset("x")
R = frozenset("r")
XR = frozenset("xr")

#: the least finite numbers
LOWEST = {DType.F32: "-3.4028234663852886e+38", DType.F64: "-1.7976931348623157e+308"}


@dataclass(slots=True)
class Accumulator:
    """The running state of one reduction in a looped kernel: a tile combined lane by lane, then collapsed.

    ``rows``: how many rows of the tile it has lanes for. ``lanes``: elements that are taken in together; ``apart``: those that lie a stride
    apart, as a thread has them of a row that it reads one by one, rather than side by side. ``edges``: the state of what lies before and
    behind the whole vectors of the row, which are ``length`` elements; ``edge``: this is that state, ``around``: which threads
    have one number of each, and so many of a tile, so that both are joined before anything passes between them. ``held``: of a row that is all in registers and whose mean is asked for,
    the values of its tiles, and whether they have a mask. ``found``: what its lanes come to, where that has been asked for already.
    """

    reduction: Reduction
    name: str
    lanes: int = 1
    rows: str = "XBLOCK"
    apart: bool = False
    length: str = "rnumel"
    edges: Accumulator | None = None
    edge: bool = False
    around: int = 0
    held: list[tuple[str, bool]] = field(default_factory=list)
    found: str = ""

    def open(self, lines: list[str]) -> None:
        """Declare the state before the loop."""
        kind, dtype = self.reduction.kind, self.reduction.dtype
        shape = f"[{self.rows}, RBLOCK]"
        if kind is ReduceKind.WELFORD and (self.edge or self.around):
            return
        if kind is ReduceKind.WELFORD:
            shape = f"[{self.rows}, RBLOCK // {self.lanes}]" if self.lanes > 1 else shape
            # each lane's first number, the sums of what others lie above it, and of the squares of that
            for part in ("at", "sum", "squares"):
                lines.append(f"    {self.name}_{part} = tl.full({shape}, 0, {TYPES[dtype]})")
        elif kind is ReduceKind.ONLINE_SOFTMAX:
            # finite, so that minus infinity lies infinitely far below it
            shape = f"[XBLOCK, RBLOCK // {self.lanes}]" if self.lanes > 1 else shape
            lines.append(f"    {self.name}_top = tl.full({shape}, {LOWEST[dtype]}, {TYPES[dtype]})")
            lines.append(f"    {self.name}_sum = tl.full({shape}, 0, {TYPES[dtype]})")
        elif kind.finds_place:
            of, places = self.reduction.value.dtype, "rbase"
            if self.lanes > 1:
                shape = f"[{self.rows}, RBLOCK // {self.lanes}]"
                places = f"{self.lanes} * tl.arange(0, RBLOCK // {self.lanes})[None, :]"
            lines.append(f"    {self.name}_v = tl.full({shape}, {identity(kind, of)}, {TYPES[of]})")
            # each lane's first place stands until something is better: its later ones are greater
            lines.append(f"    {self.name}_i = tl.broadcast_to({places}, {shape}).to(tl.int32)")
            lines.append(f"    {self.name}_i = tl.where({self.name}_i < rnumel, {self.name}_i, 2147483647)")
        else:
            kept = DType.I32 if kind in (ReduceKind.ANY, ReduceKind.ALL) else dtype
            lines.append(f"    {self.name} = tl.full({shape}, {identity(kind, dtype)}, {TYPES[kept]})")

    def begin(self, value: str, lines: list[str]) -> bool:
        """Whether a tile that is whole, and the first of all, is the state itself, whose threads then have what they have of it."""
        kind = self.reduction.kind
        if kind not in (ReduceKind.SUM, ReduceKind.PROD, ReduceKind.MAX, ReduceKind.MIN):
            return False
        lines.append(f"        {self.name} = {value}.to({TYPES[self.reduction.dtype]})")
        return True

    def add(self, value: str, lines: list[str], masked: bool, *, first: bool = False) -> None:
        """Take one tile in, inside the loop; ``first``: it is the first of all, and whole."""
        lines += [f"        {line}" for line in self._taken(value, masked, first)]

    def _taken(self, value: str, masked: bool, first: bool) -> list[str]:
        n, kind, few = self.name, self.reduction.kind, self.lanes > 1
        if kind is ReduceKind.WELFORD:
            if self.edge:  # so few that all are kept until the mean is known
                return [f"{n}_few = {value}", f"{n}_inside = rmask"]
            if self.around:
                return self._held_for_its_mean(value, masked)
            return self._spread_of_few(value, masked, first) if few else self._spread(value, masked)
        if kind is ReduceKind.ONLINE_SOFTMAX:
            inside = [f'{n}_new = tl.where(rmask, {value}, float("-inf"))'] if masked else []
            value = f"{n}_new" if masked else value
            return inside + (self._powers_of_few(value) if few else self._powers(value))
        if kind.finds_place:
            return self._extreme_of_few(value, masked) if few else self._extreme(value, masked)
        taken = combine(kind, n, value)
        return [f"{n} = " + (f"tl.where(rmask, {taken}, {n})" if masked else taken)]

    def _held_for_its_mean(self, value: str, masked: bool) -> list[str]:
        """Take in numbers of a row that is all in registers: their sum first, and they stay at hand for how far they lie from its mean."""
        n, first = self.name, not self.held
        self.held.append((value, masked))
        taken = value if first else f"{n} + {value}"
        if not masked:
            return [f"{n} = {taken}"]
        return [f"{n}_within = rmask", f"{n} = tl.where(rmask, {taken}, {'0.0' if first else n})"]

    def _spread(self, value: str, masked: bool) -> list[str]:
        """Take in numbers by how far they lie from their lane's first, which the first tile tells."""
        n, begins = self.name, "tl.full([1, 1], roffset, tl.int32) == 0"
        return [
            f"{n}_at = tl.where({f'({begins}) & rmask' if masked else begins}, {value}, {n}_at)",
            f"{n}_away = {value} - {n}_at",
            *([f"{n}_away = tl.where(rmask, {n}_away, 0.0)"] if masked else []),
            f"{n}_sum = {n}_sum + {n}_away",
            f"{n}_squares = {n}_squares + {n}_away * {n}_away",
        ]

    def _spread_of_few(self, value: str, masked: bool, first: bool) -> list[str]:
        """The same of a few numbers that lie side by side, by how far they lie from the greatest of the lane's first few."""
        n, few = self.name, f"[{self.rows}, RBLOCK // {self.lanes}, {self.lanes}]"
        inside = f"tl.reshape(tl.broadcast_to(rmask, [{self.rows}, RBLOCK]), {few})"
        return [
            *([f"{n}_at = tl.reduce(tl.reshape({value}, {few}), 2, bz_max)"] if first else []),
            f"{n}_away = tl.reshape({value}, {few}) - {n}_at[:, :, None]",
            *([f"{n}_away = tl.where({inside}, {n}_away, 0.0)"] if masked else []),
            f"{n}_sum = {n}_sum + tl.sum({n}_away, 2)",
            f"{n}_squares = {n}_squares + tl.sum({n}_away * {n}_away, 2)",
        ]

    def _powers(self, value: str) -> list[str]:
        """Take in numbers by one exponential each, of the lesser over the greater: its error is small beside the greater one's 1."""
        n = self.name
        return [
            f"{n}_away = {value} - {n}_top",
            f"{n}_part = bz_below(-tl.abs({n}_away))",
            f"{n}_sum = tl.where({n}_away > 0, {n}_sum * {n}_part + 1.0, {n}_sum + {n}_part)",
            f"{n}_top = bz_max({n}_top, {value})",
        ]

    def _powers_of_few(self, value: str) -> list[str]:
        """Take in a few numbers at once: one scaling of the sum for all of them."""
        n, rest = self.name, f"RBLOCK // {self.lanes}"
        shape = f"[XBLOCK, {self.lanes}, {rest}]" if self.apart else f"[XBLOCK, {rest}, {self.lanes}]"
        along, spread = (1, "[:, None, :]") if self.apart else (2, "[:, :, None]")
        return [
            f"{n}_few = tl.reshape({value}, {shape})",
            f"{n}_best = bz_max({n}_top, tl.reduce({n}_few, {along}, bz_max))",
            f"{n}_part = tl.sum(bz_below({n}_few - {n}_best{spread}), {along})",
            f"{n}_sum = {n}_sum * bz_below({n}_top - {n}_best) + {n}_part",
            f"{n}_top = {n}_best",
        ]

    def _extreme(self, value: str, masked: bool) -> list[str]:
        """Take in numbers, each with its place; nothing is better than a nan that came before."""
        n, better = self.name, "<=" if self.reduction.kind is ReduceKind.ARGMAX else ">="
        places = "tl.broadcast_to(rindex, [XBLOCK, RBLOCK]).to(tl.int32)"
        return [
            f"{n}_new = ~({value} {better} {n}_v) & ({n}_v == {n}_v)",
            *([f"{n}_new = {n}_new & rmask"] if masked else []),
            f"{n}_v = tl.where({n}_new, {value}, {n}_v)",
            f"{n}_i = tl.where({n}_new, {places}, {n}_i)",
        ]

    def _extreme_of_few(self, value: str, masked: bool) -> list[str]:
        """Take in a few elements that lie side by side as one; which of them it is, is asked when all are known."""
        n, kind = self.name, self.reduction.kind
        best, better = ("bz_max", "<=") if kind is ReduceKind.ARGMAX else ("bz_min", ">=")
        if masked:
            value = f"tl.where(rmask, {value}, {identity(kind, self.reduction.value.dtype)})"
        rest = f"RBLOCK // {self.lanes}"
        return [
            f"{n}_best = tl.reduce(tl.reshape({value}, [{self.rows}, {rest}, {self.lanes}]), 2, {best})",
            f"{n}_new = ~({n}_best {better} {n}_v) & ({n}_v == {n}_v)",
            f"{n}_v = tl.where({n}_new, {n}_best, {n}_v)",
            f"{n}_i = tl.where({n}_new, roffset + {self.lanes} * tl.arange(0, {rest})[None, :], {n}_i)",
        ]

    def results(self, emit: Emitter, scope: Scope) -> list[Value]:
        """Collapse the state after the loop."""
        n, kind = self.name, self.reduction.kind
        if kind is ReduceKind.WELFORD:
            return self._moments_of_held(emit, scope) if self.around else self._moments(emit, scope)
        if kind is ReduceKind.ONLINE_SOFTMAX:
            return self._maximum_and_powers(emit, scope)
        if kind.finds_place:
            pair = emit.assign(f"tl.reduce(({n}_v, {n}_i), 1, bz_{kind.value})", X, scope)
            if self.lanes > 1:  # the extreme, and where those begin among which it is
                return [emit.assign(f"{pair.name}[{k}][:, None]", X, scope) for k in range(2)]
            return [emit.assign(f"{pair.name}[1][:, None].to(tl.int64)", X, scope)]
        if self.around:
            found = self.found or collapsed(kind, self.lanes_of_threads(), None, "")
            return [emit.assign(number_of_row(emit.assign(found, X, scope).name), X, scope)]
        found = self.found or collapsed(kind, n, 1, "[:, None]")
        return [emit.assign(found if self.edges is None else joined(kind, found, self.edges.name), X, scope)]

    def _maximum_and_powers(self, emit: Emitter, scope: Scope) -> list[Value]:
        """The maximum and the sum of powers below it."""
        n, edges = self.name, self.edges.name if self.edges is not None else ""
        if edges and self.around:
            higher = emit.assign(f"bz_max({n}_top, {edges}_top)", XR, scope).name
            both = f"bz_rescale({n}_sum, {n}_top, {higher}) + bz_rescale({edges}_sum, {edges}_top, {higher})"
            scope.lines += [f"{scope.indent}{n}_sum = {both}", f"{scope.indent}{n}_top = {higher}"]
            edges = ""
        best = emit.assign(f"tl.reduce({n}_top, 1, bz_max)[:, None]", X, scope)
        if edges:
            best = emit.assign(f"bz_max({best.name}, {edges}_top)", X, scope)
        whole = emit.assign(f"tl.sum(bz_rescale({n}_sum, {n}_top, {best.name}), 1)[:, None]", X, scope)
        if edges:
            more = f"bz_rescale({edges}_sum, {edges}_top, {best.name})"
            whole = emit.assign(f"{whole.name} + {more}", X, scope)
        # nothing above minus infinity: no sum; and what is infinite has none
        top = emit.assign(f'tl.where({whole.name} == 0.0, float("-inf"), {best.name})', X, scope)
        infinite = f'tl.abs({top.name}) == float("inf")'
        return [top, emit.assign(f'tl.where({infinite}, float("nan"), {whole.name})', X, scope)]

    def lanes_of_threads(self) -> str:
        """What each thread has of a simple reduction, with what lies around the vectors."""
        kind, n = self.reduction.kind, self.name
        if not self.around or self.edges is None:
            return n
        few = f"tl.reshape({n}, [{self.rows}, RBLOCK // {self.around}, {self.around}])"
        own = {ReduceKind.ANY: f"tl.max({few}, 2)", ReduceKind.ALL: f"tl.min({few}, 2)"}
        return combine(kind, own.get(kind) or collapsed(kind, few, 2, ""), self.edges.name)

    def close(self, lines: list[str]) -> None:
        """One state for all lanes, to be joined with that of other tiles of the row."""
        n, kind = self.name, self.reduction.kind
        if kind is ReduceKind.ONLINE_SOFTMAX:
            lines.append(f"    {n}_best = tl.reduce({n}_top, 1, bz_max)[:, None]")
            lines.append(f"    {n}_sum = tl.sum(bz_rescale({n}_sum, {n}_top, {n}_best), 1)[:, None]")
            lines.append(f"    {n}_top = {n}_best")
        elif kind is not ReduceKind.WELFORD:
            lines.append(f"    {n} = " + collapsed(kind, n, 1, "[:, None]"))

    def _moments_of_held(self, emit: Emitter, scope: Scope) -> list[Value]:
        """Mean and squared deviations of a row that is all in registers, as of one that a tile holds whole."""
        n, edges = self.name, self.edges
        assert edges is not None
        around = f"tl.where({edges.name}_inside, {{}}, 0.0)"

        def of_row(lanes: str, more: str) -> Value:
            few = f"tl.sum(tl.reshape({lanes}, [{self.rows}, RBLOCK // {self.around}, {self.around}]), 2)"
            found = emit.assign(f"tl.sum({few} + {around.format(more)}, None)", X, scope)
            return emit.assign(number_of_row(found.name), X, scope)

        mean = emit.assign(f"bz_mean({of_row(n, f'{edges.name}_few').name}, rnumel)", X, scope)
        squares = ""
        for value, masked in self.held:
            away = emit.assign(f"{value} - {mean.name}", XR, scope).name
            if masked:
                away = emit.assign(f"tl.where({n}_within, {away}, 0.0)", XR, scope).name
            square = f"{away} * {away}"
            squares = emit.assign(f"{squares} + {square}" if squares else square, XR, scope).name
        away = emit.assign(f"{edges.name}_few - {mean.name}", XR, scope).name
        return [mean, of_row(squares, f"{away} * {away}")]

    def _moments(self, emit: Emitter, scope: Scope) -> list[Value]:
        """Mean and squared deviations. A lane's own lie about one of its numbers, so that as few digits cancel as it has numbers."""
        n, of = self.name, TYPES[self.reduction.dtype]
        held = f"((rnumel - rbase + (RBLOCK - 1)) // RBLOCK).to({of})"
        if self.lanes > 1:
            last = f"{self.length} % RBLOCK - {self.lanes} * tl.arange(0, RBLOCK // {self.lanes})[None, :]"
            last = f"tl.minimum(tl.maximum({last}, 0), {self.lanes})"
            held = f"({self.length} // RBLOCK * {self.lanes} + {last}).to({of})"
        edges = self.edges.name if self.edges is not None else ""
        few = f" + tl.sum(tl.where({edges}_inside, {{}}, 0.0), 1)" if edges else ""
        counts = emit.assign(held, R, scope).name
        above = emit.assign(f"{n}_sum / tl.maximum({counts}, 1.0)", XR, scope).name
        total = f"(tl.sum({n}_at * {counts} + {n}_sum, 1){few.format(f'{edges}_few')})[:, None]"
        total = emit.assign(total, X, scope).name
        mean = emit.assign(f"bz_mean({total}, rnumel)", X, scope)
        gap = emit.assign(f"{n}_at + {above} - {mean.name}", XR, scope).name
        own = emit.assign(f"{n}_squares - {n}_sum * {above}", XR, scope).name
        own = emit.assign(f"tl.where({own} < 0, 0.0, {own})", XR, scope).name
        away = f"({edges}_few - {mean.name})"
        spread = f"(tl.sum({own} + {counts} * {gap} * {gap}, 1){few.format(f'{away} * {away}')})[:, None]"
        return [mean, emit.assign(spread, X, scope)]


def number_of_row(name: str) -> str:
    """A number of a program's only row as a tile, of any threads: what it meets stays with those that have it."""
    return f"tl.full([1, 1], {name}, {name}.dtype)"


def collapsed(kind: ReduceKind, state: str, along: int | None, spread: str) -> str:
    """A tile of a simple reduction's lanes as one number for each of the other dimension."""
    text = {
        ReduceKind.SUM: f"tl.sum({state}, {along})",
        ReduceKind.PROD: f"tl.reduce({state}, {along}, bz_prod)",
        ReduceKind.MAX: f"tl.reduce({state}, {along}, bz_max)",
        ReduceKind.MIN: f"tl.reduce({state}, {along}, bz_min)",
        ReduceKind.ANY: f"(tl.max({state}, {along}) != 0)",
        ReduceKind.ALL: f"(tl.min({state}, {along}) != 0)",
    }[kind]
    return text + spread


def joined(kind: ReduceKind, first: str, second: str) -> str:
    """The result of a simple reduction out of those of two parts of a row."""
    text = {ReduceKind.ANY: f"{first} | {second}", ReduceKind.ALL: f"{first} & {second}"}
    return text[kind] if kind in text else combine(kind, f"({first})", f"({second})")


def combine(kind: ReduceKind, state: str, value: str) -> str:
    """The lane-wise step of a simple reduction."""
    return {
        ReduceKind.SUM: f"{state} + {value}",
        ReduceKind.PROD: f"{state} * {value}",
        ReduceKind.MAX: f"bz_max({state}, {value})",
        ReduceKind.MIN: f"bz_min({state}, {value})",
        ReduceKind.ANY: f"{state} | ({value}).to(tl.int32)",
        ReduceKind.ALL: f"{state} & ({value}).to(tl.int32)",
    }[kind]


def identity(kind: ReduceKind, dtype: DType) -> str:
    """The value that leaves a reduction unchanged."""
    value = neutral(kind, dtype)
    return f'float("{value}")' if isinstance(value, float) else str(value)
