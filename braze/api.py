"""The public face: what ``import braze`` offers.

Every word of :func:`compile` means what it means to ``torch.compile``.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from braze import native
from braze.backends.registry import list_backends, register_backend
from braze.capture.dispatch import session
from braze.capture.dispatch.stance import read_environment, set_stance
from braze.capture.dispatch.variants import history_of
from braze.capture.facts.markers import (
    allow_in_graph,
    disable,
    graph_break,
    is_compiling,
    mark_step_begin,
    opaque,
)
from braze.capture.facts.marks import check_names, mark_batch, mark_dynamic, mark_static, mark_unbacked
from braze.capture.python.higher_order import is_node
from braze.decomp import users
from braze.graph.fakes import kernels
from braze.graph.private import torch_import
from braze.module import CompiledModule, compile_module
from braze.runtime.memory import heap
from braze.runtime.memory.arena import clear_arenas
from braze.settings import Settings, pairs, switch
from braze.support import caches, log, trace
from braze.support.errors import RecompileError, UserError
from braze.symbolic.shape_rules import parse_shapes

if TYPE_CHECKING:
    from braze.inspect.explain import Explanation
    from braze.optim import clip_grad_norm_, clip_grad_value_, compile_optimizer

__all__ = [
    "RecompileError",
    "allow_in_graph",
    "clip_grad_norm_",
    "clip_grad_value_",
    "compile",
    "compile_optimizer",
    "decompositions",
    "disable",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "mark_batch",
    "mark_dynamic",
    "mark_static",
    "mark_step_begin",
    "mark_unbacked",
    "register_backend",
    "register_decomposition",
    "reset",
    "set_stance",
]


def __getattr__(name: str) -> Any:
    if name not in ("clip_grad_norm_", "clip_grad_value_", "compile_optimizer"):
        raise AttributeError(f"module 'braze.api' has no attribute {name!r}")
    from braze import optim  # imports the code generators, for which a first capture should not wait

    value = getattr(optim, name)
    if name != "compile_optimizer":
        value = disable(value)  # it reads addresses: in a compiled function it runs whole, outside the graph
    globals()[name] = value
    return value


F = TypeVar("F", bound=Callable[..., Any])

log.configure()
read_environment()


@opaque
def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "braze",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    shapes: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a function or a module; also a decorator, with and without arguments.

    A function comes back as a callable of the same signature. An ``nn.Module`` comes back as a module
    that shares everything with the original (parameters, buffers, submodules, hooks, attributes, keys of the
    state dict) and whose call is compiled.

    ``fullgraph``: a graph break is an error. ``dynamic``: sizes are symbolic at once (True), never
    (False), or from the second size on (None). ``backend``: a name of :func:`list_backends` or a callable
    ``(GraphModule, example_inputs) -> callable``. ``mode``: "default", "reduce-overhead", "auto", "max-autotune" or
    "max-autotune-no-cudagraphs". ``options``: fields of ``braze.options.Options``. ``disable``: return
    ``model`` as it is. ``shapes``: sizes named up front, ``{"x": ("B", "S<=4096 %8")}``: named sizes are symbolic
    at once, the same name is the same size, and each call is held to it (docs/dynamic_shapes.md).
    """
    settings = Settings(
        fullgraph=switch("fullgraph", fullgraph),
        dynamic=None if dynamic is None else switch("dynamic", dynamic, "True, False or None"),
        backend=backend,
        mode=mode,
        options=pairs(options),
        shapes=parse_shapes(shapes or {}),
    )
    disable = switch("disable", disable)
    settings.check()
    if model is None:
        return functools.partial(_compile, settings=settings, disable=disable)
    return _compile(model, settings, disable)


