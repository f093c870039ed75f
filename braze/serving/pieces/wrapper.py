"""A callable that is recorded once for each batch descriptor and replayed from then on, as the forward context says.

The context's mode decides: in another mode than the wrapper's own the callable runs as it is, so that wrappers nest (the whole model recorded
outside, its pieces inside) and each call takes one way. Inputs must lie where they lay when the recording was made; the
caller sees to that, or names those that are copied. Nothing here ends a program: what cannot be recorded runs as it is, and says why.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from braze import native
from braze.cudagraphs.device import DeviceGraphs, Graph, NotRecordable, Pool, record
from braze.cudagraphs.reasons import note
from braze.cudagraphs.registry import device_of, records
from braze.cudagraphs.storages import borrowed, tensor_over
from braze.graph.private.torch_compat import copy_all, is_out_of_memory, pytree
from braze.options import make_options
from braze.serving.pieces.pools import GraphPools
from braze.serving.pieces.replaced import Tensors, has_address
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.fields import refuse
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.context import ForwardContext, get_forward_context, recorded_reads
from braze.serving.step.frozen import Reads
from braze.support import trace
from braze.support.errors import BrazeError, UserError
from braze.support.interrupts import is_of_handler

#: the context was read or written in a way that a recording cannot hold: the program's mistake, which no other way of running mends
_FROZEN = ("BZ7301", "BZ7303")


class CUDAGraphWrapper:
    """``runnable`` under recordings by batch descriptor.

    ``runtime_mode``: PIECEWISE or FULL, the context's mode in which this records and replays. ``pools``: memory shared with other wrappers of
    the model. ``copied``: the places of arguments that lie elsewhere at each call and are copied to where they lay. ``verify``: check
    that the others do lie there (by default where BRAZE_VERIFY is set). ``warmups``: so many first calls of a descriptor run as they
    are. ``rehearse``: run the callable once before it is recorded, so that what libraries make at a first call is there; for
    callables that may run twice. ``device``: its recorder; by default that of the first tensor among the arguments. ``module``: whose tensors the
    callable reads beside its arguments; by default the callable, where it is a module. ``steady``: the places of arguments that lie where they lay, so that all others are
    such tensors; by default all but parameters. Where one is replaced, or lies elsewhere, a step runs as it is (BZ7219), and later ones are recorded with the new one.

    What a replay returns is overwritten by the next replay of its pool: copy what is to be kept longer than the step.
    UserError (BZ7207) for a call that does not fit the recording of its descriptor, BZ7301 to BZ7303 where that reads of the forward context what
    changes.
    """

    def __init__(
        self,
        runnable: Callable[..., Any],
        runtime_mode: CUDAGraphMode,
        *,
        pools: GraphPools | None = None,
        copied: Sequence[int] = (),
        fixed: Sequence[int] = (),
        steady: Sequence[int] | None = None,
        module: nn.Module | None = None,
        verify: bool | None = None,
        warmups: int = 0,
        rehearse: bool = False,
        device: DeviceGraphs | None = None,
        name: str = "",
    ) -> None:
        if not callable(runnable):
            raise refuse("runnable", runnable, "what is called and recorded")
        if runtime_mode not in (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL):
            raise UserError(
                "BZ7206",
                f"a wrapper cannot record in mode {getattr(runtime_mode, 'name', runtime_mode)!s}",
                why="a step runs in NONE, PIECEWISE or FULL, and in NONE nothing is recorded",
                hints=["CUDAGraphMode.FULL for a whole model, CUDAGraphMode.PIECEWISE for its pieces"],
            )
        self.runnable, self.runtime_mode = runnable, runtime_mode
        self.pools = pools or GraphPools()
        self.copied, self.fixed = tuple(copied), tuple(fixed)
        self.verify = make_options().verify > 0 if verify is None else verify
        self.steady = None if steady is None else frozenset(steady)
        self.module = runnable if module is None and isinstance(runnable, nn.Module) else module
        #: the module's tensors, since the first of the recordings that there are
        self.tensors: Tensors | None = None
        self.warmups, self.rehearse, self.device = warmups, rehearse, device
        self.name = name or getattr(runnable, "__qualname__", type(runnable).__qualname__)
        #: what stands for the wrapper where it is written down that something was told, which stays when the wrapper goes
        self.told = object()
        self.entries: dict[BatchDescriptor, CUDAGraphEntry] = {}
        self.pools.enter(self)
        _live.add(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        context = get_forward_context()
        descriptor = context.batch_descriptor
        if context.cudagraph_runtime_mode is not self.runtime_mode or descriptor is None:
            return self.runnable(*args, **kwargs)
        entry = self.entries.get(descriptor)
        if entry is None or entry.recording is None:
            return self._record_or_run(descriptor, args, kwargs)
        values = (*args, *kwargs.values()) if kwargs else args
        which = self.tensors.replaced() if self.tensors is not None else entry.recording.replaced(values)
        if which:
            return self._anew(which, context, args, kwargs)
        for reads in entry.recording.reads:
            reads.check(context, anew=self.verify)
        if self.fixed and entry.recording.moved(values):
            note(
                "BZ6205",
                self.name,
                f"writes to memory that lies elsewhere, and runs as it is at {descriptor}",
                tell=self.told,
            )
            return self.runnable(*args, **kwargs)
        return entry.recording.replay(values)

    def owns(self, i: int, x: Any) -> bool:
        """Whether an argument is a tensor that may be replaced."""
        if i in self.copied or i in self.fixed or not has_address(x):
            return False
        return isinstance(x, nn.Parameter) if self.steady is None else i not in self.steady

    def reasons(self) -> dict[BatchDescriptor, str]:
        """Which descriptors run without a recording, and why."""
        return {d: entry.reason for d, entry in self.entries.items() if entry.reason}

    def captured(self) -> tuple[BatchDescriptor, ...]:
        """The descriptors of which there are recordings."""
        return tuple(d for d, entry in self.entries.items() if entry.recording is not None)

    def clear(self) -> None:
        """Let go of the recordings; the next calls make others."""
        self.entries = {}
        self.tensors = None

    def drop(self, descriptor: BatchDescriptor) -> None:
        """Let go of a descriptor's recording, or of the reason why there is none; the next call makes another."""
        self.entries.pop(descriptor, None)

    def _anew(self, which: str, context: ForwardContext, args: Any, kwargs: Any) -> Any:
        """A call that finds another tensor than was recorded. What was replaced is held by no recording from here on."""
        note(
            "BZ7219",
            self.name,
            f"was recorded with another tensor in the place of {which}: this step runs as it is, and it is recorded again",
            tell=self.told,
        )
        self.pools.leave(context)
        return self.runnable(*args, **kwargs)

    def _record_or_run(self, descriptor: BatchDescriptor, args: Any, kwargs: Any) -> Any:
        """A first call of a descriptor, or one of which there is to be no recording."""
        if self.pools.left(get_forward_context()):
            return self.runnable(*args, **kwargs)
        entry = self.entries.setdefault(descriptor, CUDAGraphEntry())
        device = self.device or _recorder((*args, *kwargs.values()))
        if device is None:
            entry.reason = entry.reason or "its tensors lie on a device that cannot record"
            return self.runnable(*args, **kwargs)
        if entry.reason or device.busy() or entry.calls < self.warmups:
            entry.calls += not device.busy()
            return self.runnable(*args, **kwargs)
        if self._reads_lent(descriptor, device, (*args, *kwargs.values())):
            # made in an earlier step: its memory is nobody's while this records. All are recorded anew, in one step
            self.pools.leave(get_forward_context())
            return self.runnable(*args, **kwargs)
        if not self.pools.open:
            return self._without(entry, descriptor, "it was not recorded before serving began", args, kwargs)
        if self.module is not None and (self.tensors is None or self.tensors.replaced()):
            self.entries = {descriptor: entry}
            self.tensors = Tensors(self.module)
        with device.lock:
            if entry.recording is not None:  # made by another thread meanwhile
                return entry.recording.replay((*args, *kwargs.values()))
            try:
                made, result = self._record(descriptor, device, args, kwargs)
            except Exception as error:
                if (isinstance(error, UserError) and error.code in _FROZEN) or is_of_handler(error):
                    raise
                return self._without(entry, descriptor, _why(error), args, kwargs)
            if isinstance(made, str):
                self._tell(entry, descriptor, made)
            else:
                entry.recording = made
                trace.count("cudagraph_recordings")
            return result

    def _record(
        self, descriptor: BatchDescriptor, device: DeviceGraphs, args: Any, kwargs: Any
    ) -> tuple[Recording | str, Any]:
        """A recording or why there is none, and the result of this call, which holds its memory until the caller lets go of it."""
        pool = self.pools.of(descriptor, device)
        values, run = self._bound(args, kwargs, pool)
        if self.rehearse:
            run()
        with recorded_reads() as reads:
            graph, result = record(device, pool, run)
        made = Recording(self, descriptor, device, graph, values, result, (reads,))
        graph.replay()
        return made, made.first_outputs((*args, *kwargs.values()), result)

    def _bound(self, args: Any, kwargs: Any, pool: Pool) -> tuple[list[Any], Callable[[], Any]]:
        """The values that a recording is made with, and the call on them. Inputs that move have places of their own, but those that another recording has just left in the
        pool: its replays leave them there, too."""
        values = [*args, *kwargs.values()]
        lies_there = _in(pool) if self.copied else None
        for i in self.copied:
            if not lies_there(values[i]):  # type: ignore[misc]
                values[i] = values[i].clone()
        names, count = tuple(kwargs), len(args)

        def run() -> Any:
            with torch.no_grad():
                return self.runnable(*values[:count], **dict(zip(names, values[count:], strict=True)))

        return values, run

    def _reads_lent(self, descriptor: BatchDescriptor, device: DeviceGraphs, values: Sequence[Any]) -> bool:
        """Whether an input lies where a replay has left it, in memory of the pool that nobody holds and that what is recorded now would take."""
        lent = [x for x in values if isinstance(x, torch.Tensor) and not x.untyped_storage().resizable()]
        return bool(lent) and any(map(_in(self.pools.of(descriptor, device)), lent))

    def _without(
        self, entry: CUDAGraphEntry, descriptor: BatchDescriptor, why: str, args: Any, kwargs: Any
    ) -> Any:
        """A call whose descriptor is not recorded, and will not be."""
        result = self.runnable(*args, **kwargs)  # where this raises, it was the program's error
        self._tell(entry, descriptor, why)
        return result

    def _tell(self, entry: CUDAGraphEntry, descriptor: BatchDescriptor, why: str) -> None:
        entry.reason = why
        note("BZ7208", self.name, f"runs without a recording at {descriptor}: {why}", tell=self.told)


