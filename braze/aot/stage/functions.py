"""Ahead-of-time autograd for those who write compilers of their own: functions and modules through two compilers.

``aot_function(fn, fw_compiler, bw_compiler)`` is ``fn`` with its forward and backward compiled by two functions of yours,
``aot_module`` the same of a module, ``aot_module_simplified`` of the graph that a backend is given. The words
are functorch's; what differs is said where it does.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch import nn

from braze.aot.calls.autograd import differentiable
from braze.aot.calls.compilers import Compiler, compiled_by
from braze.aot.calls.wrap import with_own_results, wrap
from braze.aot.joint.partition_functions import NAMED, PartitionFn, default_partition
from braze.aot.stage.partition import partition
from braze.aot.trace.program import Program, signature
from braze.context import CompileContext
from braze.graph.fakes.fakes import mode_of
from braze.graph.operators.decompositions import as_table, with_inplace
from braze.graph.private.torch_checks import require
from braze.graph.private.torch_compat import pytree
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.options import make_options
from braze.runtime.call.boxed import Boxed
from braze.support.errors import UserError
from braze.support.log import warn_once
from braze.support.record import record
from braze.support.spoken import name_of_callable
from braze.target import cpu_target

#: a function called with more kinds of arguments than this forgets those it was called with least lately
MOST_VARIANTS = 64
#: marks of a function beneath which neither braze.compile nor torch.compile captures anything
WHOLE = {
    "_braze_disable": "aot_function",
    "_torchdynamo_disable": True,
    "_torchdynamo_disable_recursive": True,
}


@record
class Compilers:
    """Who compiles what; ``inference`` gets graphs that need no gradient."""

    forward: Compiler
    backward: Compiler
    inference: Compiler
    partition_fn: PartitionFn
    decompositions: Mapping[Any, Callable[..., Any]]
    context: CompileContext


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFn | str = default_partition,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    num_params_buffers: int = 0,
    *,
    inference_compiler: Compiler | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """``fn`` with its forward and backward traced ahead of time and compiled by functions of yours.

    ``fn`` takes tensors and constants nested in tuples, lists and dicts, by place or by name, and returns such; tensors of any dense
    layout, dtype and device. It is run twice on fakes: it must not depend on what tensors hold, and Python side effects happen
    only then. ``fw_compiler(module, example_inputs)`` gets an ``fx.GraphModule`` of functional ATen operators and its
    inputs as fakes, and returns a callable (see :mod:`braze.aot.calls.compilers`) that returns a tuple of what the graph does.
    ``bw_compiler`` (``fw_compiler``) gets the backward when it first runs, ``inference_compiler`` (``fw_compiler``) graphs that need
    no gradient. ``partition_fn``: :func:`default_partition`, :func:`min_cut_partition` (or ``"default"``,
    ``"min_cut"``), or a function of yours. ``decompositions``: operator -> function of simpler ones, for this function alone
    (``braze.decomp.table()``: all that the default backend uses). ``num_params_buffers``: so many arguments first are
    parameters, which their roles say. ``options``: those of ``braze.compile``, such as ``memory_budget``.

    The result does what ``fn`` does: arguments that ``fn`` writes are written, outputs that are views of arguments are,
    gradients flow. Other than in functorch there is one compile for each kind of arguments (shapes, dtypes, strides,
    ``requires_grad``, constants, who shares memory; grad mode, autocast), where functorch runs the first one's for all.

    Raises UserError for compilers and partitions that do not fit (BZ0040, BZ0041), results that no graph gives (BZ0042) and
    arguments that are no keys (BZ0043), Unsupported for what the trace cannot carry (BZ20xx).
    """
    compilers = _compilers(
        fn, fw_compiler, bw_compiler, partition_fn, decompositions, inference_compiler, options
    )
    variants = _Variants(name_of_callable(fn))

    @functools.wraps(fn, updated=())
    def compiled(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        found = variants.find(leaves, spec, lambda: _Variant(fn, leaves, spec, num_params_buffers, compilers))
        return found(leaves)

    compiled.__dict__.update(WHOLE)
    return compiled


def aot_module(mod: nn.Module, fw_compiler: Compiler, *args: Any, **kwargs: Any) -> nn.Module:
    """A module over ``mod`` whose forward and backward are compiled as :func:`aot_function` does; arguments are its.

    Parameters and buffers are inputs of the graphs, with the role PARAMETER, read from ``mod`` at each call; ``mod`` is ``.orig_module``, so
    keys of the state dict begin with ``orig_module.``. Buffers must be written in place (BZ2009).
    """
    if not isinstance(mod, nn.Module):
        raise UserError("BZ0005", f"aot_module takes an nn.Module, not {type(mod).__name__}")
    return AOTModule(mod, fw_compiler, *args, **kwargs)


class AOTModule(nn.Module):
    """What :func:`aot_module` returns."""

    def __init__(self, mod: nn.Module, /, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.orig_module = mod
        kwargs.setdefault("num_params_buffers", len(_state(mod)))
        self._compiled = aot_function(_functional(mod), *args, **kwargs)

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(_state(self.orig_module), args, kwargs, _modes(self.orig_module))


def aot_module_simplified(
    mod: torch.fx.GraphModule | nn.Module,
    args: Sequence[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFn | str = default_partition,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    *,
    inference_compiler: Compiler | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What a backend calls: ``mod`` over example inputs ``args``, compiled now; ``f(*inputs)`` gives what ``mod`` gives.

    ``mod`` is the graph that ``braze.compile`` gives a backend with its example inputs (fakes, with symbolic
    sizes where capture made them so), or any module over real tensors, whose parameters and buffers are then inputs in front. Nothing is
    checked at a call, which the guards of the capture do. The other words are :func:`aot_function`'s.
    """
    compilers = _compilers(
        mod, fw_compiler, bw_compiler, partition_fn, decompositions, inference_compiler, options
    )
    if isinstance(mod, torch.fx.GraphModule) and mode_of(args) is not None:
        call = _compile(mod, args, compilers)
        return lambda *inputs: call(inputs)
    leaves, spec = pytree.tree_flatten(((_state(mod), tuple(args), {}, ""), {}))
    variant = _Variant(_functional(mod), leaves, spec, 0, compilers)
    state = list(_state(mod).values())
    return lambda *inputs: variant([*state, *pytree.tree_leaves(inputs), ""])


