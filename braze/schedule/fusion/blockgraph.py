"""The order of blocks and who depends on whom, kept right while blocks are joined.

Positions are a topological order of the blocks. Joining two blocks reorders only what stands between
them, so the cost of a join follows the distance, not the size of the program.
"""

from __future__ import annotations

from collections import defaultdict

from braze.schedule.facts.dependences import edges
from braze.schedule.fusion.blocks import Block


class BlockGraph:
    """Blocks in a valid order, with predecessors, successors, and users of each buffer."""

    def __init__(self, blocks: list[Block], family: dict[str, str]) -> None:
        self.order: list[Block | None] = list(blocks)
        self.position = {b: k for k, b in enumerate(blocks)}
        self.before: dict[Block, set[Block]] = {b: set() for b in blocks}
        self.after: dict[Block, set[Block]] = {b: set() for b in blocks}
        self.users: dict[str, set[Block]] = defaultdict(set)
        for k, needs in enumerate(edges([b.accesses for b in blocks], family)):
            for earlier in needs:
                self.before[blocks[k]].add(blocks[earlier])
                self.after[blocks[earlier]].add(blocks[k])
        for b in blocks:
            for name in b.accesses.touched():
                self.users[name].add(b)

    def blocks(self) -> list[Block]:
        return [b for b in self.order if b is not None]

    def between(self, a: Block, b: Block) -> set[Block]:
        """The blocks placed between ``a`` and ``b`` that depend on ``a``."""
        stop = self.position[b]
        found: set[Block] = set()
        stack = [s for s in self.after[a] if self.position[s] < stop]
        while stack:
            block = stack.pop()
            if block not in found:
                found.add(block)
                stack += [s for s in self.after[block] if self.position[s] < stop]
        return found

    def may_join(self, a: Block, b: Block) -> bool:
        """Whether nothing that depends on ``a`` is needed by ``b``, other than ``a`` itself."""
        return not (self.between(a, b) & self.before[b])

    def join(self, a: Block, b: Block, made: Block) -> None:
        """Put ``made`` in the place of ``a`` and ``b``; ``may_join`` holds."""
        start, stop = self.position[a], self.position[b]
        late = self.between(a, b)
        middle = [x for x in self.order[start + 1 : stop] if x is not None]
        region = [x for x in middle if x not in late] + [made] + [x for x in middle if x in late]
        self.before[made] = (self.before.pop(a) | self.before.pop(b)) - {a, b}
        self.after[made] = (self.after.pop(a) | self.after.pop(b)) - {a, b}
        for x in self.before[made]:
            self.after[x] -= {a, b}
            self.after[x].add(made)
        for x in self.after[made]:
            self.before[x] -= {a, b}
            self.before[x].add(made)
        for name in made.accesses.touched():
            self.users[name] -= {a, b}
            self.users[name].add(made)
        del self.position[a], self.position[b]
        self.order[start : stop + 1] = [*region, *([None] * (stop + 1 - start - len(region)))]
        for k in range(start, start + len(region)):
            self.position[self.order[k]] = k  # type: ignore[index]
