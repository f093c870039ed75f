"""What compiles pieces and remembers them: in this process by what they compute, on disk by all that they depend on.

An artifact is a file of its own, written by renaming: writers do not wait for each other, and readers see all of it or nothing. It says which graph it
was made of, and is not used for another.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn
from torch.fx import GraphModule

from braze.runtime.libraries.cache import CacheKey, DiskCache, key
from braze.serving.pieces import cache_key
from braze.serving.pieces.compiler import Compiled, CompilerInterface, make_compiler
from braze.serving.pieces.structure import structure_of
from braze.serving.policy.config import configuration
from braze.support import trace
from braze.support.log import logger, warn_once
from braze.support.record import record

log = logger("cache")


@record
class Counts:
    """Of the pieces asked for: ``shared`` were compiled for another piece alike, ``loaded`` come from disk, ``compiled`` are new."""

    shared: int = 0
    loaded: int = 0
    compiled: int = 0


class CompilerManager:
    """Compiles pieces with one compiler. ``config``: a ``CompilationConfig``, or an engine's ``Config``; ``cache_dir``: by default its, else braze's folder.

    Used from several threads. Pieces that compute the same are compiled once, whatever their number.
    """

    def __init__(
        self,
        config: Any,
        compiler: Any = None,
        *,
        cache_dir: str | Path | None = None,
        disable_cache: bool = False,
    ) -> None:
        self.config = config = configuration(config)
        self.compiler: CompilerInterface = make_compiler(
            compiler if compiler is not None else config.compiler_name()
        )
        chosen = cache_dir or config.cache_dir
        self.cache = DiskCache(Path(chosen) if chosen else None)
        self.disabled = disable_cache
        self.factors: cache_key.Factors = {}
        self.key: CacheKey | None = None
        self.counts = Counts()
        self._made: dict[tuple[str, Any], Compiled] = {}
        #: what pieces are loaded by, by their calls, which ``_made`` holds
        self._handles: dict[int, tuple[Any, Any]] = {}
        self._lock = threading.RLock()
        self._why = "nothing was compiled yet"

    def initialize_cache(
        self,
        *,
        model: nn.Module | None = None,
        functions: Iterable[FunctionType] = (),
        inputs: Iterable[Any] = (),
        name: str = "",
    ) -> CacheKey:
        """Settle under which key pieces are kept, from all that they depend on. ``name``: of the model, where it is no module."""
        factors = cache_key.factors_of(
            self.config, self.compiler, model=model, functions=functions, inputs=inputs
        )
        self.factors, self.key = factors, cache_key.key_of(factors)
        self.compiler.initialize_cache(self.cache.root, self.disabled, self.key.digest[:16])
        if not self.disabled:
            known = cache_key.KnownKeys(self.cache, factors.get("model", name))
            self._why = cache_key.explain(factors, known.read())
            known.add(factors)
        return self.key

    def explain_miss(self) -> str:
        """Why nothing was kept for this model under its key: the factors in which it differs from the nearest key that is known."""
        return self._why

    def compile(
        self,
        graph: GraphModule,
        example_inputs: Sequence[Any],
        *,
        graph_index: int = 0,
        runtime_shape: Any = None,
    ) -> Compiled:
        """A piece as a callable of its inputs: one compiled before that computes the same, one from disk, or a new one."""
        structure = structure_of(graph)
        with self._lock:
            found = self._made.get((structure.digest, runtime_shape))
            if found is not None:
                self._count("shared")
                return found
            place = self._place(structure.digest, runtime_shape) if structure.portable else None
            call, handle = self._loaded(place, structure.digest, graph, example_inputs, runtime_shape)
            if call is None:
                call, handle = self.compiler.compile(
                    graph,
                    example_inputs,
                    dict(self.config.inductor_compile_config),
                    runtime_shape,
                    structure.digest,
                )
                self._count("compiled")
                if place is not None and handle is not None:
                    self._store(place, structure.digest, handle, graph_index, runtime_shape)
            self._made[structure.digest, runtime_shape] = call
            self._handles[id(call)] = handle, runtime_shape
            return call

    def handle_of(self, call: Compiled) -> tuple[Any, Any]:
        """What a piece is loaded by, and the size or range that it was compiled for."""
        return self._handles[id(call)]

    def load_alone(self, handle: Any, runtime_shape: Any) -> Compiled:
        """A piece of its handle, without its graph. An exception where it cannot be."""
        call = self.compiler.load(handle, None, (), dict(self.config.inductor_compile_config), runtime_shape)
        self._count("loaded")
        return call

    def _count(self, what: str) -> None:
        self.counts = dataclasses.replace(self.counts, **{what: getattr(self.counts, what) + 1})
        trace.count(f"pieces_{what}")

    def _place(self, digest: str, runtime_shape: Any) -> CacheKey | None:
        if self.disabled or self.key is None:
            return None
        return key(
            "pieces",
            key=self.key.digest,
            graph=digest,
            shape=repr(runtime_shape),
            compiler=self.compiler.name,
        )

    def _loaded(
        self, place: CacheKey | None, digest: str, graph: GraphModule, examples: Sequence[Any], shape: Any
    ) -> tuple[Compiled | None, Any]:
        """The piece from disk and what it was loaded by; None where it is not there, or not of this graph."""
        data = self.cache.get(place, "json") if place is not None else None
        if data is None:
            return None, None
        try:
            kept = json.loads(data)
            if kept["graph"] != digest:
                warn_once(
                    ("BZ7210", digest),
                    f"BZ7210: what is kept for piece {digest[:12]} was made of another graph; it is compiled again",
                    "cache",
                )
                return None, None
            config = dict(self.config.inductor_compile_config)
            call = self.compiler.load(kept["handle"], graph, examples, config, shape)
        except (KeyError, TypeError, ValueError, NotImplementedError) as error:
            log.info("piece %s is compiled again: %s", digest[:12], error)
            return None, None
        self._count("loaded")
        return call, kept["handle"]

    def _store(self, place: CacheKey, digest: str, handle: Any, index: int, shape: Any) -> None:
        kept = {"graph": digest, "handle": handle, "index": index, "shape": repr(shape)}
        self.cache.put(place, json.dumps(kept, sort_keys=True).encode(), "json")
