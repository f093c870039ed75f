"""Pieces compiled: each for any size, and for the sizes and ranges that are named, ahead of serving or beside it.

Pieces that compute the same are compiled once (see ``structure.py``): of a model of equal layers, a handful.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from braze.serving.pieces.compiler import Compiled
from braze.serving.pieces.manager import CompilerManager
from braze.serving.pieces.specialise import SizeRange, specialised, symbol_of, where_is
from braze.serving.pieces.split import SplitItem
from braze.support.errors import BrazeError, Unsupported
from braze.support.log import logger

log = logger("aot")


class ConcreteSizeEntry:
    """A size, or a range of sizes, for which a piece is compiled by itself. ``reason``: why it is not, if so."""

    def __init__(self, runtime_shape: int | SizeRange) -> None:
        self.runtime_shape = runtime_shape
        self.runnable: Compiled | None = None
        self.reason = ""
        #: what was compiled, and which of the piece's inputs it takes; None: all
        self.call: Compiled | None = None
        self.kept: tuple[int, ...] | None = None

    @property
    def compiled(self) -> bool:
        """Whether it serves."""
        return self.runnable is not None

    def serve(self, call: Compiled, kept: tuple[int, ...] | None) -> None:
        """Serve from now on, by a call that takes these of the piece's inputs."""
        self.call, self.kept = call, kept
        self.runnable = call if kept is None else lambda *args: call(*[args[i] for i in kept])

    def serve_as(self, twin: ConcreteSizeEntry) -> None:
        """Serve as another piece's that computes the same, or not for its reason."""
        self.runnable, self.reason, self.call, self.kept = twin.runnable, twin.reason, twin.call, twin.kept


class SizedPiece:
    """What serves one piece: any size, single sizes, ranges. A size goes before a range, a range before the rest. ``where``: the input and dimension that tell a call's size."""

    def __init__(
        self,
        general: Compiled,
        where: tuple[int, int] | None,
        sizes: Sequence[ConcreteSizeEntry],
        ranges: Sequence[ConcreteSizeEntry],
    ) -> None:
        self.compiled_graph_for_general_shape = general
        self.where = where
        self.concrete_size_entries = {entry.runtime_shape: entry for entry in sizes}
        self.ranges = list(ranges)

    def __call__(self, *args: Any) -> Any:
        if self.where is None:
            return self.compiled_graph_for_general_shape(*args)
        return self.runnable_for(self._size(args))(*args)

    def runnable_for(self, size: int) -> Compiled:
        """What serves a size now."""
        entry = self.concrete_size_entries.get(size)
        if entry is not None and entry.runnable is not None:
            return entry.runnable
        for other in self.ranges:
            if size in other.runtime_shape and other.runnable is not None:  # type: ignore[operator]
                return other.runnable
        return self.compiled_graph_for_general_shape

    def _size(self, args: Sequence[Any]) -> int:
        i, dim = self.where  # type: ignore[misc]
        return args[i] if dim < 0 else args[i].shape[dim]  # type: ignore[no-any-return]


class PiecewiseBackend(SizedPiece):
    """One piece of a split graph, compiled by a manager."""

    def __init__(
        self,
        graph: GraphModule,
        index: int,
        manager: CompilerManager,
        *,
        sizes: Sequence[int] = (),
        ranges: Sequence[SizeRange] = (),
    ) -> None:
        self.graph, self.index, self.manager = graph, index, manager
        examples = [n.meta.get("val") for n in graph.graph.nodes if n.op == "placeholder"]
        general = manager.compile(graph, examples, graph_index=index)
        self.symbol = symbol_of(graph) if sizes or ranges else None
        where = where_is(graph, self.symbol) if self.symbol is not None else None
        known = where is not None
        super().__init__(
            general,
            where,
            [ConcreteSizeEntry(n) for n in sizes if known],
            [ConcreteSizeEntry(r) for r in ranges if known],
        )

    def entries(self) -> list[ConcreteSizeEntry]:
        """All that is to be compiled beside what serves any size."""
        return [*self.concrete_size_entries.values(), *self.ranges]

    def compile_entry(self, entry: ConcreteSizeEntry) -> None:
        """Compile for one size or range; where that cannot be, what serves any size goes on serving it."""
        if entry.compiled or self.symbol is None:
            return
        try:
            special = specialised(self.graph, self.symbol, entry.runtime_shape)
            call = self.manager.compile(
                special.graph, special.examples, graph_index=self.index, runtime_shape=entry.runtime_shape
            )
        except Unsupported as error:
            entry.reason = f"{error.code}: {error.what}"
            log.info("piece %d is not compiled for %s: %s", self.index, entry.runtime_shape, entry.reason)
            return
        inputs = sum(n.op == "placeholder" for n in self.graph.graph.nodes)
        entry.serve(call, special.kept if len(special.kept) < inputs else None)


class PiecewiseCompileInterpreter:
    """Walks through a split graph and compiles the pieces between the splitting ones. ``backends``: the compiled piece of each, by number."""

    def __init__(
        self,
        items: Sequence[SplitItem],
        manager: CompilerManager,
        *,
        sizes: Sequence[int] = (),
        ranges: Sequence[SizeRange] = (),
    ) -> None:
        self.items, self.manager = list(items), manager
        self.sizes, self.ranges = tuple(sizes), tuple(ranges)
        self.backends: dict[int, PiecewiseBackend] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self) -> dict[int, PiecewiseBackend]:
        """Compile each piece for any size."""
        with torch.no_grad():
            for item in self.items:
                if not item.is_splitting_graph:
                    self.backends[item.graph_id] = PiecewiseBackend(
                        item.graph, item.graph_id, self.manager, sizes=self.sizes, ranges=self.ranges
                    )
        return self.backends

    def compile_sizes(self, *, background: bool = False) -> None:
        """Compile all pieces for all sizes and ranges, before anything is served; or in a thread, while what serves any size serves."""
        if not background:
            self._compile_sizes()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._in_background, name="braze-specialise", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until the thread is done; raises what it met."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _in_background(self) -> None:
        try:
            self._compile_sizes()
        except BaseException as error:
            self._error = error
            if not isinstance(error, BrazeError):
                log.exception("pieces are not compiled for single sizes")

    def _compile_sizes(self) -> None:
        #: by what serves any size, which pieces that compute the same have in common
        done: dict[tuple[int, Any], ConcreteSizeEntry] = {}
        with torch.no_grad():
            for backend in self.backends.values():
                for entry in backend.entries():
                    key = id(backend.compiled_graph_for_general_shape), entry.runtime_shape
                    twin = done.setdefault(key, entry)
                    if twin is entry:
                        backend.compile_entry(entry)
                    else:
                        entry.serve_as(twin)
