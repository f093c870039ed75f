"""The forward context: what a step tells a model's layers beside the call's arguments.

Each thread has its own. Python does not run again when a recording is replayed, so that only what runs outside of recordings
(attention between pieces) sees a step's context each time; what a recorded region reads is held to: see ``frozen.py``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from braze.options import near
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.fields import refuse
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.frozen import Reads, per_step, view
from braze.support.errors import InternalError, UserError

if TYPE_CHECKING:
    import torch


@dataclass
class AttentionMetaData:
    """What attention needs to know of a batch; request ``i`` has the tokens from ``cu_seqlens_q[i]`` to ``cu_seqlens_q[i + 1]``.

    ``cu_seqlens_q``: int32, (requests + 1); requests of padding have no tokens. ``seq_lens``: int32, (requests), the tokens of each in the
    cache with this step's. ``block_tables``: int32, (requests, blocks). ``slot_mapping``: int64, (tokens), where each token's keys
    and values go; -1: nowhere. ``max_seqlen_q``, ``max_seqlen_k``: bounds of the lengths, on the host. ``num_actual_tokens``: tokens without padding.
    """

    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    num_actual_tokens: int = per_step()


@dataclass
class Context:
    """What most layers ask for. ``graph_bs``: the requests after padding; ``is_draft``: a drafter's forward, not the model's."""

    positions: torch.Tensor
    is_prefill: bool = False
    batch_size: int = per_step(0)
    graph_bs: int = 0
    is_draft: bool = False


@dataclass
class DPMetadata:
    """Tokens of each data-parallel rank after padding: ``num_tokens_across_dp`` (int32, ranks, on the CPU) and the most of them."""

    num_tokens_across_dp: torch.Tensor
    max_tokens_across_dp: int


@dataclass
class SpecDecodeMetadata:
    """The draft tokens of a step that verifies them.

    ``draft_token_ids``: int64, all requests' in a row. ``num_draft_tokens``: each request's, on the host. ``logits_indices``:
    int64, the rows of the model's output that are needed; ``target_logits_indices`` and ``bonus_logits_indices``: those
    among them that verify a draft, and the last of each request.
    """

    draft_token_ids: torch.Tensor
    num_draft_tokens: tuple[int, ...]
    logits_indices: torch.Tensor
    target_logits_indices: torch.Tensor | None = None
    bonus_logits_indices: torch.Tensor | None = None


@dataclass
class ForwardContext:
    """All that a step tells its layers. Without a step: nothing, and no graphs."""

    no_compile_layers: Mapping[Any, Any] = field(default_factory=dict)
    attn_metadata: Any = None
    kv_cache_data: Mapping[str, Any] = field(default_factory=dict)
    context: Any = None
    dp_metadata: DPMetadata | None = None
    spec_decode_metadata: SpecDecodeMetadata | None = None
    cudagraph_runtime_mode: CUDAGraphMode = CUDAGraphMode.NONE
    batch_descriptor: BatchDescriptor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cudagraph_runtime_mode, CUDAGraphMode):
            raise refuse("cudagraph_runtime_mode", self.cudagraph_runtime_mode, "a CUDAGraphMode")
        if not self.cudagraph_runtime_mode.is_runtime_mode():
            raise InternalError(
                "BZ9110",
                f"a step was to run in {self.cudagraph_runtime_mode.name}",
                why="it stands for two modes, one of which a step runs in: see CUDAGraphMode.decode_mode and mixed_mode",
            )


_FIELDS = frozenset(ForwardContext.__dataclass_fields__)


class _Here(threading.local):
    """This thread's context, and what a region that it is recording reads of it."""

    current = ForwardContext()
    reads: Reads | None = None


_here = _Here()


def get_forward_context() -> ForwardContext:
    """This thread's forward context; an empty one where no step has set any. While recording, a view that notes what is read."""
    reads = _here.reads
    return _here.current if reads is None else view(_here.current, reads)


@contextlib.contextmanager
def recorded_reads() -> Iterator[Reads]:
    """A block in which a recording is made. What it reads of the context is in the result, whose ``check`` goes before each replay.

    In the block, reading what is another at each step raises UserError (BZ7301), and writing the context BZ7303.
    """
    before = _here.reads
    _here.reads = reads = Reads()
    try:
        yield reads
    finally:
        _here.reads = before


def set_forward_context(
    attn_metadata: Any = None, config: Any = None, context: Any = None, **more: Any
) -> None:
    """Begin a step on this thread. ``more``: other fields of :class:`ForwardContext`.

    ``no_compile_layers`` is ``config.compilation_config.static_forward_context`` unless given.
    """
    _here.current = _made(attn_metadata, config, context, more)


def reset_forward_context() -> None:
    """End the step: this thread's context is empty again."""
    _here.current = ForwardContext()


class forward_context:
    """A step as a block, after which the context of before is there again, also where an exception passes.

    Arguments are those of :func:`set_forward_context`; ``as`` gives the context.
    """

    __slots__ = ("_before", "_context")

    def __init__(
        self, attn_metadata: Any = None, config: Any = None, context: Any = None, **more: Any
    ) -> None:
        self._context = _made(attn_metadata, config, context, more)

    def __enter__(self) -> ForwardContext:
        self._before = _here.current
        _here.current = self._context
        return self._context

    def __exit__(self, *error: object) -> None:
        _here.current = self._before


def _made(attn_metadata: Any, config: Any, context: Any, more: dict[str, Any]) -> ForwardContext:
    if config is not None and "no_compile_layers" not in more:
        more["no_compile_layers"] = config.compilation_config.static_forward_context
    try:
        return ForwardContext(attn_metadata=attn_metadata, context=context, **more)
    except TypeError:
        for name in more:
            if name not in _FIELDS:
                told = f"a forward context has no field {name!r}"
                raise UserError("BZ7101", told, hints=[near(name, _FIELDS)]) from None
        raise
