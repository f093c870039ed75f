"""Scalar expressions -> Triton lines over tiles.

A tile value depends on some dimensions of the kernel's tile: points ("x", in squares also "y"), the row ("r"), or none. Its
shape follows: with a row ``[XBLOCK, 1]``, ``[1, RBLOCK]``, ``[XBLOCK, RBLOCK]``, in squares ``[YBLOCK, XBLOCK]`` and so on,
else ``[XBLOCK]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from braze.codegen.triton.chances import WORDS, words_below
from braze.codegen.triton.guards import Guard, guarding
from braze.codegen.triton.ops import TYPES, row
from braze.loops.ir import DType, Node, Op
from braze.loops.rewrite import walk
from braze.schedule.gpu.far import multiplies_far
from braze.support.errors import InternalError, Unsupported
from braze.symbolic.divides import multiple
from braze.symbolic.expr import ZERO, Expr, FloorDiv, Integer, Max, Min, Mod, Product, Sum, Symbol, indirect

Deps = frozenset[str]
NOTHING: Deps = frozenset()
EMPTY: Mapping[str, Value] = {}
#: what floats become before they are narrow integers: the low bits of that, as in PyTorch, where the conversion by itself gives the nearest that there is
THROUGH = {DType.U8: "tl.int64", DType.I8: "tl.int32", DType.I16: "tl.int32"}
#: what is drawn where a random number's word is asked for
WORD = "word"


@dataclass(slots=True)
class Value:
    """A Triton variable (or literal) and the axes its tile spans."""

    name: str
    deps: Deps


@dataclass(slots=True)
class Along:
    """The tile's last dimension: the number of its points, how many one program takes, and the text of what their numbers are divided by a whole number ``{n}``,
    one for each so many of them."""

    number: Expr
    block: int
    parts: str


@dataclass(slots=True)
class RowsTogether:
    """Rows that lie one behind the other in memory: the ``number`` of an element in all of them, how ``long`` each is, the texts of where the program's ``begin`` and
    of the elements that are ``left`` from there on, and how many places the block of them has."""

    number: Expr
    long: int
    begin: str
    left: str
    block: int


@dataclass(slots=True)
class Scope:
    """Lines at one nesting level, with what is already computed there."""

    lines: list[str]
    indent: str
    known: dict[Node, Value] = field(default_factory=dict)
    #: what is computed only where a condition holds, by the condition's text
    guarded: dict[tuple[Node, str], Value] = field(default_factory=dict)
    stored: dict[tuple[str, Expr], Value] = field(default_factory=dict)
    outer: Scope | None = None

    def outward(self) -> Iterator[Scope]:
        """This scope and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def find(self, node: Node) -> Value | None:
        """The value of a node computed here or further out."""
        return next((scope.known[node] for scope in self.outward() if node in scope.known), None)

    def find_stored(self, key: tuple[str, Expr]) -> Value | None:
        """What this kernel wrote to a buffer at an index, if it is still in a variable."""
        return next((scope.stored[key] for scope in self.outward() if key in scope.stored), None)


