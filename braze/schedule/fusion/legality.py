"""Whether, and over which symbols, two blocks may become one kernel.

``join(a, b, ...)`` takes blocks of which ``a`` comes first. They may be joined when

1. they run on one device and their domains can be laid over each other;
2. every element that one writes and the other touches is touched at the same point: all indices into
   such a buffer become one expression, and the writer writes each element at one point only;
3. no scatter store, unknown index or storage shared under another name is involved;
4. neither writes an input while the other may find that it must fail.

That no third block stands between them is for the caller to know (`blockgraph.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence

from braze.loops.ir import Axis, Op, TemplateCall
from braze.loops.rewrite import Substitution, index_exprs, roots, walk
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.dependences import Accesses
from braze.schedule.facts.domains import Overlay, Place, decomposed, injective, lay_over, ordered_by
from braze.schedule.facts.passes import counts_positions
from braze.schedule.facts.ragged import common_limit
from braze.schedule.fusion.blocks import Block, Move, Role, Shape, moved, moved_accesses, points_of
from braze.symbolic.expr import ZERO, Expr, FloorDiv, Integer, Mod, Symbol, axis_symbol, product
from braze.symbolic.flat import parts_of
from braze.symbolic.guess import likely

#: columns side by side that are worth a kernel whose threads lie along them: a sector of the narrowest floats
LEAST_COLUMNS = 16
#: shared buffers whose access order is tried as the order of the axes
_TRIED_ORDERS = 4
#: rows of columns that a processor walks more than once in one kernel: so many lines of memory the first cache holds even where they are a power of two apart (softmax of 1024 x 4 x 760
#: 5.1 ms, by four kernels 10.4; of 150 rows of 16,384 12.0 and 7.4)
_FEW_ROWS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What legality must know of the whole program."""

    choices: Choices
    private: Mapping[str, bool]  # buffer -> its storage is reached by this name only
    #: buffer -> what stands for the storage that it shares with others
    family: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """How the symbols of two blocks become common ones, and the role of the second's point steps."""

    axes: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    first: dict[Symbol, Expr]
    second: dict[Symbol, Expr]
    role: Role


def join(
    a: Block, b: Block, facts: Facts, reason: str, *, strangers: bool = False, inner: Container[str] = ()
) -> Block | None:
    """The block that does both, or None where that is not legal or not wise. ``strangers``: they may be two that read nothing alike; ``inner``: buffers
    that nobody else touches."""
    shapes = {a.shape, b.shape}
    if Shape.EXTERN in shapes or a.device != b.device or not facts.choices.fits(len(a.parts) + len(b.parts)):
        return None
    if b.shape is Shape.TEMPLATE or (a.shape is Shape.TEMPLATE and b.shape is not Shape.POINT):
        return None
    conflicts = _conflicts(a.accesses, b.accesses)
    if not all(facts.private[name] for name in conflicts):
        return None
    if _writes_too_early(a, b, facts) or _writes_too_early(b, a, facts):
        return None
    for fit in _fits(a, b):
        moves = (*_moves(a, fit, fit.first), *_moves(b, fit, fit.second))
        first = moved_accesses(a.accesses, moves[0].substitution)
        second = moved_accesses(b.accesses, moves[-1].substitution)
        if not _same_points(first, second, conflicts, a, fit) or not (
            conflicts or strangers or _read_alike(first, second)
        ):
            continue
        outline = _outline(a, b, fit, first.merge(second), reason)
        if not _single_writers(outline, moves, conflicts) or not _by_memory(outline, moves, facts, inner):
            continue
        made = _made(outline, moves)
        if _wise(a, b, made):
            return made
    return None


def _conflicts(a: Accesses, b: Accesses) -> set[str]:
    """Buffers that one block writes and the other touches."""
    return {name for name in a.writes if name in b.reads or name in b.writes} | {
        name for name in a.reads if name in b.writes
    }


def _writes_too_early(a: Block, b: Block, facts: Facts) -> bool:
    """Whether ``a`` writes storage that ``b`` touches by another name, or that is to stay as it is if ``b`` fails."""
    written = {facts.family[name] for name in a.accesses.writes if not facts.private.get(name, True)}
    if not written:
        return False
    touched = b.accesses.touched()
    return any(facts.family.get(name, name) in written for name in touched) or _may_fail(b)


def _may_fail(block: Block) -> bool:
    """Whether a block looks something up at a place that may not exist."""
    return any(n.op is Op.CHECK_INDEX for part in block.parts for n in walk(*roots(part.nest)))


