"""Which memory recordings share: one pool for all, or one for each number of tokens."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from braze.cudagraphs.device import DeviceGraphs, Pool
from braze.options import near
from braze.serving.policy.dispatch import BatchDescriptor
from braze.support.errors import UserError

#: policy -> which tier a descriptor belongs to
POLICIES: dict[str, Callable[[BatchDescriptor], Hashable]] = {
    "shared": lambda descriptor: None,
    "per_tier": lambda descriptor: descriptor.num_tokens,
}


class Clearable(Protocol):
    """Who makes recordings into pools."""

    def clear(self) -> None:
        """Let go of all recordings."""

    def drop(self, descriptor: BatchDescriptor) -> None:
        """Let go of a descriptor's recording."""

    def captured(self) -> tuple[BatchDescriptor, ...]:
        """The descriptors of which there are recordings."""


class GraphPools:
    """Pools of one device for the recordings of one model, and whether more may be made.

    ``"shared"``: recordings of all sizes lie over one another. It takes the least memory, and what a step leaves in a recording's memory is
    lost when a step of another size runs. ``"per_tier"``: sizes do not touch each other's memory, and that of a size comes back when
    its recordings are let go of. UserError (BZ7205) for another word.
    """

    def __init__(self, policy: str = "shared") -> None:
        if not isinstance(policy, str) or policy not in POLICIES:
            hint = near(policy, POLICIES) if isinstance(policy, str) else f"known: {', '.join(POLICIES)}"
            raise UserError("BZ7205", f"unknown pool {policy!r}", hints=[hint])
        self.policy = policy
        #: whether a size that is not recorded yet may be; an engine ends that when it begins to serve
        self.open = True
        self._tier = POLICIES[policy]
        self._pools: dict[Any, Pool] = {}
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inputs: weakref.WeakSet[Any] = weakref.WeakSet()
        #: the step that runs as it is from somewhere on, and the memory in which what it replayed before lies
        self._left: tuple[Callable[[], Any], list[Pool]] | None = None

    def of(self, descriptor: BatchDescriptor, device: DeviceGraphs) -> Pool:
        """The pool of a descriptor's recordings, made when first asked for."""
        tier = self._tier(descriptor)
        if tier not in self._pools:
            self._pools[tier] = device.new_pool()
        return self._pools[tier]

    def held(self) -> int:
        """Bytes of all pools."""
        return sum(pool.held() for pool in self.pools())

    def pools(self) -> list[Pool]:
        """All of them, as of now: a server is asked for its memory while it records."""
        return list(self._pools.values())

    def release(self, descriptor: BatchDescriptor) -> None:
        """Let every user go of a descriptor's recordings; where it is the last one of its tier, the tier's memory comes back."""
        for user in (*self.users(), *self._inputs):
            user.drop(descriptor)
        tier = self._tier(descriptor)
        if not any(self._tier(other) == tier for user in self.users() for other in user.captured()):
            self._pools.pop(tier, None)

    def leave(self, step: Any) -> None:
        """Let go of every recording in the middle of a step, the rest of which runs as it is: what is recorded behind that would be given values that lie
        nowhere that stays. ``step``: its forward context."""
        pools = self.pools()
        self.clear()
        self._left = weakref.ref(step), pools

    def left(self, step: Any) -> bool:
        """Whether this step runs as it is."""
        if self._left is None:
            return False
        if self._left[0]() is step:
            return True
        self._left = None
        return False

    def users(self) -> list[Any]:
        """Who records here."""
        return list(self._users)

    def enter(self, user: Clearable) -> None:
        """Know who records here."""
        self._users.add(user)

    def keep(self, inputs: Any) -> None:
        """Know who has memory that recordings read, which goes when they go (``clear()``, ``drop(descriptor)``)."""
        self._inputs.add(inputs)

    def clear(self) -> None:
        """Let go of every recording and all memory, as when the caches that recordings point into are made anew."""
        for user in (*self.users(), *self._inputs):
            user.clear()
        self._pools.clear()