class CUDAGraphEntry:
    """What is known of one descriptor: its recording, or why there is none."""

    __slots__ = ("calls", "reason", "recording")

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self.reason = ""
        self.calls = 0


class Recording:
    """A graph, where its inputs must lie, and its outputs as tensors that do not hold their memory."""

    def __init__(
        self,
        wrapper: CUDAGraphWrapper,
        descriptor: BatchDescriptor,
        device: DeviceGraphs,
        graph: Graph,
        values: list[Any],
        result: Any,
        reads: Sequence[Reads],
    ) -> None:
        #: what the callable has read of the forward context, if anything
        self.reads = tuple(r for r in reads if len(r))
        self.graph, self.lock, self.descriptor = graph, device.lock, descriptor
        self.name = wrapper.name
        #: of inputs that move: which, where it is read, and the address of that
        in_pool = _in(wrapper.pools.of(descriptor, device))
        read = [(i, unheld(values[i], set()) if in_pool(values[i]) else values[i]) for i in wrapper.copied]
        self.copied = [(i, x, native.data_ptr(x)) for i, x in read]
        self.constants = [(i, x) for i, x in enumerate(values) if not isinstance(x, torch.Tensor)]
        self.layouts = [
            (i, native.data_ptr(x), tuple(x.shape), x.stride())
            for i, x in enumerate(values)
            if wrapper.verify
            and isinstance(x, torch.Tensor)
            and i not in wrapper.copied
            and not wrapper.owns(i, x)
        ]
        self.fixed = [(i, native.data_ptr(values[i])) for i in wrapper.fixed]
        #: what may be replaced: which, and where it lies
        self.owned = [(i, native.data_ptr(x)) for i, x in enumerate(values) if wrapper.owns(i, x)]
        #: what is read, and not of the pool's memory, stays as long as it may be read
        self.kept = [x for x in values if isinstance(x, torch.Tensor) and not (has_address(x) and in_pool(x))]
        leaves, self.spec = pytree.tree_flatten(result)
        inputs = {id(x): i for i, x in enumerate(values) if isinstance(x, torch.Tensor)}
        owned = {x.untyped_storage()._cdata for x in values if isinstance(x, torch.Tensor)}
        #: outputs that are inputs, as (place among the outputs, place among the inputs)
        self.passed = [(k, inputs[id(x)]) for k, x in enumerate(leaves) if id(x) in inputs]
        self.leaves = [x if id(x) in inputs else unheld(x, owned) for x in leaves]
        self.plain = None if self.passed else pytree.tree_unflatten(self.leaves, self.spec)
        self.replays = 0

    def replay(self, values: Sequence[Any]) -> Any:
        """Do it again for arguments that fit, and give its outputs."""
        for i, then in self.constants:
            if values[i] != then:
                raise self._misfit(i, f"is {values[i]!r}, and was {then!r} when this was recorded")
        if self.layouts:
            self._check(values)
        with self.lock:
            elsewhere = [
                (i, x, values[i]) for i, x, address in self.copied if native.data_ptr(values[i]) != address
            ]
            if elsewhere:
                self._fit(elsewhere)
                copy_all([x for _, x, _ in elsewhere], [x for _, _, x in elsewhere])
            self.graph.replay()
            self.replays += 1
        return self.outputs_as_given(values, self.plain)

    def replaced(self, values: Sequence[Any]) -> str:
        """Which of the module's tensors is another one, or lies elsewhere; empty where none does."""
        for i, address in self.owned:
            if native.data_ptr(values[i]) != address:
                return f"argument {i}"
        return ""

    def moved(self, values: Sequence[Any]) -> bool:
        """Whether a tensor that is written lies elsewhere than when this was recorded."""
        return any(native.data_ptr(values[i]) != address for i, address in self.fixed)

    def first_outputs(self, values: Sequence[Any], result: Any) -> Any:
        """What the recorded call gave: its memory is the caller's as long as it holds it, while others record into the pool."""
        leaves = pytree.tree_leaves(result)
        for k, i in self.passed:
            leaves[k] = values[i]
        return pytree.tree_unflatten(leaves, self.spec)

    def outputs_as_given(self, values: Sequence[Any], plain: Any) -> Any:
        """The outputs, where those that are inputs are this call's."""
        if not self.passed:
            return plain
        leaves = list(self.leaves)
        for k, i in self.passed:
            leaves[k] = values[i]
        return pytree.tree_unflatten(leaves, self.spec)

    def _fit(self, copies: Sequence[tuple[int, torch.Tensor, torch.Tensor]]) -> None:
        """A copy between other sizes would broadcast, or fail without saying why."""
        for i, buffer, x in copies:
            if buffer.shape != x.shape or buffer.dtype != x.dtype:
                raise self._misfit(
                    i,
                    f"is {x.dtype} of {tuple(x.shape)}, and was {buffer.dtype} of {tuple(buffer.shape)} when this was recorded",
                )

    def _check(self, values: Sequence[Any]) -> None:
        for i, address, sizes, strides in self.layouts:
            x = values[i]
            if native.data_ptr(x) != address or tuple(x.shape) != sizes or x.stride() != strides:
                raise self._misfit(
                    i,
                    f"lies at {native.data_ptr(x):#x} with sizes {tuple(x.shape)}, and lay at {address:#x} with {sizes} when "
                    "this was recorded",
                )

    def _misfit(self, i: int, how: str) -> UserError:
        return UserError(
            "BZ7207",
            f"argument {i} of {self.name} does not fit the recording of {self.descriptor}: it {how}",
            why="a replay reads and writes the memory, and has the numbers, that it was recorded with",
            hints=[
                "keep inputs in buffers that stay, and pass views of the padded size",
                "copied=, or cudagraph_copy_inputs=True, for inputs that lie elsewhere at each call",
            ],
        )


