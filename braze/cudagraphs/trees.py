"""Pools of memory that recordings share, and when one of them may be replayed.

What a recording needs only until it ends lies in memory of the stream's, where nothing lives on: each replay may overwrite it. Outputs for which the
call itself asked have memory of their own, that of their recording alone. What is left are outputs of PyTorch's operators, with what these needed meanwhile: they lie in the pool.

The recordings of a pool were made one after another, each while the outputs of all before it had their places. So a recording writes
no output of an earlier one; its own outputs, and those of later ones in the pool, it may write. It may be replayed when none of these is alive:
that is all that must be known of the way by which a call comes here. A pool begins with a recording that reads nothing
of another pool, and those that read its outputs where they lie join it: it is a tree, whose branches are
what was recorded after the same outputs.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from braze import native
from braze.cudagraphs.device import DeviceGraphs, Pool
from braze.cudagraphs.outputs import Held


class PlainHolders:
    """Who holds the memory that recordings of a pool write: what the C core's Holders tells, without it."""

    def __init__(self) -> None:
        self.used = 0
        self._held: list[tuple[int, Held]] = []

    def fill(self, rows: tuple[tuple[int, Any, Any, int, int, int, Any, bool], ...]) -> None:
        """The memory that there is from now on."""
        self._held = [row[:2] for row in rows]

    def free_from(self, number: int) -> bool:
        """Whether nobody holds what a recording of at least that number writes, and that and what the one before writes is where it was."""
        written = [(n, each) for n, each in self._held if n <= number or not each.apart]
        return not any(
            (n >= number and each.alive()) or (n == number - 1 and each.moved()) for n, each in written
        )

    def touch(self) -> None:
        """It is used now."""
        self.used = next(_clock)


_clock = itertools.count(1)


class Tree:
    """One pool and what was recorded into it. It lives as long as a recording of it does."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._groups: list[weakref.ref[Any]] = []  # whose recordings these are, in order
        self._held: list[tuple[int, Held]] = []
        #: the same for the C core, and when the last of its recordings was replayed
        self.holders: Any = native.Holders() if native.replays_natively() else PlainHolders()

    def add(self, group: Any, held: tuple[Held, ...]) -> int:
        """Enter a recording; its number."""
        number = len(self._groups)
        self._groups.append(weakref.ref(group))
        self._held += [(number, each) for each in held]
        self._tell()
        return number

    def _tell(self) -> None:
        self.holders.fill(tuple([(number, *each.row()) for number, each in self._held]))

    @property
    def used(self) -> int:
        """When the last of its recordings was replayed, in replays."""
        return self.holders.used

    def groups(self) -> list[Any]:
        """Those that have recordings here, or had some."""
        return list({id(g): g for g in (ref() for ref in self._groups) if g is not None}.values())

    def free_from(self, number: int) -> bool:
        """Whether nothing is alive that a recording of that number writes: its outputs, and those of later ones that lie in the pool."""
        return self.holders.free_from(number)

    def drop(self, number: int) -> None:
        """A recording is gone; its outputs that are alive still must not be written."""
        self._held = [(n, each) for n, each in self._held if n != number or each.alive()]
        self._tell()

    def bytes(self) -> int:
        """What its recordings alone take: the pool, and outputs that lie in none."""
        return self.pool.held() + sum(each.storage.nbytes() for _, each in self._held if each.apart)

    def has(self, place: int) -> bool:
        """Whether an output lies there."""
        return any(each.storage.data_ptr() == place for _, each in self._held)


class Forest:
    """All trees of one device, which belong to their recordings."""

    def __init__(self) -> None:
        self._trees: weakref.WeakSet[Tree] = weakref.WeakSet()
        self._of: weakref.WeakValueDictionary[int, Tree] = weakref.WeakValueDictionary()

    def trees(self) -> list[Tree]:
        """Those that have recordings, the one used longest ago first."""
        return sorted(self._trees, key=lambda tree: tree.used)

    def tree_of(self, x: torch.Tensor) -> Tree | None:
        """The tree in whose memory a tensor lies."""
        place = x.untyped_storage().data_ptr() if x.numel() else 0
        tree = self._of.get(place)
        return tree if tree is not None and tree.has(place) else None

    def tree_for(self, group: Any, near: list[Tree], device: DeviceGraphs) -> Tree:
        """Where a recording goes that reads outputs of the trees ``near``: to the first that has none of its group, or a new one."""
        for tree in near:
            if not any(each is group for each in tree.groups()):
                return tree
        return Tree(device.new_pool(shared=True))

    def enter(self, tree: Tree, group: Any, held: tuple[Held, ...]) -> int:
        """Enter a recording into a tree; its number there."""
        self._trees.add(tree)
        for each in held:
            self._of[each.storage.data_ptr()] = tree
        return tree.add(group, held)

    def touch(self, tree: Tree) -> None:
        """A recording of the tree is replayed."""
        tree.holders.touch()

    def remove(self, tree: Tree) -> None:
        """All recordings of a tree are gone."""
        self._trees.discard(tree)

    def held(self) -> int:
        """Bytes of all pools and outputs; memory that pools share counts once."""
        shared = {id(memory): memory for tree in self._trees if (memory := tree.pool.shared) is not None}
        return sum(tree.bytes() for tree in self._trees) + sum(memory.held() for memory in shared.values())


_forests: weakref.WeakKeyDictionary[DeviceGraphs, Forest] = weakref.WeakKeyDictionary()


def forest_of(device: DeviceGraphs) -> Forest:
    """The trees of a device."""
    return _forests.setdefault(device, Forest())