def backend_of_dynamo(
    graph: nn.Module,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """``torch.compile(model, backend="braze")``: a graph of Dynamo's, compiled. PyTorch finds it as an entry point of this package.

    For code that calls ``torch.compile`` itself and asks for a backend's name. Dynamo's captures, guards and time remain, and the
    parameters are inputs of the graph, so that nothing is packed or computed once. ``mode`` and ``options`` are those of :func:`compile`.
    """
    return compile(graph, mode=mode, options=options)


@opaque
def explain(fn: Callable[..., Any], *, timed: int = 0, **settings: Any) -> Callable[..., Explanation]:
    """``braze.explain(fn)(*args)`` compiles and runs ``fn`` afresh and tells what happened.

    Each kernel stands beside the least time that its bytes and operations take on this device (``costs``). ``timed``: so many
    calls more (and one before them) run under PyTorch's profiler, and kernels are listed with what they took.

    Keyword arguments are those of :func:`compile`. The result prints well; ``as_dict()`` and ``to_json()`` give
    the same as data. Recompiles of ``fn`` before this run are listed too.
    """
    _check_callable(fn)
    target = fn.__compiled__.original if isinstance(fn, CompiledModule) else _original(fn)
    # rich, which prints it, stays off the path of those who only compile
    from braze.inspect import explain as inspection

    past = history_of(target)
    return inspection.explain(compile(target, **settings), name=_name(target), history=past, timed=timed)


def register_decomposition(*ops: Any) -> Callable[[F], F]:
    """Let the default backend compute operators by a function of yours, of simpler ones. A decorator.

    ::

        @braze.register_decomposition(torch.ops.aten.gelu.default)
        def gelu(x, approximate="none"):
            return x * torch.sigmoid(1.702 * x)

    ``ops``: overloads, or packets (``torch.ops.aten.gelu``) for all their overloads; the in-place form follows. The function
    takes the operator's arguments and returns what it does, in the same dtypes and shapes (else BZ9022 is logged, and the operator stays);
    ``NotImplemented`` leaves a call to the operator. It comes before braze's own decompositions, and those before
    PyTorch's; ``options={"decompositions": {...}}`` of one compile comes before it. It holds from now on, or to the end of
    the ``with braze.decompositions():`` around it: what was compiled without it is compiled again, and kept for when it is gone.
    Gradients are PyTorch's for the operator: register its backward too where they should follow. UserError (BZ0045) for
    what cannot have a decomposition.
    """

    def enter(function: F) -> F:
        _turn(users.add, dict.fromkeys(ops, function) or {None: function})
        return function

    return enter


@contextlib.contextmanager
def decompositions(given: Mapping[Any, Callable[..., Any]] | None = None) -> Iterator[None]:
    """A block at whose end the registered decompositions are what they were before; ``given`` holds inside it.

    What is compiled in the block stays for when the same functions are registered again. For the whole process, not for a thread.
    """
    before = _turn(users.add, given or {})
    try:
        yield
    finally:
        _turn(users.replace, before)


@disable
def _turn(change: Callable[[Any], Any], given: Any) -> Any:
    """Change the table, and go over to what was compiled under the new one; gives the table before."""
    before = change(given)
    _follow()
    return before


def _follow() -> None:
    """Go over to what was compiled under the decompositions and the kernels of now."""
    session.turn_to((users.key(), kernels.key()) if kernels.key() else users.key())


@opaque
def reset() -> None:
    """Forget every compiled function, counter and once-only warning of this process; free the memory that calls left for the next."""
    session.reset()
    clear_arenas()
    heap.give_back()
    trace.reset_counters()
    caches.forget()  # what warnings have been given is such a table, too


def _check_callable(model: Any) -> None:
    if not callable(model) or isinstance(model, type):
        raise UserError(
            "BZ0005",
            f"cannot compile {model!r}",
            why="braze.compile takes a function, a method, an nn.Module or another callable object",
            hints=["compile an instance or its method" if isinstance(model, type) else "pass the callable"],
        )


def _compile(model: Any, settings: Settings, disable: bool) -> Any:
    _check_callable(model)
    if disable:
        return model
    torch_import.warn_of_untested_version()
    kernels.watch(_follow)
    if isinstance(model, CompiledModule):
        model = model.__compiled__.original
    check_names(model.forward if isinstance(model, nn.Module) else model, settings.shapes)
    if isinstance(model, nn.Module):
        return compile_module(model, settings)
    model = _original(model)
    entry = session.compile_callable(
        _as_python_function(model), settings.bound_backend(), settings.resolve(), name=_name(model)
    )
    vars(entry)[GIVEN] = model, settings
    vars(entry)[native.DEEPCOPY] = _deepcopied
    return entry


#: under this name a compiled function holds what it was made of: in a table of ours a method whose object holds the compiled function
#: (`model.forward = braze.compile(model.forward)`) would keep both alive
GIVEN = "__braze_given__"


def _original(fn: Any) -> Any:
    """What a compiled function was made of; anything else is itself, also where it wraps a function."""
    return vars(fn).get(GIVEN, (fn.__wrapped__,))[0] if type(fn) is native.Entry else fn


def _reduce(entry: Any) -> Any:
    """How a compiled function is pickled: by its name, where it stands under that, or as its original and what was asked."""
    model, settings = vars(entry).get(GIVEN, (None, None))
    if settings is None:
        raise TypeError("this part of a compiled module is not pickled by itself: pickle the module")
    found: Any = sys.modules.get(entry.__module__)
    for name in entry.__qualname__.split("."):
        found = getattr(found, name, None)
    return entry.__qualname__ if found is entry else (_compile, (model, settings, False))


def _deepcopied(entry: Any, memo: dict[int, Any]) -> Any:
    """A compiled method of the copied object, as a method's copy is; a function is its own copy, compiled too."""
    model, settings = vars(entry).get(GIVEN, (None, None))
    copied = model if settings is None else copy.deepcopy(model, memo)
    return entry if copied is model else _compile(copied, settings, False)


copyreg.pickle(native.Entry, _reduce)


def _as_python_function(fn: Any) -> Any:
    """``fn``, or a Python function that calls it where it is a builtin, a partial or another object, or a node whole."""
    fn = getattr(fn, "__braze_function__", fn)
    if isinstance(fn, types.FunctionType) and not is_node(fn):
        return fn
    if isinstance(fn, types.MethodType) and isinstance(fn.__func__, types.FunctionType):
        return fn

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return functools.update_wrapper(call, fn) if hasattr(fn, "__name__") else call


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__)
