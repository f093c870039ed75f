"""Notice when tensors that a graph takes for constant have changed.

A tensor has changed when its data pointer or version counter moves or is another one, or when a sample of its words differs:
writes through ``.data`` and through NumPy leave the counter alone (updates of averaged weights are often
written so). A tensor made in inference mode has no counter; then nothing is taken for unchanged.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from braze import native
from braze.support.record import record

#: f(tensors, address of their sums, (write?, number, bytes of each...)) -> how many sums differ
Sampler = Callable[[Sequence[torch.Tensor], int, Sequence[int]], int]
#: f(tensors, which of them changed, what was made of them before) -> what is kept
Remake = Callable[[Sequence[torch.Tensor], Sequence[bool], Any], Any]

T = TypeVar("T")


def counters_of(tensors: Sequence[torch.Tensor]) -> bytes:
    """Which counters of writes tensors have, and their numbers."""
    return native.counters(tensors if type(tensors) is tuple else tuple(tensors))


def held(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Tensors without memory that share the counters of these: no counter of another tensor takes a place while they live.

    Nothing refers to the tensors themselves: `torch.utils.swap_tensors` refuses one that somebody does, be it weakly.
    """
    found = []
    for tensor in tensors:
        name = tensor.detach()
        name.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        found.append(name)
    return tuple(found)


@record
class _Entry(Generic[T]):
    """A value, which holds the counters of its tensors; these, known by ``numbers``, begin at ``places`` of ``memories``, which end with all tensors over them."""

    value: T
    numbers: tuple[int, ...]
    places: tuple[int, ...]
    memories: tuple[weakref.ref[torch.UntypedStorage], ...]

    def moved_to(self, numbers: tuple[int, ...], places: tuple[int, ...]) -> bool:
        """Whether one of the tensors is elsewhere by now (``p.data = other``): what is written meanwhile where it was is no write of its own."""
        return any(
            mine == other and was != at
            for mine, other, was, at in zip(self.numbers, numbers, self.places, places, strict=True)
        )


class PerTensors(Generic[T]):
    """A value for each set of tensors, as long as their memories live: equal parts of a model share a graph, and each brings its own weights.

    Tensors are known by their counters of writes, and by what they see of the memory. Who shares the counter is the same tensor by another
    name; another over the same memory, which counts for itself, is not.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, tuple[int, ...]], _Entry[T]] = {}

    def get(self, tensors: Sequence[torch.Tensor], counters: bytes) -> T | None:
        """The value of these very tensors."""
        found = self._kept.get(_key(tensors, counters))
        return None if found is None else found.value

    def put(self, tensors: Sequence[torch.Tensor], counters: bytes, value: T) -> None:
        """Keep a value for them; values of memory that is gone, that these are seen in instead, or that one of them was given other memory for, are let go of."""
        mine = _key(tensors, counters)
        numbers, places = tuple(map(id, tensors)), tuple([t.data_ptr() for t in tensors])
        for key, known in list(self._kept.items()):
            elsewhere = key[0] == mine[0] and known.moved_to(numbers, places)
            if elsewhere or known.places == places or any(memory() is None for memory in known.memories):
                del self._kept[key]
        memories = tuple([weakref.ref(t.untyped_storage()) for t in tensors])
        self._kept[mine] = _Entry(value, numbers, places, memories)

    def drop(self, value: T) -> None:
        """Keep a value no longer."""
        for key in [k for k, known in self._kept.items() if known.value is value]:
            del self._kept[key]


def _key(tensors: Sequence[torch.Tensor], counters: bytes) -> tuple[bytes, tuple[int, ...]]:
    """Which counters they are, whatever their numbers, and where in their memories the tensors begin."""
    which = b"".join([counters[i : i + native.WHICH] for i in range(0, len(counters), native.COUNTER)])
    return which, tuple([int(t.storage_offset()) for t in tensors])


#: what was made, by which counters, the address of the sums with the tensor that they are in, and what holds the counters
_State = tuple[Any, bytes | None, int, torch.Tensor, tuple[torch.Tensor, ...]]


class Watch:
    """Something made from tensors, made again when one of them changes: ``made = watch(tensors)``.

    Several sets of tensors may take turns: what was made of each is kept.
    """

    def __init__(self, sizes: Sequence[int], sampler: Sampler, remake: Remake) -> None:
        self._sizes = tuple(sizes)
        self._sampler = sampler
        self._remake = remake
        self._look = (0, len(self._sizes), *self._sizes)
        self._lock = threading.Lock()
        # one tuple, replaced as a whole: a call on another thread sees a result that belongs to its sums
        sums = torch.zeros(max(len(self._sizes), 1), dtype=torch.int64, device="cpu")
        self._none: _State = (None, None, sums.data_ptr(), sums, ())
        self._state: _State = self._none
        self._kept: PerTensors[_State] = PerTensors()
        native.bind_torch()

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        made, counters, sums, _, _ = self._state
        try:
            now = counters_of(tensors)
        except RuntimeError:  # an inference tensor: "do not track version counter"
            return self._remake(tensors, [True] * len(tensors), None)
        if now != counters or self._sampler(tensors, sums, self._look):
            return self._refresh(tensors, now)
        return made

    def _refresh(self, tensors: Sequence[torch.Tensor], now: bytes) -> Any:
        with self._lock, torch.inference_mode(False), torch.no_grad():
            before = self._kept.get(tensors, now) or self._none
            made, counters, address, old, _ = before
            if now == counters and not self._sampler(tensors, address, self._look):
                self._state = before  # others had their turn since
                return made
            sums = old.clone()
            changed = []
            for k, tensor in enumerate(tensors):
                moved = self._sampler((tensor,), sums.data_ptr() + 8 * k, (1, 1, self._sizes[k]))
                mine = slice(native.COUNTER * k, native.COUNTER * (k + 1))
                changed.append(counters is None or counters[mine] != now[mine] or bool(moved))
            made = self._remake(tensors, changed, before[0])
            self._state = made, now, sums.data_ptr(), sums, held(tensors)
            self._kept.put(tensors, now, self._state)
            return made