class Emitter:
    """Writes expressions of one kernel. The kernel's plan says what axes and buffers mean."""

    def __init__(self, symbols: dict[Symbol, Value], pointers: dict[str, str], dims: tuple[str, ...]) -> None:
        self.symbols = symbols
        self.pointers = pointers
        self.dims = dims
        #: dimension -> whether a tile may reach past its end
        self.masks: dict[str, bool] = dict.fromkeys(dims, True)
        self.recomputed: dict[tuple[str, Expr], Node] = {}
        self.reduced: dict[int, Value] = {}
        self.count = 0
        #: whether a value is read from memory (:meth:`_reads`)
        self.reads: dict[Node, bool] = {}
        self.coarse = False
        #: the kernel's sizes, where places have 64 bits: what these come to when they are multiplied may need them, too
        self.far: frozenset[Symbol] = frozenset()
        self.last: Along | None = None
        #: elements of it that lie side by side in one thread: four, or eight
        self.beside = 4
        self.together: RowsTogether | None = None
        #: in a walk of whole vectors: where a row begins, the row's symbol, and the text of that place and the row's number
        self.vectors: tuple[Expr, Symbol, str] | None = None
        #: copies of what rows share, one for each place in a vector where a row may begin: elements from one to the next, and the place of the vectors in them
        self.shifted: Mapping[str, int] = {}
        self.behind = ""
        #: what the caches are told of values along the row: whether somebody reads them again
        self.eviction = ""
        #: the dimensions of values that they are told of
        self.told: Deps = frozenset("r")
        #: indices that the kernel asserts to exist, with what it says of one that does not (``asserts.py``)
        self.asserted: Mapping[Node, str] = {}
        #: conditions that hold of all that is being written
        self.holds: frozenset[Node] = frozenset()
        #: the lines that assert, each of which is written behind the accesses of its scope: threads wait for each other there
        self.asserts: list[str] = []
        #: those of which all points have been asserted once the walk that is being written is done
        self.once: set[Node] = set()

    # -- nodes ------------------------------------------------------------------------------------

    def value(self, node: Node, scope: Scope, guard: Guard | None = None) -> Value:
        """The variable that holds ``node``; ``guard`` is an extra load mask (inside MASKED)."""
        if guard is not None and not self._reads(node):
            guard = None
        found = scope.find(node)
        if found is None and guard is not None:
            found = scope.guarded.get((node, guard.name))
        if found is None:
            found = self._emit(node, scope, guard)
            if guard is None:
                scope.known[node] = found
            else:
                scope.guarded[node, guard.name] = found
        return found

    def _emit(self, node: Node, scope: Scope, guard: Guard | None) -> Value:
        match node.op:
            case Op.CONST:
                return Value(self.literal(node.attr, node.dtype), NOTHING)
            case Op.LOAD:
                return self._load(node, scope, guard)
            case Op.INDEX:
                text, deps = self.index(node.attr)
                text = f"({text}).to({TYPES[node.dtype]})" if deps else self._scalar(text, node.dtype)
                return self.assign(text, deps, scope)
            case Op.REDUCED:
                return self.reduced[node.attr]
            case Op.MASKED:
                return self._masked(node, scope, guard)
            case Op.CHECK_INDEX:
                return self._clamped(node, scope, guard)
            case Op.CAST:
                return self._cast(node, scope, guard)
            case Op.BITCAST:
                inner = self.value(node.args[0], scope, guard)
                return self.assign(f"{inner.name}.to({TYPES[node.dtype]}, bitcast=True)", inner.deps, scope)
        if node.op is Op.RANDOM:
            return self._random(node, scope, guard)
        if node.op is Op.LT and (chance := self._chance(node, scope, guard)) is not None:
            return chance
        args = [self.value(a, scope, guard) for a in node.args]
        operand = node.args[-1].dtype
        deps = NOTHING.union(*(a.deps for a in args))
        # what is one number a row costs nothing
        coarse = self.coarse and ("r" in deps or "r" not in self.dims)
        if node.op is Op.DIV and args[1].deps == deps:
            coarse = False
        if node.op is Op.DIV and _has_exact_reciprocal(node.args[1]):
            return self.assign(
                f"{args[0].name} * {self.literal(1.0 / node.args[1].attr, operand)}", deps, scope
            )
        template = row(node.op, operand, coarse)
        if template is None:
            raise Unsupported("BZ5010", f"Triton has no {node.op.value} on {operand.label}")
        text = template.format(
            **dict(zip("abc", (a.name for a in args), strict=False)),
            type=TYPES[node.dtype],
            bits=8 * node.dtype.itemsize,
        )
        return self.assign(text, deps, scope)

    def _random(self, node: Node, scope: Scope, guard: Guard | None) -> Value:
        if node.attr == "uniform":
            word = self._word(node, scope, guard)
            return self.assign(f"bz_uniform({word.name})", word.deps, scope)
        seed, place = (self.value(a, scope, guard) for a in node.args)
        draw = "bz_word" if node.attr == WORD else "tl.randn"
        return self.assign(f"{draw}({seed.name}, {place.name})", seed.deps | place.deps, scope)

    def _chance(self, node: Node, scope: Scope, guard: Guard | None) -> Value | None:
        """Whether a uniform number is less than one that is known, by its word; None for other comparisons."""
        number, limit = node.args
        if number.op is not Op.RANDOM or number.attr != "uniform" or limit.op is not Op.CONST:
            return None
        few = words_below(limit.attr)
        if few in (0, WORDS):
            return None
        word = self._word(number, scope, guard)
        return self.assign(f"bz_is_among({word.name}, {few - WORDS}, {2 * few - WORDS})", word.deps, scope)

    def _word(self, node: Node, scope: Scope, guard: Guard | None) -> Value:
        """The word of 32 bits that a uniform number is made of."""
        word = Node(Op.RANDOM, DType.I32, node.args, WORD)
        if scope.find(word) is None and (words := self._words(word, scope)) is not None:
            scope.known[word] = words
        return self.value(word, scope, guard)

    def _words(self, node: Node, scope: Scope) -> Value | None:
        """Words four from one call, where the tile's last dimension runs over whole fours of places."""
        place, last = node.args[1], self.last
        if place.op is not Op.INDEX or last is None:
            return None
        rest = place.attr - last.number
        fits = [n for n in (self.beside, 4) if not last.block % n and multiple(rest, n)]
        if not fits or rest.symbols() & last.number.symbols():
            return None
        seed = self.value(node.args[0], scope)
        text, deps = self.index(rest)
        deps = deps | {self.dims[-1]}
        n = fits[0]
        parts = last.parts.format(n=n)
        parts = f"((({text}) >> {n.bit_length() - 1}) + {parts})" if rest is not ZERO else parts
        return self.assign(f"bz_{n}_words({seed.name}, {parts}, {self.shape(deps)})", deps | seed.deps, scope)

    def _scalar(self, text: str, dtype: DType) -> str:
        """A tile of one number."""
        return f"tl.full({self.shape(NOTHING)}, {text}, {TYPES[dtype]})"

    def _reads(self, node: Node) -> bool:
        """Whether a value is read, or asserts: what is neither may be computed where it is not asked for."""
        found = self.reads.get(node)
        if found is None:
            found = node.op in (Op.LOAD, Op.CHECK_INDEX) or any(self._reads(a) for a in node.args)
            self.reads[node] = found
        return found

    def _masked(self, node: Node, scope: Scope, guard: Guard | None) -> Value:
        cond, body, other = node.args
        decided = True if cond in self.holds else guard.decided(cond) if guard is not None else None
        if decided is not None:
            return self.value(body if decided else other, scope, guard)
        test = self.value(cond, scope, guard)
        if not test.deps:  # a mask is a tile
            tile = f"tl.full({self.shape(NOTHING)}, 0, tl.int32)"
            test = self.assign(f"{tile} != {test.name}.to(tl.int32)", NOTHING, scope)
        here = guarding(cond, test.name, test.deps)
        inner = self.value(body, scope, here.within(guard) if guard is not None else here)
        rest = self.value(other, scope, guard)
        deps = test.deps | inner.deps | rest.deps
        return self.assign(f"tl.where({test.name}, {inner.name}, {rest.name})", deps, scope)

    def _clamped(self, node: Node, scope: Scope, guard: Guard | None) -> Value:
        """An index kept inside its range, so that nothing is read elsewhere before the kernel stops."""
        inner = self.value(node.args[0], scope, guard)
        limit = self.text(node.attr)
        if node in self.asserted:
            exists = self.assign(f"({inner.name} >= 0) & ({inner.name} < {limit})", inner.deps, scope)
            self._assert(node, exists, scope, guard)
        return self.assign(f"tl.minimum(tl.maximum({inner.name}, 0), {limit} - 1)", inner.deps, scope)

    def _assert(self, node: Node, exists: Value, scope: Scope, guard: Guard | None) -> None:
        """Have the kernel stop the program where an index of its points does not exist."""
        parts = [f"{d}mask" for d in self.dims if d in exists.deps and self.masks[d]]
        parts += [guard.name] if guard is not None else []
        if guard is None:
            self.once.add(node)
        test = f"{exists.name} | ~({' & '.join(parts)})" if parts else exists.name
        self.asserts.append(f'{scope.indent}tl.device_assert({test}, "{self.asserted[node]}")')

    def walked(self) -> None:
        """A walk over the row is written: later ones need not ask of the same indices."""
        alike = {node for node in self.once if all(n.op is not Op.REDUCED for n in walk(node))}
        self.asserted = {node: said for node, said in self.asserted.items() if node not in alike}
        self.once.clear()

    def end(self, scope: Scope) -> None:
        """What is asserted in a scope is written: its accesses are."""
        scope.lines += self.asserts
        self.asserts.clear()

    def place(self, node: Node, scope: Scope) -> tuple[Value, str]:
        """A place to store at, and the variable that says whether it exists, where that is to be asked."""
        if node.op is not Op.CHECK_INDEX:
            return self.value(node, scope), ""
        inner = self.value(node.args[0], scope)
        limit = self.text(node.attr)
        if not inner.deps:  # a mask is a tile
            inner = self.assign(f"{self._scalar('0', DType.I64)} + {inner.name}", NOTHING, scope)
        exists = self.assign(f"({inner.name} >= 0) & ({inner.name} < {limit})", inner.deps, scope)
        if node in self.asserted:
            self._assert(node, exists, scope, None)
        return inner, exists.name

    def _cast(self, node: Node, scope: Scope, guard: Guard | None) -> Value:
        inner = self.value(node.args[0], scope, guard)
        if node.dtype is DType.BOOL:
            return self.assign(f"({inner.name} != 0)", inner.deps, scope)
        through = THROUGH.get(node.dtype) if node.args[0].dtype.is_float else None
        text = f"{inner.name}.to({through})" if through else inner.name
        return self.assign(f"{text}.to({TYPES[node.dtype]})", inner.deps, scope)

    def _load(self, node: Node, scope: Scope, guard: Guard | None) -> Value:
        buffer, index = node.attr
        if not node.args:
            kept = scope.find_stored((buffer, index))
            if kept is not None:
                return kept
            if (buffer, index) in self.recomputed:
                return self.value(self.recomputed[buffer, index], scope, guard)
        if buffer not in self.pointers:
            raise InternalError(
                "BZ9070", f"kernel reads {buffer}[{index}], which it neither keeps nor stores"
            )
        if self.together is not None and not node.args and guard is None:
            block = self._of_block(buffer, index, self.together)
            if block is not None:
                return self.assign(block, frozenset(self.dims), scope)
        places = {indirect(k).name: self.value(a, scope, guard) for k, a in enumerate(node.args)}
        text, deps = self.index(index, places)
        if self.together is not None and deps == frozenset("r") and not node.args and guard is None:
            return self._of_all_rows(buffer, index, scope)
        if self.vectors is not None and buffer in self.shifted:
            text, deps = f"head * {self.shifted[buffer]} + ({self.behind})", frozenset("r")
        if guard is not None:
            deps = deps | guard.deps or frozenset(self.dims)
        mask = self.mask(deps, guard.name if guard is not None else "")
        pointer = self.spread(f"{self.pointers[buffer]} + ({text})", deps if mask else NOTHING)
        filler = ", other=0" if mask else ""
        told = f', eviction_policy="{self.eviction}"' if self.eviction and deps >= self.told else ""
        return self.assign(f"tl.load({pointer}{mask}{filler}{told})", deps, scope)

    def _of_block(self, buffer: str, index: Expr, rows: RowsTogether) -> str | None:
        """The rows of a program, read as one block of memory; None for what does not lie so."""
        rest = index - rows.number
        if rest.symbols() & rows.number.symbols():
            return None
        begin = f"{self.pointers[buffer]} + ({rows.begin})"
        begin += f" + ({self.text(rest)})" if rest is not ZERO else ""
        return f"bz_rows({begin}, {rows.left}, {rows.long}, XBLOCK, RBLOCK, {rows.block})"

    def _of_all_rows(self, buffer: str, index: Expr, scope: Scope) -> Value:
        """What all rows share, read as a line: read as a column of the tile its layout would be the tile's, whose threads then had columns rather than rows."""
        row = frozenset("r")
        lines = {s.name: Value(f"l{v.name[1:]}", row) for s, v in self.symbols.items() if v.deps == row}
        text = f"{self.pointers[buffer]} + ({self.index(index, lines)[0]})"
        return self.assign(f"tl.load({text}, lmask, other=0){self.placed('r')}", row, scope)

    # -- pieces -----------------------------------------------------------------------------------

    def assign(self, text: str, deps: Deps, scope: Scope) -> Value:
        """A new variable for ``text``."""
        name = f"t{self.count}"
        self.count += 1
        scope.lines.append(f"{scope.indent}{name} = {text}")
        return Value(name, deps)

    def literal(self, number: object, dtype: DType) -> str:
        """A constant tile of the type, so that Triton's own promotion never meets a bare number."""
        if isinstance(number, float) and not math.isfinite(number):
            text = f'float("{number}")'
        else:
            text = repr(float(number) if dtype.is_float else number)  # type: ignore[arg-type]
        if dtype.is_float and text == "-0.0":  # Triton may write any zero as the positive one
            return f"({self._scalar('0.0', dtype)} * -1.0)"
        return self._scalar(text, dtype)

    def mask(self, deps: Deps, guard: str = "") -> str:
        """The mask argument of an access over ``deps``."""
        parts = [f"{d}mask" for d in self.dims if d in deps and self.masks[d]]
        parts += [guard] if guard else []
        return f", {' & '.join(parts)}" if parts else ""

    def shape(self, deps: Deps) -> str:
        """The tile's shape, as text."""
        return f"[{', '.join(f'{d.upper()}BLOCK' if d in deps else '1' for d in self.dims)}]"

    def along(self, dim: str) -> int:
        """Which of a tile's axes a dimension is."""
        return self.dims.index(dim)

    def placed(self, dim: str) -> str:
        """The subscript that lays numbers along a dimension of a tile."""
        return f"[{', '.join(':' if d == dim else 'None' for d in self.dims)}]"

    def spread(self, text: str, deps: Deps) -> str:
        """A pointer tile broadcast over all of ``deps``, since a mask may not be larger than its pointers."""
        return f"tl.broadcast_to({text}, {self.shape(deps)})" if deps else text

    def text(self, e: Expr) -> str:
        """An expression of the kernel's sizes and places as text."""
        return self.index(e)[0]

    def index(self, index: Expr, places: Mapping[str, Value] = EMPTY) -> tuple[str, Deps]:
        """An index expression as text, and the axes it spans; ``places``: values that it looks up."""
        if self.vectors is not None and index == self.vectors[0] + self.vectors[1]:
            return self.vectors[2], frozenset("xr")
        deps: set[str] = set()
        names: dict[str, str] = {}
        far = self.far if self.far and multiplies_far(index, self.far) else ()
        for symbol in index.symbols():
            place = places.get(symbol.name) or self.symbols.get(symbol)
            if place is None:
                raise InternalError("BZ9071", f"symbol {symbol} of index {index} is not in scope")
            names[symbol.name] = f"bz_long({place.name})" if symbol in far else place.name
            deps |= place.deps
        return index_text(index, names), frozenset(deps)