# -- one function for one kind of arguments ---------------------------------------------------------


class _Variants:
    """The compiled variants of one function, by signature; one compile at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.known: dict[Any, _Variant] = {}
        self.lock = threading.RLock()

    def find(self, leaves: list[Any], spec: Any, make: Callable[[], _Variant]) -> _Variant:
        key = signature(leaves, spec)
        try:
            found = self.known.get(key)
        except TypeError as error:
            raise UserError(
                "BZ0043",
                f"an argument of {self.name} is neither a tensor nor hashable",
                why=f"{error}: what is no tensor is a constant of the compiled graphs, by which they are found again",
                hints=["pass tensors, numbers, strings, None, or other hashable values"],
            ) from error
        if found is None:
            with self.lock:
                found = self.known.get(key)
                if found is None:
                    if len(self.known) >= MOST_VARIANTS:
                        self._forget_one()
                    found = self.known[key] = make()
        return found

    def _forget_one(self) -> None:
        warn_once(
            ("BZ0044", self.name),
            f"BZ0044: {self.name} was called with more than {MOST_VARIANTS} kinds of arguments, and is compiled for each: "
            "pass numbers that change as tensors",
        )
        del self.known[next(iter(self.known))]


class _Variant:
    """A function compiled for one kind of arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        leaves: Sequence[Any],
        spec: Any,
        parameters: int,
        compilers: Compilers,
    ) -> None:
        if any(isinstance(leaf, SYMBOLIC) for leaf in leaves):
            raise UserError(
                "BZ0043",
                "a symbolic size of another compiler among the arguments",
                why="what is made of it here would hold for the size that it happens to have",
                hints=["torch.compile(..., dynamic=False)", "braze.compile, whose sizes may be symbolic"],
            )
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

        @functools.wraps(function, updated=())
        def of_tensors(*tensors: Any) -> Any:
            full = list(constants)
            for i, tensor in zip(self.places, tensors, strict=True):
                full[i] = tensor
            args, kwargs = pytree.tree_unflatten(full, spec)
            return function(*args, **kwargs)

        tensors = [leaves[i] for i in self.places]
        program = Program(of_tensors, tensors, parameters)
        self.call = _compile(program.module, program.examples, compilers)
        self.spec = program.spec

    def __call__(self, leaves: Sequence[Any]) -> Any:
        results = self.call([leaves[i] for i in self.places])
        return pytree.tree_unflatten(list(results), self.spec)


