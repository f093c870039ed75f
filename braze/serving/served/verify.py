"""Replays compared with eager, on the step's own inputs: each so many-th one, or all.

The state that a step writes (buffers, and the rows of the caches that it names) is kept, the recording replayed, the state put back, the model
itself run without padding, and outputs and state compared. Before the replay the memory of all recordings is spoilt, and the tails that may hold
anything: what read a stale value shows. Where they differ, the first piece whose replay makes the result another is looked for, and named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from braze.cudagraphs.storages import borrowed, tensor_over
from braze.graph.private.torch_compat import pytree
from braze.serving.pieces.wrapper import CUDAGraphWrapper, Recording
from braze.serving.policy.dispatch import BatchDescriptor, Decision
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.served.compiled import Runnable
from braze.serving.served.stats import Counts
from braze.serving.step.context import ForwardContext
from braze.support import log
from braze.support.record import record

#: how far two ways to compute the same may be apart, as a share of the largest value: some hundred roundings
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}


class Verifier:
    """``share``: of replays that are compared, from 0 to 1. What it finds is told (BZ7312) and counted."""

    def __init__(self, share: float, model: nn.Module, runnable: Runnable, counts: Counts) -> None:
        self.every = round(1 / share) if share else 0
        self.model, self.runnable, self.counts = model, runnable, counts
        self._replays = 0

    def wants(self) -> bool:
        """Whether the next replay is to be compared."""
        if not self.every:
            return False
        self._replays += 1
        return self._replays % self.every == 0

    def compare(self, step: Step, context: ForwardContext) -> tuple[Any, str]:
        """The step's result, its effects done once, and what is wrong with the replay, if anything."""
        state = State(self.model, context)
        before = state.taken()
        poison(self.runnable)
        replayed = step.replayed()
        after_replay = state.taken()
        state.put(before)
        expected = step.eager()
        after_eager = state.taken()
        self.counts.verified += 1

        def wrong(result: Any, after: list[torch.Tensor]) -> str:
            return difference(result, expected) or difference(after, after_eager, "state")

        def again(run: Callable[[], Any]) -> bool:
            state.put(before)
            poison(self.runnable)
            return bool(wrong(run(), state.taken()))

        why = wrong(replayed, after_replay)
        if not why:
            state.put(after_replay)
            return replayed, ""
        why = f"{self._first_bad(step, again)}: {why}"
        state.put(after_eager)
        name = f"{step.decision.mode.name} of {step.decision.descriptor.num_tokens} tokens"
        self.counts.mismatches.append(f"{name}: {why}")
        log.warn(f"BZ7312: {name} replays something else than eager computes: {why}", "serving")
        return expected, f"a replay differed from eager: {why}"

    def _first_bad(self, step: Step, wrong: Callable[[Callable[[], Any]], bool]) -> str:
        """Where it went wrong: the module itself at the padded size, or the first piece whose replay makes the result another."""
        if wrong(step.unrecorded):
            return "the module at the padded size, without recordings"
        pieces = self.runnable.pieces()
        if step.decision.mode is not CUDAGraphMode.PIECEWISE or not pieces:
            return "the recording of the whole call"
        order: list[CUDAGraphWrapper] = []
        with _unrecorded(pieces, step.decision.descriptor, order.append):
            wrong(step.replayed)
        good, bad = 0, len(order)  # so many of them replayed give the right result, and another
        while bad - good > 1:
            middle = (good + bad) // 2
            with _unrecorded(order[middle:], step.decision.descriptor, lambda wrapper: None):
                good, bad = (good, middle) if wrong(step.replayed) else (middle, bad)
        return f"piece {order[bad - 1].name}" if order else "between the pieces"


@record
class Step:
    """One step in three ways: ``replayed`` as ``decision`` says, ``unrecorded`` at the padded size, ``eager``: the module itself, without padding."""

    decision: Decision
    replayed: Callable[[], Any]
    unrecorded: Callable[[], Any]
    eager: Callable[[], Any]


@contextlib.contextmanager
def _unrecorded(
    wrappers: Sequence[CUDAGraphWrapper],
    descriptor: BatchDescriptor,
    called: Callable[[CUDAGraphWrapper], None],
) -> Iterator[None]:
    """A block in which wrappers run instead of replaying, and leave their results where the recordings leave them."""
    patched = []
    for wrapper in wrappers:
        entry = wrapper.entries.get(descriptor)
        if entry is not None and entry.recording is not None:
            entry.recording.replay = _runs(wrapper, entry.recording, called)  # type: ignore[assignment, method-assign]
            patched.append(entry.recording)
    try:
        yield
    finally:
        for recording in patched:
            del recording.replay