def _fits(a: Block, b: Block) -> Iterator[Fit]:
    """Ways to lay the domains over each other, the plainest first."""
    base, other = (b, a) if a.shape is Shape.POINT and b.shape is Shape.ROW else (a, b)
    for overlay in _overlays(base, other, base.places()):
        yield _fit(a, base, overlay, Role.ROW)
    if base.shape is Shape.ROW and other.shape is Shape.POINT:
        once_per_row = [Place(axis, False) for axis in base.axes]
        for overlay in _overlays(base, other, once_per_row):
            rows = {axis.symbol: axis.symbol for axis in base.row_axes}
            whole = Overlay(overlay.axes, base.row_axes, {**overlay.left, **rows}, overlay.right)
            yield _fit(a, base, whole, Role.POINT)


def _overlays(base: Block, other: Block, places: list[Place]) -> Iterator[Overlay]:
    plain = lay_over(places, other.places(), base.listing())
    if plain is not None:
        yield plain
    if counts_positions(p.nest for block in (base, other) for p in block.parts):
        return  # their results depend on the order of the row's axes
    shared = sorted(base.accesses.touched() & other.accesses.touched())
    seen = [(places, other.places())]
    for name in shared[:_TRIED_ORDERS]:
        left_index, right_index = _an_index(base.accesses, name), _an_index(other.accesses, name)
        if left_index is None or right_index is None:
            continue
        left = ordered_by(places, left_index)
        right = ordered_by(other.places(), right_index)
        if left is None or right is None or (left, right) in seen:
            continue
        seen.append((left, right))
        overlay = lay_over(left, right, base.listing())
        if overlay is not None:
            yield overlay


def _an_index(found: Accesses, name: str) -> Expr | None:
    for index in (*found.writes.get(name, ()), *found.reads.get(name, ())):
        if index is not None:
            return index
    return None


def _fit(a: Block, base: Block, overlay: Overlay, role: Role) -> Fit:
    if base.shape is Shape.TEMPLATE:
        # a template's own axes stay whole: the other side gets divisions where it splits them
        back = decomposed(overlay.left, overlay.axes, base.axes)
        right = {s: e.subs(back) for s, e in overlay.right.items()}
        return Fit(base.axes, (), {}, right, Role.POINT)
    first, second = (overlay.left, overlay.right) if base is a else (overlay.right, overlay.left)
    if base.shape is Shape.POINT:
        role = Role.POINT
    return Fit(overlay.axes, overlay.row_axes, first, second, role)


def _same_points(a: Accesses, b: Accesses, conflicts: set[str], first: Block, fit: Fit) -> bool:
    for name in conflicts:
        indices = set()
        for side in (a, b):
            indices |= side.writes.get(name, set()) | side.reads.get(name, set())
        if None in indices:
            return False
        if len(indices) != 1 and not (
            first.shape is Shape.TEMPLATE and name not in b.writes and _columns_apart(a, b, name, fit.axes)
        ):
            return False
    return True


def _columns_apart(a: Accesses, b: Accesses, name: str, axes: tuple[Axis, ...]) -> bool:
    """Whether a template writes a buffer at two places, and what is read of it are these: no two points share one."""
    written = a.writes[name]
    if len(written) != 2 or name in a.reads or not b.reads[name] <= written:
        return False
    first, second = (e for e in written if e is not None)
    return apart(first, second, axes)


def apart(first: Expr, second: Expr, axes: tuple[Axis, ...]) -> bool:
    """Whether two indices a fixed number of elements apart never meet, at whichever points of the axes."""
    gap = (second - first).value
    if not gap:
        return False
    which = Axis(axis_symbol("which", Integer(2)), Integer(2))
    low = first if gap > 0 else second
    return injective(low + which.symbol * abs(gap), (*axes, which))


def _read_alike(a: Accesses, b: Accesses) -> bool:
    """Whether some buffer is read at the same points by both."""
    return any(indices & b.reads[name] - {None} for name, indices in a.reads.items() if name in b.reads)


def _moves(block: Block, fit: Fit, mapping: dict[Symbol, Expr]) -> list[Move]:
    substitution = Substitution(mapping)
    along = block.shape is Shape.POINT and fit.role is Role.ROW
    return [Move(part, substitution, Role.ROW if along else part.role) for part in block.parts]


def _outline(a: Block, b: Block, fit: Fit, found: Accesses, reason: str) -> Block:
    """The block that does both, yet without its parts."""
    shape = Shape.ROW if Shape.ROW in (a.shape, b.shape) else a.shape
    reasons = (*a.reasons, *b.reasons, reason)
    first = min(a.first, b.first)
    return Block(shape, (), fit.axes, fit.rows, found, first, a.device, a.call, reasons)


