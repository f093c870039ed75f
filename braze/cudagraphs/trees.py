"""Pools of memory that recordings share, and when one of them may be replayed.

The recordings of a pool were made one after another, each while the outputs of all before it had their places. So a recording writes
no output of an earlier one; its own outputs, and those of later ones, it may write. It may be replayed when none of these is alive:
that is all that must be known of the way by which a call comes here. A pool begins with a recording that reads nothing
of another pool, and those that read its outputs where they lie join it: it is a tree, whose branches are
what was recorded after the same outputs.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from braze.cudagraphs.device import DeviceGraphs, Pool
from braze.cudagraphs.outputs import Held


class Tree:
    """One pool and its recordings."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.groups: list[Any] = []  # whose recordings these are, in order; None: one that has been let go of
        self._held: list[tuple[int, Held]] = []
        self.used = 0  # when the last of its recordings was replayed

    def add(self, group: Any, held: tuple[Held, ...]) -> int:
        """Enter a recording; its number."""
        number = len(self.groups)
        self.groups.append(group)
        self._held += [(number, each) for each in held]
        return number

    def free_from(self, number: int) -> bool:
        """Whether no output of a recording of at least that number is alive."""
        return not any(n >= number and each.alive() for n, each in self._held)

    def drop(self, number: int) -> None:
        """A recording is gone; its outputs that are alive still must not be written."""
        self.groups[number] = None
        self._held = [(n, each) for n, each in self._held if self.groups[n] is not None or each.alive()]

    @property
    def empty(self) -> bool:
        """Whether it has no recording."""
        return all(group is None for group in self.groups)

    def memory(self) -> list[int]:
        """Where its outputs lie."""
        return [each.storage.data_ptr() for _, each in self._held]


class Forest:
    """All trees of one device."""

    def __init__(self) -> None:
        self.trees: list[Tree] = []
        self._of: dict[int, Tree] = {}
        self._clock = itertools.count(1)

    def tree_of(self, x: torch.Tensor) -> Tree | None:
        """The tree in whose memory a tensor lies."""
        return self._of.get(x.untyped_storage().data_ptr()) if x.numel() else None

    def tree_for(self, group: Any, near: list[Tree], device: DeviceGraphs) -> Tree:
        """Where a recording goes that reads outputs of the trees ``near``: to the first that has none of its group, or a new one."""
        for tree in near:
            if not any(each is group for each in tree.groups):
                return tree
        self.trees.append(Tree(device.new_pool()))
        return self.trees[-1]

    def enter(self, tree: Tree, group: Any, held: tuple[Held, ...]) -> int:
        """Enter a recording into a tree; its number there."""
        number = tree.add(group, held)
        for each in held:
            self._of[each.storage.data_ptr()] = tree
        self.touch(tree)
        return number

    def touch(self, tree: Tree) -> None:
        """A recording of the tree is replayed."""
        tree.used = next(self._clock)

    def drop(self, tree: Tree, number: int) -> None:
        """Let go of a recording, and of its tree with the last."""
        before = tree.memory()
        tree.drop(number)
        gone = set(before).difference(tree.memory()) if not tree.empty else before
        for place in gone:
            self._of.pop(place, None)
        self.prune()

    def prune(self) -> None:
        """Let go of trees without recordings."""
        self.trees = [tree for tree in self.trees if not tree.empty]

    def held(self) -> int:
        """Bytes of all pools."""
        return sum(tree.pool.held() for tree in self.trees)


_forests: weakref.WeakKeyDictionary[DeviceGraphs, Forest] = weakref.WeakKeyDictionary()


def forest_of(device: DeviceGraphs) -> Forest:
    """The trees of a device."""
    return _forests.setdefault(device, Forest())
