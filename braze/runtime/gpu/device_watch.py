"""Notice on a GPU when tensors that a graph takes for constant have changed.

As ``watch.py`` does on the CPU, by data pointers, version counters, and a sample of the numbers, since writes through ``.data``
leave the counters alone. What lies on a GPU is looked at there: a kernel of one program compares the samples in the
stream's order, and the host does not wait for its answer before it has launched the whole graph. Only then it waits for
that kernel, not for the graph; and where a constant has changed, the graph runs again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze import native
from braze.runtime.libraries import cache
from braze.runtime.memory.watch import PerTensors, counters_of, held
from braze.runtime.triton import triton_load
from braze.runtime.triton.triton_build import Job
from braze.support.record import record

#: numbers of each tensor that are looked at
SAMPLES = 16
_BLOCK = 1024

#: ``table``: the places of n numbers, then their bytes; ``words``: what they were; ``differ``: whether one is another now
SOURCE = f'''
"""Numbers of many tensors beside what they were."""

import triton
import triton.language as tl

SAMPLES, BLOCK = {SAMPLES}, {_BLOCK}


@triton.jit
def sample(table, words, differ, n, WRITE: tl.constexpr, BLOCK: tl.constexpr):
    changed = tl.zeros([BLOCK], tl.int32)
    for first in range(0, n, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < n
        place = tl.load(table + i, mask=inside, other=0)
        size = tl.load(table + n + i, mask=inside, other=0)
        word = tl.load(place.to(tl.pointer_type(tl.int8)), mask=size == 1, other=0).to(tl.int64)
        word += tl.load(place.to(tl.pointer_type(tl.int16)), mask=size == 2, other=0).to(tl.int64)
        word += tl.load(place.to(tl.pointer_type(tl.int32)), mask=size == 4, other=0).to(tl.int64)
        word += tl.load(place.to(tl.pointer_type(tl.int64)), mask=size == 8, other=0)
        if WRITE:
            tl.store(words + i, word, mask=inside)
        else:
            known = tl.load(words + i, mask=inside, other=0)
            changed = tl.maximum(changed, (inside & (word != known)).to(tl.int32))
    tl.store(differ, tl.max(changed, 0))
'''


class Device:
    """A GPU, as far as a watch needs it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def current(self) -> Any:
        """A context in which launches go to it."""
        return torch.cuda.device(self.name)

    def is_recording(self) -> bool:
        """Whether launches go into a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

    def new_answer(self) -> tuple[torch.Tensor, Any]:
        """Memory of the host that the device can write, and an event."""
        return torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=True), torch.cuda.Event()

    def wait(self) -> None:
        """Until it is idle: streams that use what is let go of, or did not order what is made, are done."""
        torch.cuda.synchronize(self.name)


@record
class _State:
    """What was made, and of what: version counters and places of the tensors, ``table`` and ``words`` for the kernel; what holds the counters."""

    made: Any
    counters: bytes
    held: tuple[torch.Tensor, ...]
    places: tuple[int, ...]
    table: torch.Tensor
    words: torch.Tensor


class Look:
    """One look at the samples, under way."""

    def __init__(self, watch: DeviceWatch, state: _State) -> None:
        self._watch = watch
        self._state = state
        self._answer = watch.ask(state)

    def differs(self) -> bool:
        """Whether a constant has changed: waits for the kernel. What was made is then made anew at the next call."""
        differ, event = self._answer
        event.synchronize()
        changed = bool(differ.item())
        self._watch.answered(self._answer, self._state if changed else None)
        return changed


class Unchanged:
    """The look at what was made in this very call."""

    def differs(self) -> bool:
        return False


UNCHANGED = Unchanged()


class DeviceWatch:
    """Something made from tensors on a GPU, made again when one of them changes.

    ``items``: bytes of each tensor's memory, and of each number in it. ``made, look = watch(tensors)``; what is computed of
    ``made`` counts once ``look.differs()`` has said no. ``watch.now(tensors)`` waits, for graphs that must not run twice.
    """

    def __init__(
        self,
        items: Sequence[tuple[int, int]],
        remake: Callable[[Sequence[torch.Tensor]], Any],
        device: Device,
    ) -> None:
        self._items = tuple(items)
        self._remake = remake
        self._device = device
        self._lock = threading.Lock()
        #: the last one's, and each one's
        self._state: _State | None = None
        self._states: PerTensors[_State] = PerTensors()
        self._idle: list[tuple[torch.Tensor, Any]] = []
        native.bind_torch()

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, Look | Unchanged]:
        if self._device.is_recording():
            return self._remake(tensors), UNCHANGED  # what is replayed reads the tensors as they are then
        try:
            counters = counters_of(tensors)
        except RuntimeError:  # an inference tensor: "do not track version counter"
            return self._remake(tensors), UNCHANGED
        places = tuple([t.data_ptr() for t in tensors])
        state = self._state
        if state is None or counters != state.counters or places != state.places:
            state = self._states.get(tensors, counters)
            if state is None or counters != state.counters or places != state.places:
                return self._refresh(tensors, counters, places).made, UNCHANGED
            self._state = state  # others had their turn since
        return state.made, Look(self, state) if places else UNCHANGED

    def now(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What is made of the tensors as they are."""
        made, look = self(tensors)
        return self(tensors)[0] if look.differs() else made

    def ask(self, state: _State) -> tuple[torch.Tensor, Any]:
        """Launch the comparison; where its answer will be, and the event after which it is there."""
        try:
            answer = self._idle.pop()
        except IndexError:
            answer = self._device.new_answer()
        with self._device.current():
            _kernel(False)(state.table, state.words, answer[0], state.words.numel())
            answer[1].record()
        return answer

    def answered(self, answer: tuple[torch.Tensor, Any], changed: _State | None) -> None:
        """Take an answer back; forget the state in which a tensor has changed."""
        self._idle.append(answer)
        if changed is not None:
            self._states.drop(changed)
            if self._state is changed:
                self._state = None

    def _refresh(self, tensors: Sequence[torch.Tensor], counters: bytes, places: tuple[int, ...]) -> _State:
        with self._lock, torch.inference_mode(False), torch.no_grad():
            self._device.wait()
            made = self._remake(tensors)
            table = sampled(places, self._items).to(self._device.name)
            words = torch.empty(table.shape[1], dtype=torch.int64, device=self._device.name)
            if words.numel():
                differ = torch.zeros(1, dtype=torch.int32, device=self._device.name)
                with self._device.current():
                    _kernel(True)(table, words, differ, words.numel())
            self._device.wait()
            state = _State(made, counters, held(tensors), places, table, words)
            self._states.put(tensors, counters, state)
            self._state = state
            return state


def sampled(places: Sequence[int], items: Sequence[tuple[int, int]]) -> torch.Tensor:
    """The addresses of the numbers that are looked at, and their bytes: int64 of (2, n)."""
    rows = []
    for place, (size, item) in zip(places, items, strict=True):
        count = size // item
        some = min(SAMPLES, count)
        rows += [(place + k * count // some * item, item) for k in range(some)]
    return torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(-1, 2).t().contiguous()


_kernels: dict[bool, Callable[..., Any]] = {}


def _kernel(write: bool) -> Callable[..., Any]:
    """The kernel, that writes the samples or compares them."""
    if write not in _kernels:
        path = cache.source_file(SOURCE)
        constants = (("WRITE", int(write)), ("BLOCK", _BLOCK))
        job = Job(str(path), "sample", ("*i64", "*i64", "*i32"), (), constants, 8, 1)
        _kernels[write] = triton_load.load(job, ("n",), "1")
    return _kernels[write]
