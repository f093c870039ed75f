"""Buffers that keep their addresses: a step's inputs are staged into them, and a model gets views of the padded size.

A slot says how its tail is filled, the rows from the real size to the padded one. All inputs of a step are copied by one launch for each
type; a tail is filled only where an earlier, larger step has left something there, so that steady decoding fills none.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import torch

from braze.graph.private.torch_compat import copy_all
from braze.options import near
from braze.support.errors import UserError
from braze.support.record import record


class PaddingPolicy(enum.Enum):
    """What the tail of a slot holds."""

    #: what an earlier step left there: for inputs whose padded rows reach nothing
    KEEP = "keep"
    #: the slot's ``pad``, at each step
    SENTINEL = "sentinel"
    #: zeros, at each step
    ZERO = "zero"
    #: the slot's ``pad`` from when the buffer is made until a step writes there
    FILL_ONCE = "fill_once"
    #: what the caller gave, who pads by himself
    COPY = "copy"


#: as ``pad``: the tail repeats the last real row, as offsets of requests without tokens do
LAST = "last"


@record
class Slot:
    """One input: its dimension that varies, and its tail.

    ``pad``: what SENTINEL and FILL_ONCE fill with, a number or :data:`LAST`. ``unit``: what the dimension counts, ``"tokens"`` or ``"requests"``;
    ``extra``: rows beyond that (1 for offsets). ``written``: the model writes to it, so that its tail is filled each time.
    """

    dim: int = 0
    pad: float | int | str = 0
    policy: PaddingPolicy = PaddingPolicy.SENTINEL
    unit: str = "tokens"
    extra: int = 0
    written: bool = False


@record
class Extent:
    """A step's sizes: tokens and requests."""

    tokens: int
    requests: int

    def of(self, slot: Slot) -> int:
        """Rows of a slot."""
        return (self.tokens if slot.unit == "tokens" else self.requests) + slot.extra


@record
class _Row:
    """Where one input of a step goes: ``target`` for what comes, ``view`` for the model, ``last`` as (tail, row that it repeats)."""

    name: str
    slot: Slot
    target: torch.Tensor
    view: torch.Tensor
    last: tuple[torch.Tensor, torch.Tensor] | None
    filled: bool
    start: int
    stop: int


#: sizes of steps whose places are kept
MOST_PLANS = 4096