def _compile(module: torch.fx.GraphModule, examples: Sequence[Any], compilers: Compilers) -> Boxed:
    """The graph through the compilers, as ``call(inputs) -> outputs``."""
    part = partition(
        module,
        examples,
        compilers.context,
        compilers.decompositions,
        partition_fn=compilers.partition_fn,
    )
    backward = part.backward
    if backward is None:
        call = with_own_results(part, compiled_by(compilers.inference, part.forward, "forward"))
    else:
        forward = compiled_by(compilers.forward, part.forward, "forward")
        graph = backward.graph
        call = differentiable(part, forward, lambda _: compiled_by(compilers.backward, graph, "backward"))
    return wrap(part, call, eager=module.forward, verify=compilers.context.options.verify)


def _compilers(
    fn: Any,
    forward: Any,
    backward: Any,
    partition_fn: Any,
    decompositions: Any,
    inference: Any,
    options: Mapping[str, Any] | None,
) -> Compilers:
    """What the words of an entry point come to; a UserError for what cannot be."""
    require("braze.graph.fakes.torch_probes")
    if not callable(fn):
        raise UserError("BZ0005", f"cannot compile {fn!r}", why="it is not callable")
    if isinstance(partition_fn, str):
        if partition_fn not in NAMED:
            raise UserError(
                "BZ0041", f"unknown partition {partition_fn!r}", hints=[f"known: {', '.join(NAMED)}"]
            )
        partition_fn = NAMED[partition_fn]
    words = {"fw_compiler": forward, "bw_compiler": backward, "inference_compiler": inference}
    for word, given in (*words.items(), ("partition_fn", partition_fn)):
        if not callable(given) and (given is not None or word in ("fw_compiler", "partition_fn")):
            raise UserError("BZ0040", f"{word}= takes a callable, not {type(given).__name__}")
    return Compilers(
        forward,
        backward or forward,
        inference or forward,
        partition_fn,
        with_inplace(as_table(decompositions or {})),
        CompileContext(make_options(options=options), cpu_target(), name_of_callable(fn)),
    )


# -- modules ----------------------------------------------------------------------------------------


def _state(mod: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; what is shared, once."""
    return {**dict(mod.named_parameters()), **dict(mod.named_buffers())}


def _modes(mod: nn.Module) -> str:
    """Which submodules train, as a constant of the call."""
    return "".join("t" if part.training else "e" for part in mod.modules())


def _functional(mod: nn.Module) -> Callable[..., Any]:
    """``mod`` as a function of its parameters, its buffers and :func:`_modes` too."""

    def call(
        state: dict[str, torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], modes: str
    ) -> Any:
        given = dict(state)
        result = torch.func.functional_call(mod, given, args, kwargs)
        replaced = [name for name, tensor in state.items() if given[name] is not tensor]
        if replaced:
            raise UserError(
                "BZ2009",
                f"{type(mod).__name__} replaces {', '.join(replaced)} when called",
                why="a compiled graph writes to buffers, but cannot put others in their place",
                hints=[
                    "write in place: self.buffer.copy_(...); or use braze.compile, which captures the assignment"
                ],
            )
        return result

    call.__name__ = type(mod).__name__
    return call
