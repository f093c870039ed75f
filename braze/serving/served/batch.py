"""The batch of a step: how many tokens and requests a call has, from its arguments and the forward context."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Any

from braze.serving.policy.data_parallel import Batch
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.fields import refuse, whole
from braze.serving.step import context as step_context
from braze.serving.step.context import AttentionMetaData, ForwardContext
from braze.support.errors import UserError


def forward_context(
    attn_metadata: Any = None,
    config: Any = None,
    context: Any = None,
    *,
    uniform_q: int | None = None,
    num_reqs: int | None = None,
    variant: Hashable = None,
    **more: Any,
) -> AbstractContextManager[ForwardContext]:
    """A step of a served model as a block: what its layers read, and what kind of batch its call has.

    ``uniform_q``: every request has so many tokens (1 where nothing is said: each row is a request that decodes). ``num_reqs``: so many
    requests, of any lengths. Both come from ``attn_metadata`` where that is an :class:`AttentionMetaData`. ``variant``:
    which of the recorded variants it is. ``more``: other fields of :class:`ForwardContext`.
    """
    if uniform_q is not None and num_reqs is not None:
        raise UserError(
            "BZ7102",
            "uniform_q contradicts num_reqs",
            hints=["uniform_q= for batches that decode, num_reqs= else"],
        )
    uniform_q = None if uniform_q is None else whole("uniform_q", uniform_q)
    num_reqs = None if num_reqs is None else whole("num_reqs", num_reqs, 0)
    try:
        hash(variant)
    except TypeError as error:
        raise refuse("variant", variant, "a value that can be hashed") from error
    more.setdefault("batch_descriptor", BatchDescriptor(0, num_reqs, uniform_q or 0, variant))
    return step_context.forward_context(attn_metadata, config, context, **more)


def batch_of(context: ForwardContext, tokens: int) -> Batch:
    """The batch of a call with so many tokens; UserError (BZ7307) where they are no whole requests."""
    said = context.batch_descriptor or BatchDescriptor(0)
    metadata = context.attn_metadata
    q, requests = said.uniform_query_len, said.num_reqs
    if q == 0 and requests is None:
        if isinstance(metadata, AttentionMetaData):
            return Batch(tokens, metadata.seq_lens.shape[0], metadata.max_seqlen_q, said.variant)
        q = 1
    if q:
        if tokens % q:
            raise UserError(
                "BZ7307",
                f"a call of {tokens} tokens has no requests of {q} tokens each",
                hints=["forward_context(num_reqs=...) for requests of different lengths"],
            )
        return Batch(tokens, tokens // q, q, said.variant)
    assert requests is not None
    if requests > tokens:
        raise UserError(
            "BZ7307",
            f"a call of {tokens} tokens has no {requests} requests",
            hints=["each has a token at least"],
        )
    # the most that one of them may have: uniform only where all have one
    return Batch(tokens, requests, tokens - requests + 1 if requests else 0, said.variant)