def _has_exact_reciprocal(node: Node) -> bool:
    """Whether a number is a power of two, to divide by which is to multiply: the same number either way, rounded once."""
    if node.op is not Op.CONST or node.dtype not in (DType.F32, DType.F64) or not math.isfinite(node.attr):
        return False
    digits, exponent = math.frexp(node.attr)
    return abs(digits) == 0.5 and abs(exponent) < 120


def index_text(e: Expr, names: dict[str, str]) -> str:
    """Integer arithmetic in Triton's (C's) division: exact where numerators are not negative."""
    match e:
        case Integer(number):
            return str(number)
        case Symbol(name):
            return names[name]
        case Product(factors):
            return "*".join(f"({index_text(f, names)})" for f in factors)
        case Sum(parts, constant):
            texts = [
                f"{k}*({index_text(m, names)})" if k != 1 else f"({index_text(m, names)})" for m, k in parts
            ]
            return " + ".join(texts + ([str(constant)] if constant else []))
        case FloorDiv(numerator, divisor) | Mod(numerator, divisor):
            a, b = index_text(numerator, names), index_text(divisor, names)
            low = numerator.bounds()[0]
            sign = "//" if isinstance(e, FloorDiv) else "%"
            if low is not None and low >= 0:
                return f"(({a}) {sign} ({b}))"
            return f"bz_int_floordiv({a}, {b})" if sign == "//" else f"bz_int_remainder({a}, {b})"
        case Max(left, right):
            return f"tl.maximum({index_text(left, names)}, {index_text(right, names)})"
        case Min(left, right):
            return f"tl.minimum({index_text(left, names)}, {index_text(right, names)})"
    raise InternalError("BZ9072", f"cannot print {type(e).__name__} in an index")