def _runs(
    wrapper: CUDAGraphWrapper, recording: Recording, called: Callable[[CUDAGraphWrapper], None]
) -> Callable[[Any], Any]:
    """In place of a recording's replay."""

    def run(values: Any) -> Any:
        called(wrapper)
        results = pytree.tree_flatten(wrapper.runnable(*values))[0]
        for to, of in zip(recording.leaves, results, strict=True):
            if (
                isinstance(to, torch.Tensor)
                and isinstance(of, torch.Tensor)
                and to.data_ptr() != of.data_ptr()
            ):
                to.copy_(of)
        return recording.outputs_as_given(values, recording.plain)

    return run


class State:
    """What a step may write: the module's buffers, and the rows of the caches that its metadata names (all, where it names none)."""

    def __init__(self, model: nn.Module, context: ForwardContext) -> None:
        self.buffers = list(model.buffers())
        tensors = [
            x for x in pytree.tree_flatten(dict(context.kv_cache_data))[0] if isinstance(x, torch.Tensor)
        ]
        tensors += [x for value in context.kv_cache_data.values() for x in _held_by(value)]
        metadata = context.attn_metadata
        named = metadata.get if isinstance(metadata, Mapping) else lambda name: getattr(metadata, name, None)
        slots = named("slot_mapping")
        self.rows = None if slots is None else slots[slots >= 0].clone()
        self.caches = list({id(x): x for x in tensors}.values())

    def taken(self) -> list[torch.Tensor]:
        """A copy of it."""
        return [*(x.clone() for x in self.buffers), *(self._rows_of(x).clone() for x in self.caches)]

    def put(self, taken: list[torch.Tensor]) -> None:
        """Have it as it was when it was taken."""
        for buffer, value in zip(self.buffers, taken, strict=False):
            buffer.copy_(value)
        for cache, value in zip(self.caches, taken[len(self.buffers) :], strict=True):
            if self.rows is None or cache.dim() < 2:
                cache.copy_(value)
            else:
                _flat(cache)[self.rows] = value

    def _rows_of(self, cache: torch.Tensor) -> torch.Tensor:
        """The rows that are written."""
        return cache if self.rows is None or cache.dim() < 2 else _flat(cache)[self.rows]


def _flat(cache: torch.Tensor) -> torch.Tensor:
    """A cache by slots: of (blocks, tokens a block, heads..., dim), or of (slots, dim)."""
    return cache.view(-1, *cache.shape[2:]) if cache.dim() > 2 else cache


def _held_by(value: Any) -> list[torch.Tensor]:
    """The tensors among an object's fields."""
    fields = getattr(type(value), "__dataclass_fields__", {})
    return [x for x in (getattr(value, name) for name in fields) if isinstance(x, torch.Tensor)]


def poison(runnable: Runnable) -> None:
    """Spoil the memory of all recordings: between replays nothing there means anything."""
    for pool in runnable.pools.pools():
        for address, size, device in pool.memory():
            if size:
                memory = borrowed(address, size, device)
                tensor_over(memory, torch.uint8, 0, (size,), (1,)).fill_(255)


def difference(found: Any, expected: Any, what: str = "output") -> str:
    """The first place where two results differ beyond rounding, in words; empty where they do not."""
    ours, theirs = pytree.tree_flatten(found)[0], pytree.tree_flatten(expected)[0]
    if len(ours) != len(theirs):
        return f"{len(ours)} {what}s for {len(theirs)}"
    for place, (x, y) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
            if x is not y and x != y:
                return f"{what} {place} is {x!r}, not {y!r}"
            continue
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{what} {place} is {x.dtype} of {tuple(x.shape)}, not {y.dtype} of {tuple(y.shape)}"
        row = _first_bad_row(x, y)
        if row is not None:
            return f"{what} {place} differs from row {row} on"
    return ""


def _first_bad_row(x: torch.Tensor, y: torch.Tensor) -> int | None:
    """The first row of which an element is too far from the other's."""
    if not x.numel():
        return None
    if x.is_floating_point() or x.is_complex():
        finite = y[y.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        bad = ~torch.isclose(
            x, y, rtol=0, atol=TOLERANCE.get(x.dtype, 1e-4) * max(scale, 1e-30), equal_nan=True
        )
    else:
        bad = x != y
    if not bool(bad.any()):
        return None
    return int(bad.reshape(bad.shape[0] if bad.dim() else 1, -1).any(1).nonzero()[0])
