"""Checkpointed regions in graphs: a subgraph whose values the backward computes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.checkpoint import checkpoint


def checkpointed(
    function: Callable[..., tuple[Any, ...]],
    region: int,
    preserve_rng_state: bool,
    determinism_check: str,
    arguments: Sequence[Any],
    others: Sequence[Any],
) -> tuple[Any, ...]:
    """The subgraph's results; as PyTorch's checkpoint, between whose two kinds only what they keep differs.

    ``arguments`` must not be written until the backward; ``others`` are used as they will be then.
    ``region`` numbers the regions of a graph: stages that take the subgraph in tag its nodes with it.
    """

    def call(*values: Any) -> Any:
        return function(*values, *others)

    made: Any = checkpoint(
        call,
        *arguments,
        use_reentrant=False,
        preserve_rng_state=preserve_rng_state,
        determinism_check=determinism_check,
    )
    return tuple(made)
