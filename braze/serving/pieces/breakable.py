"""A whole call, compiled, recorded in segments: the recording ends before each operator that cannot be recorded, and begins anew behind it.

Nothing is cut in the graph, so fusion sees all of it; what breaks the recording is found while it is made, by a dispatch mode, whoever
calls the operator. Each segment is replayed as soon as it is recorded, so that the operators between segments see true values, and
the call that records computes what any other does, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze.cudagraphs.device import DeviceGraphs, Graph, NotRecordable, garbage_kept
from braze.graph.operators.functional_ops import original_of
from braze.graph.private.torch_compat import copy_all, pytree, storage_key
from braze.serving.pieces.custom_ops import is_marked, names_of, spelled
from braze.serving.pieces.pools import GraphPools
from braze.serving.pieces.wrapper import CUDAGraphWrapper, Recording, unheld
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.context import recorded_reads
from braze.serving.step.frozen import Reads

#: tags of operators whose result the host must wait for
_WAITS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


class BreakableWrapper(CUDAGraphWrapper):
    """``runnable`` under recordings by batch descriptor that are broken at operators.

    ``splitting_ops``: their names; those that were marked or are tagged ``torch.Tag.cudagraph_unsafe`` break a recording too. ``side_streams``:
    streams that the callable starts work on: each is joined before a segment ends and forked again behind the break. The
    other words are those of :class:`~braze.serving.pieces.wrapper.CUDAGraphWrapper`.

    An operator's results are copied to where they lay when this was recorded, so that what follows finds them there.
    """

    def __init__(
        self,
        runnable: Callable[..., Any],
        runtime_mode: CUDAGraphMode,
        splitting_ops: Iterable[Any] = (),
        *,
        pools: GraphPools | None = None,
        side_streams: Sequence[Any] = (),
        **words: Any,
    ) -> None:
        super().__init__(runnable, runtime_mode, pools=pools, **words)
        self.breaks = frozenset(spelled(op) for op in splitting_ops)
        self.side_streams = tuple(side_streams)

    def _record(
        self, descriptor: BatchDescriptor, device: DeviceGraphs, args: Any, kwargs: Any
    ) -> tuple[Recording | str, Any]:
        pool = self.pools.of(descriptor, device)
        values, run = self._bound(args, kwargs, pool)
        if self.rehearse:
            run()
        segments = Segments(device, pool, self.breaks, self.side_streams)
        result = segments.record(run)
        if segments.why:
            return segments.why, result
        made = Recording(self, descriptor, device, segments, values, result, segments.reads)
        return made, made.first_outputs((*args, *kwargs.values()), result)


class Segments:
    """Graphs and the operators between them, in order: replayed as one graph is."""

    def __init__(
        self, device: DeviceGraphs, pool: Any, breaks: frozenset[str], side_streams: Sequence[Any] = ()
    ) -> None:
        self.device, self.pool, self.breaks = device, pool, breaks
        self.side_streams = side_streams
        self.steps: list[Graph | Between] = []
        #: what each segment has read of the forward context
        self.reads: list[Reads] = []
        #: why there is no recording, where what ran could not be one; the run went on all the same
        self.why = ""
        self._open: contextlib.ExitStack | None = None

    @property
    def graphs(self) -> int:
        """How many segments are recorded."""
        return sum(not isinstance(step, Between) for step in self.steps)

    def replay(self) -> None:
        """Do it all again."""
        for step in self.steps:
            step.replay()

    def record(self, run: Callable[[], Any]) -> Any:
        """Run, segment by segment, each of which is replayed at once; the result of the run."""
        with garbage_kept():
            self._begin()
            try:
                with _Breaker(self):
                    result = run()
            except BaseException:
                if self._open is not None:
                    self._open.close()
                    self.device.abandon()
                raise
            self._end()
        return result

    def between(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator that breaks the recording: it runs for real, now and at each replay."""
        self._end()
        result = func(*args, **kwargs)
        if any(not isinstance(x, torch.Tensor) and x is not None for x in pytree.tree_leaves(result)):
            self.why = f"{func} gives a number, which would be frozen"
        if not self.why:
            self.steps.append(Between(func, args, kwargs, result))
            self._begin()
        return result

    def give_up(self, why: str) -> None:
        """What comes cannot be recorded: from here on the run is no recording."""
        self._end()
        self.why = why

    def _begin(self) -> None:
        self.device.begin(self.pool)
        self._open = contextlib.ExitStack()
        self.reads.append(self._open.enter_context(recorded_reads()))
        for stream in self.side_streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))

    def _end(self) -> None:
        if self._open is None:
            return
        for stream in self.side_streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        self._open.close()
        self._open = None
        graph = self.device.end()
        graph.replay()
        self.steps.append(graph)


class Between:
    """A call of an operator on memory of the recording. Its arguments are seen without being held; its results are kept where they are."""

    def __init__(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.func = func
        given, spec = pytree.tree_flatten((args, kwargs))
        #: the same arguments at each replay
        self.args, self.kwargs = pytree.tree_unflatten([unheld(x, set()) for x in given], spec)
        mine = {storage_key(x) for x in given if isinstance(x, torch.Tensor)}
        #: results that later segments read: tensors that the operator made
        self.results = [
            x if isinstance(x, torch.Tensor) and storage_key(x) not in mine else None
            for x in pytree.tree_leaves(result)
        ]
        self.gives = any(x is not None for x in self.results)

    def replay(self) -> None:
        """Call it again, and put its results where they were."""
        result = self.func(*self.args, **self.kwargs)
        if not self.gives:
            return
        result = pytree.tree_leaves(result)
        pairs = [(to, of) for to, of in zip(self.results, result, strict=True) if to is not None]
        for to, of in pairs:
            if to.shape != of.shape:
                raise NotRecordable(
                    f"{self.func} gave {tuple(of.shape)}, and {tuple(to.shape)} when it was recorded"
                )
        copy_all([to for to, _ in pairs], [of for _, of in pairs])


class _Breaker(TorchDispatchMode):
    """Sees each operator before it is recorded."""

    def __init__(self, segments: Segments) -> None:
        super().__init__()
        self.segments = segments

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.segments.why:
            return func(*args, **(kwargs or {}))
        if any(tag in func.tags for tag in _WAITS):
            self.segments.give_up(f"{func} makes the host wait for the device")
        elif self._breaks(func):
            return self.segments.between(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _breaks(self, func: Any) -> bool:
        if torch.Tag.cudagraph_unsafe in func.tags:
            return True
        found = original_of(func)  # a compiled graph may call an operator that writes by its functional form
        op = func if found is None else found.original
        return is_marked(op) or not self.segments.breaks.isdisjoint(names_of(op))
