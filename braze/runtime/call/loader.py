"""A host module's text and its library -> the function that runs the graph."""

from __future__ import annotations

import contextlib
import itertools
import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from braze import native
from braze.runtime.call.boxed import Boxed, boxed
from braze.runtime.gpu.device_watch import Device, DeviceWatch
from braze.runtime.memory import undo
from braze.runtime.memory.arena import POOL, Arena, ArenaPool, StreamPools
from braze.runtime.memory.packed import PackedWeights, packer
from braze.runtime.memory.placement import Layouts
from braze.runtime.memory.watch import Watch
from braze.runtime.operators.operators import operator, operator_once, product
from braze.runtime.operators.purity import draws
from braze.support.unwritten import note_written

_numbers = itertools.count()


class Library(Protocol):
    """A loaded shared library."""

    def symbol(self, name: str) -> int: ...


class Launches(Protocol):
    """How kernels are launched and results get their memory, where a recorder must know of both."""

    @property
    def empty_strided(self) -> Callable[..., torch.Tensor]: ...

    @property
    def empty_result(self) -> Callable[..., torch.Tensor]: ...

    @property
    def results(self) -> contextlib.AbstractContextManager[None]: ...

    def launched(self, function: Callable[..., Any]) -> Callable[..., Any]: ...


class Direct:
    """Nobody needs to know."""

    empty_strided = empty_result = staticmethod(native.empty_strided)
    results = contextlib.nullcontext()

    @staticmethod
    def launched(function: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself."""
        return function


def _in_turn(
    function: Callable[..., Any], turns: contextlib.AbstractContextManager[Any]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with turns:
            return function(*args, **kwargs)

    return call


def _one_by_one(
    launches: Sequence[tuple[Callable[..., Any], tuple[int, ...]]],
) -> Callable[..., None]:
    def call(*args: Any) -> None:
        for launcher, places in launches:
            launcher(*(args[place] for place in places))

    return call


class Runtime:
    """What a host module calls. ``turns``: held while a recording is made on its device."""

    def __init__(
        self,
        library: Library | None,
        pool: ArenaPool | StreamPools = POOL,
        triton: Mapping[str, Callable[..., Any]] | None = None,
        alone: Callable[[torch.Tensor], bool] = lambda tensor: False,
        launches: Launches | None = None,
        part: Callable[[int, Boxed], Boxed] = lambda number, call: call,
        turns: contextlib.AbstractContextManager[Any] | None = None,
        graphs: bool = True,
    ) -> None:
        self._library = library
        #: what becomes of the call of one part, by its number
        self.part = part
        self._triton = dict(triton or {})
        self._launched = (launches or Direct).launched
        self.empty_strided = (launches or Direct).empty_strided
        #: memory for what leaves the call, and blocks in which an operator makes such
        self.empty_result = (launches or Direct).empty_result
        self.results = (launches or Direct).results
        self._turns = turns
        #: whether launches that come again become graphs of the driver's
        self._graphs = graphs
        #: whether the caller's variable is all that holds a tensor and its memory
        self.alone = alone
        native.bind_torch()
        self.take: Callable[[int], Arena] = pool.take
        self.give: Callable[[Arena], None] = pool.give

    def operator(self, target: str, may_draw: bool = True) -> Any:
        """The callable of an operator of ATen's; of one that draws random numbers, in turn with recordings, while which PyTorch lets no other thread draw.

        ``may_draw``: whether it is not told to draw none.
        """
        found = operator(target)
        return (
            found if self._turns is None or not (may_draw and draws(target)) else _in_turn(found, self._turns)
        )

    operator_once = staticmethod(operator_once)
    product = staticmethod(product)
    view = staticmethod(native.view)

    def segment(self, name: str, kernels: str = "") -> Callable[..., int]:
        """A C segment, called as (tensors, arena address, sizes). ``kernels``: what a profiler is told of it."""
        return self._launched(native.Segment(self._symbol(name), f"braze: {kernels or name}"))

    def packed(self, weights: Sequence[tuple[str, int, int]]) -> PackedWeights:
        """The keeper of packed weights, from (packing function, its bytes, the weight's bytes)."""
        names, packed_bytes, weight_bytes = zip(*weights, strict=True)
        packers = [packer(self._symbol(name)) for name in names]
        return PackedWeights(packers, packed_bytes, weight_bytes, self.segment("sample_weights"))

    def fixed(self, call: Callable[[Sequence[Any]], tuple[Any, ...]], sizes: Sequence[int]) -> Watch:
        """The keeper of values that depend on constants only: made again when a constant changes."""
        return Watch(
            sizes, self.segment("sample_weights"), lambda constants, changed, before: call(constants)
        )

    @staticmethod
    def device_fixed(
        call: Callable[[Sequence[Any]], tuple[Any, ...]], items: Sequence[tuple[int, int]], device: str
    ) -> DeviceWatch:
        """The keeper of such values on a GPU; of each constant the bytes of its memory and of its elements."""
        return DeviceWatch(items, call, Device(device))

    def triton(self, name: str) -> Callable[..., Any]:
        """The launcher of a Triton kernel."""
        return self._launched(self._triton[name])

    def run(
        self, launches: tuple[tuple[Callable[..., Any], tuple[int, ...]], ...], buffers: int, sizes: int
    ) -> Callable[..., Any]:
        """Launches of Triton kernels one after another, called with so many tensors and sizes; of each launch the places of its own among those."""
        if all(type(launcher) is native.DeviceLauncher for launcher, _ in launches):
            return native.DeviceRun(launches, buffers, sizes, self._graphs)
        return _one_by_one(launches)

    @classmethod
    def planned(
        cls, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """A result of ATen -> the same in the layout that the kernels after it were made for, where that has no symbols."""
        return native.planned(sizes, strides, dtype, cls.relayout)

    layouts = staticmethod(Layouts)
    arena = staticmethod(Arena)

    @staticmethod
    def constant_view(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        """A view of a parameter, made again when the parameter's data moves."""
        kept: list[Any] = [None, None]

        def view(constant: torch.Tensor) -> torch.Tensor:
            where = constant.data_ptr()
            pointer, made = kept
            if pointer != where:
                made = make(constant.detach())
                kept[:] = where, made
            return made

        return view

    @staticmethod
    def relayout(
        result: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """A result of ATen in the strides and the type that the kernels after it were made for.

        A copy, but where strides differ only in dimensions of one element: then the same memory, unless its numbers are conjugated or negated as they are read.
        """
        if tuple(result.shape) != tuple(sizes):
            raise RuntimeError(
                f"an operator returned sizes {tuple(result.shape)} where {tuple(sizes)} were planned"
            )
        told = zip(sizes, result.stride(), strides, strict=True)
        lazy = result.is_conj() or result.is_neg()
        if result.dtype is dtype and not lazy and all(n == 1 or have == want for n, have, want in told):
            # no view of it, which autograd would let nobody write to
            place = result.storage_offset()
            return result.new_empty(0).set_(result.untyped_storage(), place, tuple(sizes), tuple(strides))
        made = torch.empty_strided(sizes, strides, dtype=dtype, device=result.device)
        return made.copy_(result)

    @staticmethod
    def report(status: int = 1) -> None:
        """A kernel met an index out of range; a ``status`` over 1: an input had been written."""
        # no name for it: its traceback has this frame, which would keep those of its callers, and what they hold
        raise _out_of_range(status)

    note_written = staticmethod(note_written)
    keep, put_back = staticmethod(undo.keep), staticmethod(undo.put_back)

    @staticmethod
    def fail(message: str) -> None:
        """A size is not what the program was compiled for."""
        raise RuntimeError(message)

    def _symbol(self, name: str) -> int:
        assert self._library is not None
        return self._library.symbol(name)


def _out_of_range(status: int) -> IndexError:
    error = IndexError("index out of range in self")
    if status > 1:
        note_written(error)
    return error


def load_host(name: str, source: str, runtime: Runtime) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Execute a host module; its lines show in tracebacks."""
    file = f"<braze {name} {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {}
    exec(compile(source, file, "exec"), space)
    return boxed(space["make"](runtime))
