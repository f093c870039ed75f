"""Who compiles the pieces of a model: an interface of four methods, and what stands behind it here.

Four come along: braze's own kernels, eager's operators, PyTorch's Inductor (a foreign one, by ``torch.compile``), and any callable
``(graph_module, example_inputs) -> callable``.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

import braze
from braze.backends.default import context_for, target_of
from braze.backends.uncompiled import compiled_or_as_captured
from braze.codegen.records import HostModule
from braze.context import CompileContext
from braze.cudagraphs.plan import Plans
from braze.options import Options, make_options, near
from braze.pipeline import compile_graph, load_kept
from braze.runtime.call.boxed import Boxed, is_boxed
from braze.serving.pieces.handles import BY_STAGES, call_of, handle_of
from braze.support import trace
from braze.support.errors import UserError

#: a compiled piece: the graph's inputs one by one, its outputs as a tuple
Compiled = Callable[..., Any]


class CompilerInterface:
    """A compiler of pieces. ``name`` is part of what its artifacts are found by."""

    name = ""

    def initialize_cache(self, cache_dir: Path, disable_cache: bool = False, prefix: str = "") -> None:
        """Keep what is to outlive the process below ``cache_dir``."""

    def compute_hash(self, config: Any) -> str:
        """A digest of all that changes what this compiler makes of a graph, beside the graph: its version and settings."""
        return ""

    def compile(
        self,
        graph: GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: Any = None,
        key: str = "",
    ) -> tuple[Compiled, Any]:
        """The graph as a callable, and a handle (JSON) by which :meth:`load` has it back in another process; None: not at all.

        ``example_inputs``: fakes. ``runtime_shape``: the size (int) or range that the graph is compiled for; None: any. ``key``: a name of the
        graph that is the same in each process.
        """
        raise NotImplementedError

    def load(
        self,
        handle: Any,
        graph: GraphModule | None,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: Any = None,
    ) -> Compiled:
        """The callable of a handle. An exception makes the caller compile."""
        raise NotImplementedError

    def loads_alone(self, handle: Any) -> bool:
        """Whether :meth:`load` needs no graph and no example inputs for this handle."""
        return False


class BrazeAdaptor(CompilerInterface):
    """braze's own kernels.

    What is kept on disk are the kernels, in braze's cache, by their contents, the text of the module that calls them, and what it writes and which outputs are views of
    inputs (``handles.py``). Where something else stands around that (a piece that holds large tensors) loading walks through the stages again and builds nothing.
    """

    name = "braze"

    def __init__(
        self, recorder: Callable[..., Any] | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """``recorder``: makes recorded calls of the parts of a graph that is cut after fusion; ``options``: of the compiler."""
        self.recorder, self.options = recorder, dict(options or {})

    def compute_hash(self, config: Any) -> str:
        """Of the compiler's sources."""
        return of_package()

    def compile(
        self,
        graph: GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: Any = None,
        key: str = "",
    ) -> tuple[Compiled, Any]:
        """Kernels for the graph; what a stage cannot carry runs as captured, and says so."""
        options = self._options(compiler_config)
        context = self._context(context_for(graph, example_inputs, options))
        call = compiled_or_as_captured(
            graph,
            context.name,
            lambda: compile_graph(graph, example_inputs, context),
            strict=options.verify > 0,
        )
        return unboxed(call), BY_STAGES if options.verify else handle_of(call, graph)

    def load(
        self,
        handle: Any,
        graph: GraphModule | None,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: Any = None,
    ) -> Compiled:
        """The same: of its text, where that is all of it, else by the stages, with kernels that are on disk."""
        if self.loads_alone(handle):
            return unboxed(call_of(handle, lambda host, plans: self._module(host, plans, compiler_config)))
        if graph is None:
            raise ValueError("it can be loaded with its graph alone")
        return self.compile(graph, example_inputs, compiler_config, runtime_shape)[0]

    def loads_alone(self, handle: Any) -> bool:
        """Where all of it is the text of a module and its kernels."""
        return isinstance(handle, dict) and not trace.dumping()

    def _module(self, host: HostModule, plans: Plans | None, compiler_config: dict[str, Any]) -> Boxed:
        """A module of another process'."""
        target = target_of([torch.empty(0, device=host.device)])
        return load_kept(host, self._context(CompileContext(self._options(compiler_config), target)), plans)

    def _options(self, compiler_config: dict[str, Any]) -> Options:
        # a replay does not compute again what depends on parameters alone, which may be loaded anew
        return make_options(options={"hoist": False, **self.options, **compiler_config})

    def _context(self, context: CompileContext) -> CompileContext:
        fixed = torch.are_deterministic_algorithms_enabled()
        return dataclasses.replace(context, recordable=True, recorder=self.recorder, deterministic=fixed)