class StaticBuffers:
    """A buffer for each slot, of the largest size, made when its first input comes.

    ``limits``: the largest step. Raises BZ7304 for slots that cannot be, BZ7305 for inputs that do not fit theirs.
    """

    def __init__(
        self, slots: Mapping[str, Slot], limits: Extent, device: torch.device | str | None = None
    ) -> None:
        for name, slot in slots.items():
            check_slot(name, slot)
        self.slots, self.limits, self.device = dict(slots), limits, device
        self._buffers: dict[str, torch.Tensor] = {}
        #: rows from which on a tail is as it is to be
        self._dirty: dict[str, int] = {}
        self._rows: dict[Any, tuple[_Row, ...]] = {}

    def stage(
        self, values: Mapping[str, torch.Tensor], real: Extent, padded: Extent
    ) -> dict[str, torch.Tensor]:
        """Copy a step's inputs into their buffers and fill the tails; views of the padded sizes.

        ``values``: by slot, with ``real`` rows (for COPY with the padded ones). One that is its buffer's view is not copied. UserError (BZ7305)
        for a tensor of another size, type or layout, BZ7306 for a step that is larger than the limits.
        """
        key = real.tokens, real.requests, padded.tokens, padded.requests, *values
        rows = self._rows.get(key) or self._planned(key, values, real, padded)
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for row, value in zip(rows, values.values(), strict=True):
            target = row.target
            if value.shape != target.shape or value.dtype != target.dtype:
                raise _misfit(row.name, value, target)
            if target.data_ptr() != value.data_ptr() or target.stride() != value.stride():
                targets.append(target)
                sources.append(value)
        if targets:
            copy_all(targets, sources)
        for row in rows:
            if row.last is not None:
                row.last[0].copy_(row.last[1])
            elif row.filled:
                self._fill_tail(row)
        return {row.name: row.view for row in rows}

    def _planned(
        self, key: Any, values: Mapping[str, torch.Tensor], real: Extent, padded: Extent
    ) -> tuple[_Row, ...]:
        """Where the inputs of a step of these sizes go; kept, since steps of a size come again and again."""
        if padded.tokens > self.limits.tokens or padded.requests > self.limits.requests:
            raise UserError(
                "BZ7306",
                f"a step of {padded.tokens} tokens and {padded.requests} requests is over the buffers' limits",
                why=f"they hold {self.limits.tokens} tokens and {self.limits.requests} requests",
            )
        rows = []
        for name, value in values.items():
            slot = self._slot(name)
            start, stop = real.of(slot), padded.of(slot)
            count = stop if slot.policy is PaddingPolicy.COPY else start
            buffer = self._buffer(name, slot, value, count)
            last = None
            if slot.pad == LAST and stop > start > 0:
                last = buffer.narrow(slot.dim, start, stop - start), buffer.narrow(slot.dim, start - 1, 1)
            filled = slot.pad != LAST and slot.policy in (PaddingPolicy.SENTINEL, PaddingPolicy.ZERO)
            target, view = buffer.narrow(slot.dim, 0, count), buffer.narrow(slot.dim, 0, stop)
            rows.append(_Row(name, slot, target, view, last, filled, start, stop))
        if len(self._rows) > MOST_PLANS:
            self._rows.clear()
        self._rows[key] = tuple(rows)
        return self._rows[key]

    def view(self, name: str, size: Extent) -> torch.Tensor:
        """The rows of a step in a slot's buffer, to be written in place; BZ7305 where no input has come yet."""
        slot = self._slot(name)
        if name not in self._buffers:
            raise UserError("BZ7305", f"slot {name!r} has no buffer yet", hints=["stage an input first"])
        return self._buffers[name].narrow(slot.dim, 0, size.of(slot))

    def rows(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """As many rows of a slot's buffer as a tensor has."""
        dim = self._slot(name).dim
        return self._buffers[name].narrow(dim, 0, like.shape[dim])

    def written(self, name: str) -> None:
        """Fill the tail of a slot at each step from now on: the model writes to it."""
        self.slots[name] = dataclasses.replace(self._slot(name), written=True)
        self._rows.clear()

    def declare(self, name: str, slot: Slot, value: torch.Tensor) -> None:
        """Make a slot and its buffer, like ``value`` but of the largest size, unless they are there."""
        if name not in self.slots:
            check_slot(name, slot)
            self.slots[name] = slot
        if not self.has(name):
            self._buffer(name, slot, value, value.shape[slot.dim])

    def has(self, name: str) -> bool:
        """Whether a slot has its buffer; one that was declared may not, where that was interrupted or refused."""
        return name in self._buffers

    def reset(self) -> None:
        """Fill all buffers as when they were made: a capture then writes to nothing that lives (``slot_mapping`` is -1 everywhere)."""
        for name, buffer in self._buffers.items():
            buffer.fill_(_made_with(self.slots[name]))
            self._dirty[name] = 0

    def poison(self, real: Extent) -> None:
        """Spoil the tails that may hold anything (KEEP), for a check that nothing of them matters: NaN, or for integers the first row."""
        for name, buffer in self._buffers.items():
            slot = self.slots[name]
            rows = real.of(slot)
            if slot.policy is not PaddingPolicy.KEEP or not 0 < rows < buffer.shape[slot.dim]:
                continue
            tail = buffer.narrow(slot.dim, rows, buffer.shape[slot.dim] - rows)
            if buffer.is_floating_point() or buffer.is_complex():
                tail.fill_(float("nan"))
            else:
                tail.copy_(buffer.narrow(slot.dim, 0, 1))

    def held(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.untyped_storage().nbytes() for buffer in self._buffers.values())

    def _slot(self, name: str) -> Slot:
        if name not in self.slots:
            raise UserError("BZ7305", f"there is no slot {name!r}", hints=[near(name, self.slots)])
        return self.slots[name]

    def _buffer(self, name: str, slot: Slot, value: torch.Tensor, rows: int) -> torch.Tensor:
        """The buffer of a slot, made for the first value and held to by all others."""
        buffer = self._buffers.get(name)
        if buffer is None:
            shape = list(value.shape)
            if not -value.dim() <= slot.dim < value.dim():
                raise UserError(
                    "BZ7305", f"slot {name!r} varies in dimension {slot.dim}, and its input has {value.dim()}"
                )
            shape[slot.dim] = self.limits.of(slot)
            with torch.inference_mode(False):
                buffer = torch.full(
                    shape, _made_with(slot), dtype=value.dtype, device=self.device or value.device
                )
            self._dirty[name] = 0
            self._buffers[name] = buffer
        wanted = buffer.narrow(slot.dim, 0, rows)
        if value.shape != wanted.shape or value.dtype != wanted.dtype:
            raise _misfit(name, value, wanted)
        return buffer

    def _fill_tail(self, row: _Row) -> None:
        """Fill the rows beyond the real size; those from ``_dirty`` on hold the pad already."""
        start, dirty = row.start, self._dirty[row.name]
        if dirty > start:
            buffer = self._buffers[row.name]
            buffer.narrow(row.slot.dim, start, dirty - start).fill_(_made_with(row.slot))
        self._dirty[row.name] = row.stop if row.slot.written else start


def _misfit(name: str, value: torch.Tensor, wanted: torch.Tensor) -> UserError:
    return UserError(
        "BZ7305",
        f"the input of slot {name!r} is {value.dtype} of {tuple(value.shape)}",
        why=f"this step has {wanted.dtype} of {tuple(wanted.shape)}",
        hints=["Slot(dim=, unit=, extra=) says which dimension varies, and with what"],
    )


def _made_with(slot: Slot) -> Any:
    """What a buffer is filled with at first."""
    number = isinstance(slot.pad, (int, float)) and slot.policy in (
        PaddingPolicy.SENTINEL,
        PaddingPolicy.FILL_ONCE,
    )
    return slot.pad if number else 0


def check_slot(name: str, slot: Slot) -> None:
    """Refuse a slot that says what cannot be."""
    if not isinstance(slot, Slot):
        raise UserError("BZ7304", f"slots[{name!r}] is {slot!r}", hints=["give a Slot(dim=0, pad=-1)"])
    if slot.unit not in ("tokens", "requests"):
        raise UserError(
            "BZ7304",
            f"slots[{name!r}] counts {slot.unit!r}",
            hints=[near(str(slot.unit), ("tokens", "requests"))],
        )
    number = isinstance(slot.pad, (int, float)) and not isinstance(slot.pad, bool)
    if not number and slot.pad != LAST:
        raise UserError("BZ7304", f"slots[{name!r}] pads with {slot.pad!r}", hints=["a number, or 'last'"])
    if slot.pad == LAST and slot.policy is not PaddingPolicy.SENTINEL:
        raise UserError(
            "BZ7304",
            f"slots[{name!r}] pads with its last row by {slot.policy.name}",
            hints=["it needs PaddingPolicy.SENTINEL"],
        )
    if slot.policy is PaddingPolicy.ZERO and slot.pad != 0:
        raise UserError(
            "BZ7304",
            f"slots[{name!r}] pads with {slot.pad!r} and with zeros",
            hints=["PaddingPolicy.SENTINEL"],
        )
    if slot.extra < 0:
        raise UserError("BZ7304", f"slots[{name!r}] has {slot.extra} rows extra", hints=["0 or more"])