def _made(outline: Block, moves: Sequence[Move]) -> Block:
    axes, rows = outline.axes, outline.row_axes
    ordered = sorted(moves, key=lambda m: m.part.number)
    parts = tuple(moved(m.part, m.substitution, axes, rows, m.role) for m in ordered)
    return dataclasses.replace(outline, parts=parts)


def _single_writers(outline: Block, moves: Sequence[Move], conflicts: set[str]) -> bool:
    """Whether each element of a buffer in conflict is written at one point only."""
    for move in moves:
        axes = points_of(move.role, outline.axes, outline.row_axes)
        for store in move.part.nest.stores:
            if store.buffer in conflicts and not injective(move.substitution.expr(store.index), axes):
                return False
    return True


def _by_memory(outline: Block, moves: Sequence[Move], facts: Facts, inner: Container[str]) -> bool:
    """Whether the stores keep their innermost strides, or threads lie along columns; an epilogue has its product's.

    What a GPU's rows alone read of a buffer (``inner``) is stored nowhere, so that it has no stride.
    """
    if outline.shape is Shape.TEMPLATE or _lies_by_columns(outline):
        return True
    rows_of_a_gpu = outline.shape is Shape.ROW and outline.device != "cpu"
    for move in moves:
        stores = move.part.nest.stores
        if move.part.role is Role.REDUCE or (rows_of_a_gpu and all(s.buffer in inner for s in stores)):
            continue
        axes = points_of(move.role, outline.axes, outline.row_axes)
        before = _innermost_stride(move.part.nest.axes, [s.index for s in stores])
        after = _innermost_stride(axes, [move.substitution.expr(s.index) for s in stores])
        if not facts.choices.keeps_contiguity(before, after):
            return False
    return True


def _wise(a: Block, b: Block, made: Block) -> bool:
    """Whether an epilogue stays free of divisions, and rows that end early still do."""
    if made.shape is Shape.TEMPLATE:  # of which product it is one, a program divides once
        return not any(_divides(e, _kept_whole(made)) for part in made.parts for e in index_exprs(part.nest))
    return _ends_early(made) or not (_ends_early(a) or _ends_early(b))


def _kept_whole(block: Block) -> tuple[Axis, ...]:
    """The axes of a template of which a program has more than one place."""
    whole = isinstance(block.call, TemplateCall) and block.call.kind == "depthwise"
    return block.axes[1:] if whole else block.axes[-2:]


def _lies_by_columns(block: Block) -> bool:
    """Whether a GPU's threads, or a processor's vectors over few rows, may lie along an axis that all accesses are contiguous along, wherever the row's lies: softmax down the columns of a matrix."""
    if block.shape is not Shape.ROW:
        return False
    if block.device == "cpu" and not _few_rows(block):
        return False
    indices = {
        i for found in (block.accesses.reads, block.accesses.writes) for each in found.values() for i in each
    }
    return any(
        likely(axis.extent) >= LEAST_COLUMNS and all(_contiguous(i, axis.symbol) for i in indices)
        for axis in block.axes
    )


def _few_rows(block: Block) -> bool:
    rows = product([a.extent for a in block.row_axes]).value
    return rows is not None and rows <= _FEW_ROWS


def _contiguous(index: Expr | None, symbol: Symbol) -> bool:
    """Whether an index goes one element on with each step of a symbol, or none."""
    if index is None:
        return False
    step = index.coefficient(symbol)
    return step is not None and step.value in (0, 1)


def _ends_early(block: Block) -> bool:
    """Whether all walks of a block may end at a number that they read."""
    nests = [part.nest for part in block.parts]
    return block.shape is Shape.ROW and common_limit(block.axes, block.row_axes, nests) is not None


def _innermost_stride(axes: Sequence[Axis], indices: Sequence[Expr]) -> int:
    """The greatest stride of some stores along the innermost axis."""
    if not axes:
        return 0
    symbol = axes[-1].symbol
    return max((abs(likely(e.coefficient(symbol) or ZERO)) for e in indices), default=0)


def _divides(e: Expr, axes: tuple[Axis, ...]) -> bool:
    """Whether a division of an axis is left in an index."""
    symbols = {a.symbol for a in axes}
    return any(isinstance(x, (FloorDiv, Mod)) and x.symbols() & symbols for x in parts_of(e))
