"""A recording's outputs: handed out over its own memory, and known to be alive as long as anybody holds that memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze import native
from braze.cudagraphs.storages import overlaps_itself, tensor_over, uses
from braze.support.layouts import span

Maker = Callable[[Sequence[Any]], Any]


class Held:
    """A piece of memory that a recording writes and its callers see. It is alive while others than the recording hold it.

    A caller may also give its storage other memory (``resize_``) or let others see it without holding it (a lazy clone, another
    process): it counts as alive from then on, so that it is not written where it was. ``apart``: it lies in no pool, and no other recording writes it.
    """

    __slots__ = ("_idle", "_named", "_place", "apart", "storage")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.apart = False
        self._idle = self._named = 0
        self._place: Any = b""

    def settle(self) -> None:
        """Take those who hold it now for the recording."""
        self._idle, self._named = uses(self.storage), sys.getrefcount(self.storage)
        self._place = _place(self.storage)

    def row(self) -> tuple[Held, torch.UntypedStorage, int, int, int, bytes, bool]:
        """The same for the C core, which looks itself: its own reference aside, ``sys.getrefcount`` counts one more."""
        return self, self.storage, self.storage._cdata, self._idle, self._named - 1, self._place, self.apart

    def alive(self) -> bool:
        """Whether a tensor, a view, or a graph of autograd sees it, or the program has it as a storage."""
        held = uses(self.storage) > self._idle or sys.getrefcount(self.storage) > self._named
        return held or self.moved()

    def moved(self) -> bool:
        """Whether the storage has other memory than it had, or has let others see it."""
        return bool(_place(self.storage) != self._place)


def _place(storage: torch.UntypedStorage) -> Any:
    """Where its memory is, and who lets go of it; without the C core, where it is and how much."""
    if native.replays_natively():
        return native.storage_place(storage._cdata)
    return storage.data_ptr(), storage.nbytes()


class OfMemory:
    """An output over memory of the recording: a new tensor each time, which is no view. It counts writes with ``beside``, another over that memory."""

    def __init__(
        self, result: torch.Tensor, storage: torch.UntypedStorage, beside: OfMemory | None = None
    ) -> None:
        layout = result.dtype, int(result.storage_offset()), tuple(result.shape), result.stride()
        self._layout, self._storage = layout, storage
        #: all of that memory: what is made of it has one counter of writes
        self._whole: torch.Tensor = _whole(storage) if beside is None else beside._whole
        self.alone = beside is None
        if beside is not None:
            beside.alone = False
        #: tensors over that memory, outside inference mode and inside, for the C core to make others of
        self.like = _part(self._whole, layout), _in_inference(storage, layout)

    def __call__(self, inputs: Sequence[Any]) -> torch.Tensor:
        if torch.is_inference_mode_enabled():
            return tensor_over(self._storage, *self._layout)
        return self.like[0].detach()

    def fills(self) -> bool:
        """Whether it is all of its memory, each element once."""
        x = self.like[0]
        whole = x.numel() == span(x.shape, x.stride()) and not overlaps_itself(x.shape, x.stride())
        return whole and x.storage_offset() == 0 and self._storage.nbytes() == x.numel() * x.element_size()

    def copying(self) -> tuple[Callable[[], torch.Tensor], int, int, Maker]:
        """How the C core makes one in memory of its own: see ``Outputs.copying``."""
        x = self.like[0]
        sizes, strides, dtype, place = tuple(x.shape), x.stride(), x.dtype, str(x.device)

        def fresh() -> torch.Tensor:
            if place == "cpu":
                return native.empty_strided(sizes, strides, dtype=dtype)
            return native.empty_strided(sizes, strides, dtype=dtype, device=place)

        return fresh, x.data_ptr(), self._storage.nbytes(), lambda inputs: fresh().copy_(x)


def _whole(storage: torch.UntypedStorage) -> torch.Tensor:
    return tensor_over(storage, torch.uint8, 0, (storage.nbytes(),), (1,))


def _part(whole: torch.Tensor, layout: Any) -> torch.Tensor:
    """A tensor of this layout over the memory of all of its bytes, whose writes it counts."""
    dtype, offset, sizes, strides = layout
    elements = whole[: whole.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    return elements.as_strided(sizes, strides, offset).detach()


def _in_inference(storage: torch.UntypedStorage, layout: Any) -> torch.Tensor:
    with torch.inference_mode():
        return tensor_over(storage, *layout)


class Outputs:
    """Makers of the outputs, from what the call gave (``results``) for ``values`` as its inputs."""

    def __init__(self, results: Sequence[Any], values: Sequence[Any]) -> None:
        given = [(i, x) for i, x in enumerate(values) if isinstance(x, torch.Tensor)]
        same = {id(x): i for i, x in given}
        inputs = {_number(x): i for i, x in given}
        found: dict[int, Held] = {}
        first: dict[int, OfMemory] = {}
        self._make: list[Maker] = []
        for result in results:
            if not isinstance(result, torch.Tensor):
                self._make.append(_constant(result))
            elif result.numel() == 0:
                self._make.append(_of_nothing(result))
            elif _number(result) in inputs:
                i = same.get(id(result), inputs[_number(result)])
                self._make.append(_of_input(result, i, values[i]))
            else:
                number = _number(result)
                held = found.setdefault(number, Held(result.untyped_storage()))
                made = OfMemory(result, held.storage, first.get(number))
                first.setdefault(number, made)
                self._make.append(made)
        self.held = tuple(found.values())

    def settle(self, apart: frozenset[int]) -> None:
        """To be called when nobody but the recording holds its results; ``apart``: where those lie that are in no pool."""
        for held in self.held:
            held.apart = held.storage.data_ptr() in apart
            held.settle()

    def makers(self) -> tuple[Any, ...]:
        """For each output what the C core makes it of: two tensors like it, or a function of the inputs.

        What shares memory with another output counts writes with it, which the core's tensors do not.
        """
        return tuple(
            [make.like if isinstance(make, OfMemory) and make.alone else make for make in self._make]
        )

    def copying(self) -> tuple[Any, ...] | None:
        """The same where they are copied out: what makes a tensor, where to copy from, how many bytes, and a function that does all of it. None where one
        does not fill memory of its own, or shares it with another."""
        over = [make for make in self._make if isinstance(make, OfMemory)]
        if len(over) != len(self.held) or not all(make.fills() for make in over):
            return None
        return tuple([make.copying() if isinstance(make, OfMemory) else make for make in self._make])

    def tensors(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs of the call with these inputs."""
        return tuple([make(inputs) for make in self._make])

    def copies(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], list[Held]]:
        """The same in memory of their own, but for those that are the caller's, and that memory; views of one memory stay so."""
        mine = {held.storage._cdata for held in self.held}
        copied: dict[int, tuple[Held, torch.Tensor]] = {}
        outputs = tuple(
            [
                _copied(x, copied) if isinstance(x, torch.Tensor) and _number(x) in mine else x
                for x in self.tensors(inputs)
            ]
        )
        return outputs, [held for held, _ in copied.values()]


def _number(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def _constant(value: Any) -> Maker:
    return lambda inputs: value


def _of_nothing(result: torch.Tensor) -> Maker:
    """An output without elements has no memory that could be held."""
    sizes, strides, kind = tuple(result.shape), result.stride(), (result.dtype, result.device)
    return lambda inputs: torch.empty_strided(sizes, strides, dtype=kind[0], device=kind[1])


def _of_input(result: torch.Tensor, i: int, value: torch.Tensor) -> Maker:
    """An output that is an input, or sees its memory."""
    if result is value:
        return lambda inputs: inputs[i]
    sizes, strides = tuple(result.shape), result.stride()
    further = result.storage_offset() - value.storage_offset()
    return lambda inputs: inputs[i].as_strided(sizes, strides, inputs[i].storage_offset() + further)


def _copied(x: torch.Tensor, copied: dict[int, tuple[Held, torch.Tensor]]) -> torch.Tensor:
    found = copied.get(_number(x))
    if found is None:
        held = Held(x.untyped_storage().clone())
        held.settle()
        found = copied[_number(x)] = held, _whole(held.storage)
    return _part(found[1], (x.dtype, int(x.storage_offset()), x.shape, x.stride()))