class EagerAdaptor(CompilerInterface):
    """Eager's operators, one by one."""

    name = "eager"

    def compile(
        self,
        graph: GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: Any = None,
        key: str = "",
    ) -> tuple[Compiled, Any]:
        """The graph's own forward."""
        return graph.forward, "eager"

    def load(
        self,
        handle: Any,
        graph: GraphModule | None,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: Any = None,
    ) -> Compiled:
        """The same."""
        if graph is None:
            raise ValueError("it can be loaded with its graph alone")
        return graph.forward


class CallableAdaptor(CompilerInterface):
    """Any backend as ``torch.compile`` takes one. Nothing of it is kept on disk."""

    def __init__(self, backend: Callable[..., Any]) -> None:
        self.backend = backend
        self.name = f"{getattr(backend, '__module__', '')}.{getattr(backend, '__qualname__', type(backend).__qualname__)}"

    def compile(
        self,
        graph: GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: Any = None,
        key: str = "",
    ) -> tuple[Compiled, Any]:
        """What the backend makes of the graph."""
        made = self.backend(graph, list(example_inputs))
        if not callable(made):
            raise UserError(
                "BZ0009",
                f"{self.name} gave {type(made).__name__} for a piece",
                why="it must give a callable",
            )
        return unboxed(made), None


class InductorAdaptor(CompilerInterface):
    """PyTorch's Inductor, through ``torch.compile`` alone. It keeps its own cache on disk, and compiles at a piece's first call."""

    name = "inductor"

    def compute_hash(self, config: Any) -> str:
        """Inductor belongs to PyTorch, whose version is a factor of its own."""
        return ""

    def compile(
        self,
        graph: GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: Any = None,
        key: str = "",
    ) -> tuple[Compiled, Any]:
        """A compiled function that is traced at its first call."""
        dynamic = any(
            isinstance(x, torch.SymInt) for v in example_inputs for x in (*getattr(v, "shape", (v,)),)
        )
        call = torch.compile(
            graph, fullgraph=True, dynamic=dynamic, backend="inductor", options=compiler_config or None
        )
        return call, None


#: words of ``CompilationConfig.use_inductor`` and of ``compiler=``
_NAMED: dict[str, Callable[[], CompilerInterface]] = {
    "braze": BrazeAdaptor,
    "eager": EagerAdaptor,
    "inductor": InductorAdaptor,
}


def make_compiler(compiler: Any = "braze") -> CompilerInterface:
    """A compiler by name, of a callable, or as it is. UserError (BZ7209) for anything else."""
    if isinstance(compiler, CompilerInterface):
        return compiler
    if isinstance(compiler, str) and compiler in _NAMED:
        return _NAMED[compiler]()
    if callable(compiler) and not isinstance(compiler, type):
        return CallableAdaptor(compiler)
    hint = near(compiler, _NAMED) if isinstance(compiler, str) else f"names: {', '.join(_NAMED)}"
    raise UserError(
        "BZ7209",
        f"{compiler!r} is no compiler of pieces",
        hints=[hint, "or a CompilerInterface, or a callable (graph_module, example_inputs) -> callable"],
    )


def unboxed(call: Callable[..., Any]) -> Compiled:
    """A callable that takes its inputs one by one."""
    return (lambda *inputs: call(list(inputs))) if is_boxed(call) else call


@functools.cache
def of_package() -> str:
    """A digest of braze's sources: what they make of a graph is between their lines."""
    whole = hashlib.sha256()
    root = Path(braze.__file__).parent
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".c", ".h")):
        whole.update(str(path.relative_to(root)).encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()
