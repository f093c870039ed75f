"""Checkpointed regions in graphs: a subgraph whose values the backward computes again, or those that a policy says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._ops import OpOverload
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)


class Policy:
    """A function ``(context, operator, *args, **kwargs) -> CheckpointPolicy`` that decides what a region keeps."""

    def __init__(self, function: Callable[..., Any], allow_cache_entry_mutation: bool = False) -> None:
        self.function = function
        self.allow_cache_entry_mutation = allow_cache_entry_mutation

    def contexts(self) -> Any:
        """What PyTorch's checkpoint takes as the result of its ``context_fn``."""
        return create_selective_checkpoint_contexts(self.function, self.allow_cache_entry_mutation)

    def of(self, op: OpOverload, args: Any, kwargs: Any) -> CheckpointPolicy:
        """What is to become of one operator's results."""
        found = self.function(SelectiveCheckpointContext(is_recompute=False), op, *args, **kwargs)
        if found is True:
            return CheckpointPolicy.MUST_SAVE
        return found if isinstance(found, CheckpointPolicy) else CheckpointPolicy.PREFER_RECOMPUTE


#: policies whose values are kept
SAVING = frozenset({CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE})


def saving(ops: Sequence[OpOverload]) -> Callable[..., CheckpointPolicy]:
    """The policy that a list of operators stands for: these are kept."""
    kept = frozenset(ops)

    def policy(context: Any, op: Any, /, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def checkpointed(
    function: Callable[..., tuple[Any, ...]],
    policy: Policy | None,
    region: int,
    preserve_rng_state: bool,
    determinism_check: str,
    arguments: Sequence[Any],
    others: Sequence[Any],
) -> tuple[Any, ...]:
    """The subgraph's results; as PyTorch's checkpoint, between whose two kinds only what they keep differs.

    ``arguments`` must not be written until the backward; ``others`` are used as they will be then.
    ``region`` numbers the regions of a graph: stages that take the subgraph in tag its nodes with it. ``policy``: what
    of the region is kept after all.
    """

    def call(*values: Any) -> Any:
        return function(*values, *others)

    chosen: dict[str, Any] = {"context_fn": policy.contexts} if policy is not None else {}
    made: Any = checkpoint(
        call,
        *arguments,
        use_reentrant=False,
        **chosen,
        preserve_rng_state=preserve_rng_state,
        determinism_check=determinism_check,
    )
    return tuple(made)