def _in(pool: Pool) -> Callable[[torch.Tensor], bool]:
    """Whether a tensor lies in a pool."""
    ranges = [(at, at + size) for at, size, _ in pool.memory()]
    return lambda x: any(low <= native.data_ptr(x) < high for low, high in ranges)


def unheld(x: Any, owned: set[int]) -> Any:
    """A tensor over the same memory that does not hold it; what sees an input's memory is kept as it is."""
    if not isinstance(x, torch.Tensor) or x.numel() == 0 or x.layout is not torch.strided:
        return x
    storage = x.untyped_storage()
    if storage._cdata in owned:
        return x
    memory = borrowed(storage.data_ptr(), storage.nbytes(), x.device, storage)
    return tensor_over(memory, x.dtype, int(x.storage_offset()), x.shape, x.stride())


def _recorder(values: Sequence[Any]) -> DeviceGraphs | None:
    """The recorder of the device on which the first tensor lies, if it has one."""
    for x in values:
        if isinstance(x, torch.Tensor) and records(x.device.type):
            return device_of(str(x.device))
    return None


def _why(error: Exception) -> str:
    if isinstance(error, BrazeError):
        return f"{error.code}: {error.what}" + (f", at {error.origin}" if error.origin is not None else "")
    text = str(error).partition("\n")[0]
    if is_out_of_memory(error):
        return f"there was no memory for it: {text}"
    if isinstance(error, NotRecordable):
        return f"it cannot be recorded: {text}"
    return f"recording it failed: {type(error).__name__}: {text}"


def clear_all_graphs() -> None:
    """Let go of all recordings of all wrappers, as when the caches that they point into are made anew."""
    for wrapper in list(_live):
        wrapper.pools.clear()


_live: weakref.WeakSet[CUDAGraphWrapper] = weakref.WeakSet()
