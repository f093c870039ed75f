"""Join blocks into kernels, to a fixed point.

Candidates are pairs that share a buffer: a writer and a reader, or two neighbouring readers. Within a phase
they are tried by bytes saved. Phases stand in the order in which they take from each other: what moves into a
GEMM's epilogue is no longer there for a reduction to read.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable

from braze.loops.ir import BufferKind, BufferView, ExternCall, LoopProgram
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.dependences import ORDER, families, symbol_name, with_symbols
from braze.schedule.fusion.blockgraph import BlockGraph
from braze.schedule.fusion.blocks import Block, Shape, block_of
from braze.schedule.fusion.legality import Facts, join
from braze.support.log import logger
from braze.symbolic.expr import Expr, product

log = logger("fusion")

Pair = tuple[Block, Block]
#: numbers that are many to be made by one program, one after the other
GATHERED = 8
#: the pairs with a block that may be joined, the writer or the earlier one first
Relation = Callable[["Fusion", Block], Iterable[Pair]]
Shapes = set[tuple[Shape, Shape]]


class Fusion:
    """One run of the fusion over one program."""

    def __init__(self, program: LoopProgram, choices: Choices) -> None:
        self.choices = choices
        self.buffers = {b.name: b for b in program.buffers}
        family = families(program)
        sizes: dict[str, int] = {}
        for root in family.values():
            sizes[root] = sizes.get(root, 0) + 1
        made = frozenset(program.made)
        blocks = [block_of(k, s) for k, s in enumerate(program.steps)]
        if made:
            for block, step in zip(blocks, program.steps, strict=True):
                with_symbols(block.accesses, step, made, self.buffers)
        self.graph = BlockGraph(blocks, family)
        self.kept = kept_buffers(program)
        self.facts = Facts(
            choices,
            {n: sizes[r] == 1 for n, r in family.items()},
            family,
        )
        self.bytes = {
            ORDER: 0,
            **dict.fromkeys(map(symbol_name, made), 0),
            **{b.name: choices.bytes_of(b) for b in program.buffers},
        }
        self._numbers = itertools.count()
        #: what was asked and is not to be joined: the next round, in which little has changed, asks the same
        self.refused: set[tuple[Block, Block, frozenset[str], bool]] = set()

    def run(self) -> list[Block]:
        """Join until a round changes nothing; the blocks in a valid order."""
        for _ in range(self.choices.rounds):
            changed = sum(self.phase(vertical, shapes) for shapes in PHASES)
            changed += self.phase(horizontal, None)
            if not changed:
                break
        self.strangers()
        return self.graph.blocks()

    def strangers(self) -> None:
        """Join small kernels of a GPU over one domain that have nothing in common but what a launch takes: updates of a list of tensors of sizes that
        may change; those of known sizes share launches whatever their domains (``combos.py``)."""
        open_: dict[tuple[str, tuple[Expr, ...]], Block] = {}
        for block in self.graph.blocks():
            if block.device == "cpu" or block.shape is not Shape.POINT or not self.is_small(block):
                continue
            if self.choices.combos and all(a.extent.value is not None for a in block.axes):
                continue
            key = block.device, tuple(a.extent for a in block.axes)
            before = open_.get(key)
            fits = before is not None and len(before.parts) + len(block.parts) <= self.choices.strangers
            made = self.attempt(before, block, 0, strangers=True) if before is not None and fits else None
            open_[key] = made or block

    def is_small(self, block: Block) -> bool:
        """Whether a GPU launches another kernel in the time that all accesses of a block take."""
        return sum(self.bytes[name] for name in block.accesses.touched()) <= self.choices.launch_bytes

    def phase(self, relation: Relation, shapes: Shapes | None) -> int:
        """Try all candidates of one kind, the best first; how many were joined."""
        heap: list[tuple[int, int, int, Block, Block]] = []
        seen: set[Pair] = set()

        def push(pairs: Iterable[Pair]) -> None:
            for a, b in pairs:
                if (a, b) not in seen and (shapes is None or (a.shape, b.shape) in shapes):
                    seen.add((a, b))
                    score = self.saved(a, b)
                    if score:
                        gap = self.graph.position[b] - self.graph.position[a]
                        heapq.heappush(heap, (-score, gap, next(self._numbers), a, b))

        for block in self.graph.blocks():
            push(relation(self, block))
        joined = 0
        while heap:
            score, _, _, a, b = heapq.heappop(heap)
            made = self.attempt(a, b, -score)
            if made is not None:
                joined += 1
                push(relation(self, made))
        return joined

    def attempt(self, a: Block, b: Block, score: int, *, strangers: bool = False) -> Block | None:
        """Join the two if both still stand and it is legal; ``strangers``: though they share nothing."""
        place = self.graph.position
        if a not in place or b not in place:
            return None
        if place[a] > place[b]:
            a, b = b, a
        if place[b] - place[a] > self.choices.reach or not self.graph.may_join(a, b):
            return None
        if a.shape is Shape.ROW and _gathers(b):
            return None
        shared = sorted(a.accesses.touched() & b.accesses.touched(), key=lambda n: -self.bytes[n])
        reason = f"shares {shared[0]} ({_amount(score)} saved)" if shared else "shares a launch"
        inner = frozenset(name for name in shared if self.is_theirs(name, a, b))
        asked = a, b, inner, strangers
        if asked in self.refused:
            return None
        made = join(a, b, self.facts, reason, strangers=strangers, inner=inner)
        if made is None:
            self.refused.add(asked)
        else:
            self.graph.join(a, b, made)
        log.debug("%s %s + %s: %s", "joined" if made else "kept apart", _names(a), _names(b), _amount(score))
        return made

    def saved(self, a: Block, b: Block) -> int:
        """Bytes that need not move if the two are one kernel."""
        total = 0
        for name in a.accesses.touched() & b.accesses.touched():
            total += self.bytes[name] * (2 if self.is_theirs(name, a, b) else 1)
        return total

    def is_theirs(self, name: str, a: Block, b: Block) -> bool:
        """Whether what is written to a buffer need not be in memory if the two are one kernel."""
        written = name in a.accesses.writes or name in b.accesses.writes
        return written and name not in self.kept and self.graph.users[name] <= {a, b}

    def read_bytes(self, block: Block) -> int:
        return sum(self.bytes[name] for name in block.accesses.reads)


def _gathers(block: Block) -> bool:
    """Whether a block stacks numbers that many kernels of a GPU leave: in one program with it these would be one after the other."""
    if block.device == "cpu" or block.shape is not Shape.POINT or len(block.accesses.reads) <= GATHERED:
        return False
    return (product([a.extent for a in block.axes]).value or GATHERED) < GATHERED


def vertical(fusion: Fusion, block: Block) -> Iterable[Pair]:
    """Pairs of a writer and a reader that ``block`` is one of."""
    graph = fusion.graph
    place = graph.position
    near = graph.before[block] | graph.after[block]
    for other in sorted(near, key=place.__getitem__):
        yield (other, block) if place[other] < place[block] else (block, other)


def horizontal(fusion: Fusion, block: Block) -> Iterable[Pair]:
    """Pairs with the next reader of each buffer that ``block`` reads."""
    place = fusion.graph.position
    if block.shape not in (Shape.POINT, Shape.ROW):
        return
    for name in block.accesses.reads:
        later = [
            u for u in fusion.graph.users[name] if 0 < place[u] - place[block] <= fusion.choices.sibling_reach
        ]
        for other in sorted(later, key=place.__getitem__)[:2]:
            if other.shape not in (Shape.POINT, Shape.ROW):
                continue
            smaller = min(fusion.read_bytes(block), fusion.read_bytes(other))
            if fusion.choices.worthwhile_siblings(_shared_reads(fusion, block, other), smaller):
                yield block, other


_POINT = {(Shape.POINT, Shape.POINT), (Shape.TEMPLATE, Shape.POINT)}
_ROW = {(Shape.POINT, Shape.ROW), (Shape.ROW, Shape.POINT), (Shape.ROW, Shape.ROW)}
PHASES = (_POINT, _ROW)


def _shared_reads(fusion: Fusion, a: Block, b: Block) -> int:
    """Bytes of the buffers that both read."""
    return sum(fusion.bytes[n] for n in a.accesses.reads if n in b.accesses.reads)


def kept_buffers(program: LoopProgram) -> set[str]:
    """Buffers whose contents outlive their last visible use: inputs, outputs, storage with several names, and what is made for its error."""
    kept = {b.name for b in program.buffers if b.kind is not BufferKind.TEMPORARY}
    kept |= {o.buffer for o in program.outputs if isinstance(o, BufferView)}
    kept.update(program.for_errors)
    for step in program.steps:
        if isinstance(step, ExternCall) and step.aliases:
            kept |= {*step.aliases, *filter(None, step.outputs)}
    return kept


def _amount(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _names(block: Block) -> str:
    return "+".join(p.nest.name for p in block.parts) or (block.call.name if block.call else "?")
