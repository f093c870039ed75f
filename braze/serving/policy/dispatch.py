"""Which recording a step replays: a pure function of the step's counts."""

from __future__ import annotations

from collections.abc import Hashable

from braze.support.record import record


@record
class BatchDescriptor:
    """What recordings are kept by: sizes as they are after padding.

    ``num_reqs``: None where any number of requests will do, as for pieces without attention. ``uniform_query_len``: the tokens
    that every request has, where all have as many; 0 where they need not. ``variant``: what else tells recordings apart, such
    as whether an adapter is active; any hashable value.
    """

    num_tokens: int
    num_reqs: int | None = None
    uniform_query_len: int = 0
    variant: Hashable = None

    @property
    def uniform(self) -> bool:
        """Whether every request has as many tokens."""
        return self.uniform_query_len > 0

    def relaxed(self) -> BatchDescriptor:
        """The same for any requests: what the recordings of pieces are kept by."""
        return BatchDescriptor(self.num_tokens, variant=self.variant)
