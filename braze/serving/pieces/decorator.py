"""``support_torch_compile``: a class of modules whose instances compile themselves as their configuration says.

The class keeps its name, its bases and its ``__call__`` with all hooks; its ``forward`` asks the configuration. Nothing that instances share is
changed by a call, so that an error, another instance or another thread finds everything as it was.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

import braze
from braze.capture.facts.markers import is_compiling
from braze.serving.pieces.backend import ServingBackend
from braze.serving.pieces.once import CompiledOnce, Dims
from braze.serving.pieces.pools import GraphPools
from braze.serving.pieces.writes import refuse_writes
from braze.serving.policy.config import CompilationConfig, configuration
from braze.serving.policy.engine_config import Config
from braze.serving.policy.fields import BY_NAME, refuse
from braze.serving.policy.levels import CompilationLevel
from braze.support.errors import UserError

M = TypeVar("M", bound=type[nn.Module])
#: the name of the size of dimensions that are given without one
TOKENS = "num_tokens"
#: where an instance keeps what was compiled for it
_KEPT = "_braze_compiled_forward"
#: where it keeps the sizes that its engine records
_SIZES = "_braze_recorded_tokens"

Given = Mapping[str, "int | Sequence[int] | Mapping[int, str]"]


def support_torch_compile(
    cls: M | None = None,
    *,
    dynamic_arg_dims: Given | None = None,
    enable_if: Callable[[CompilationConfig], bool] | None = None,
    config: Any = None,
    evaluate_guards: bool = False,
    mutable_buffers: Collection[str] = (),
) -> Any:
    """Let instances of a module class compile their ``forward`` by their configuration's level. A decorator, with and without arguments.

    ``dynamic_arg_dims``: dimensions that vary from call to call, by argument: a number (``0``, ``-1``), several, or ``{0: "b"}`` with the names of
    their sizes. Sizes of one name are the same in each call; without names all are. By default dimension 0 of each argument that is
    annotated as a tensor. ``enable_if``: whether to compile, by the configuration. ``config``: a ``CompilationConfig`` or an engine's ``Config``, for
    instances whose constructor is given none; without either level 0. ``evaluate_guards``: check at each call what was taken for granted at the
    first. ``mutable_buffers``: caches that forward writes in place.

    Level 0 runs ``forward``. Level 1 captures it whole and runs it as captured, with all guards. Level 2 captures it once and compiles it whole; level 3
    compiles it by pieces, which are recorded as the forward context says; no guard makes either capture again. ``do_not_compile`` on an instance
    says that it runs as it is; set it to True to switch compiling off. UserError: BZ7103 for a dict in a configuration's place; BZ7215 for dimensions of no
    argument, or none at all; BZ7216 for a forward that writes to its buffers; a graph break is an error at every level above 0.
    """
    if cls is None:
        return functools.partial(
            support_torch_compile,
            dynamic_arg_dims=dynamic_arg_dims,
            enable_if=enable_if,
            config=config,
            evaluate_guards=evaluate_guards,
            mutable_buffers=mutable_buffers,
        )
    if not isinstance(cls, type) or not issubclass(cls, nn.Module):
        raise UserError(
            "BZ7215",
            f"support_torch_compile does not take {cls!r}",
            why="it equips a class of modules, whose instances compile themselves",
            hints=["@support_torch_compile above the class; braze.serve(model) for a module"],
        )
    if "__braze_plan__" in vars(cls):
        return cls
    plan = _Plan(
        cls, dims_of(cls, dynamic_arg_dims), enable_if, config, evaluate_guards, frozenset(mutable_buffers)
    )
    _equip(cls, plan)
    return cls


class _Plan:
    """What the decorator was told of a class, and what stands behind each of its instances."""

    def __init__(
        self,
        cls: type[nn.Module],
        dims: Dims,
        enable_if: Callable[[CompilationConfig], bool] | None,
        config: Any,
        evaluate_guards: bool,
        mutable_buffers: frozenset[str],
    ) -> None:
        self.forward: Any = cls.forward
        self.name = cls.__qualname__
        self.dims, self.enable_if = dims, enable_if
        self.config = None if config is None else configuration(config)
        self.evaluate_guards, self.mutable_buffers = evaluate_guards, mutable_buffers
        self.lock = threading.RLock()
        #: what "cudagraph_capture_sizes" among sizes to compile for stands for, where an engine's configuration says so
        self.sizes = _sizes_in([config])

    def settle(self, module: nn.Module, given: Any) -> None:
        """Note the configuration of a new instance."""
        config = _config_in(given) or self.config or _none_meant(given)
        enabled = self.enable_if is None or self.enable_if(config)
        module.__dict__.setdefault("compilation_config", config)
        module.__dict__[_SIZES] = _sizes_in(given) or self.sizes
        module.__dict__["do_not_compile"] = config.level is CompilationLevel.NO_COMPILATION or not enabled

    def instance(self, module: nn.Module) -> _Instance:
        """What was compiled for a module, or is to be."""
        found = module.__dict__.get(_KEPT)
        if found is None:
            with self.lock:
                found = module.__dict__.get(_KEPT)
                if found is None:
                    found = module.__dict__[_KEPT] = _Instance(self, module)
        return found  # type: ignore[no-any-return]


class _Instance:
    """One module's compiled forward. It stands in the module's ``__dict__``, and copies of the module make their own."""

    def __init__(self, plan: _Plan, module: nn.Module) -> None:
        config = module.__dict__.get("compilation_config") or CompilationConfig()
        self.plan, self.config = plan, config
        self.pools = GraphPools(config.pool)
        self.backend: ServingBackend | None = None
        self.call: Any = None
        bound = types.MethodType(plan.forward, module)
        if config.level is CompilationLevel.DYNAMO_AS_IS:
            self.call = braze.compile(bound, fullgraph=True, backend="eager")
            return
        whole = config.level is CompilationLevel.DYNAMO_ONCE
        self.backend = ServingBackend(
            config,
            pools=self.pools,
            capture_sizes=module.__dict__.get(_SIZES),
            model=module,
            name=plan.name,
            whole=whole,
            keeps=True,
        )
        self.call = CompiledOnce(
            bound,
            _Careful(self.backend, plan),
            plan.dims,
            evaluate_guards=plan.evaluate_guards,
            name=plan.name,
        )

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> Any:
        return type(None), ()


class _Careful:
    """A backend that refuses a forward that writes; what it has kept was not refused, and is found by what may be written."""

    keeps = True

    def __init__(self, backend: ServingBackend, plan: _Plan) -> None:
        self.backend, self.plan = backend, plan

    def __call__(self, gm: Any, example_inputs: Any) -> Callable[..., Any]:
        refuse_writes(gm, self.plan.name, self.plan.mutable_buffers)
        return self.backend(gm, example_inputs)

    def keep_call(self, capture: str) -> None:
        """Keep what was compiled last."""
        self.backend.keep_call(self._named(capture))

    def kept_call(self, capture: str, functions: Sequence[Any]) -> Callable[..., Any] | None:
        """What was kept for a capture; None where nothing was."""
        return self.backend.kept_call(self._named(capture), functions)

    def _named(self, capture: str) -> str:
        return " ".join([capture, *sorted(self.plan.mutable_buffers)])


def compiled_forward(module: nn.Module) -> Any:
    """What stands behind an instance of a decorated class: ``.call`` (see :class:`CompiledOnce`), ``.backend``, ``.pools``; None where it runs as it is."""
    plan: _Plan | None = getattr(type(module), "__braze_plan__", None)
    if plan is None or module.__dict__.get("do_not_compile", True):
        return None
    return plan.instance(module)


def _equip(cls: Any, plan: _Plan) -> None:
    """Put the constructor and forward of a decorated class in place of its own."""
    made, forward = cls.__init__, plan.forward

    @functools.wraps(made)
    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        # a subclass that is not decorated stays as it is
        if type(self).__dict__.get("__braze_plan__") is plan:
            plan.settle(self, (*args, *kwargs.values()))

    @functools.wraps(forward)
    def dispatch(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or self.__dict__.get("do_not_compile", True):
            return forward(self, *args, **kwargs)
        return plan.instance(self).call(*args, **kwargs)

    cls.__init__, cls.forward, cls.__braze_plan__ = __init__, dispatch, plan


def _config_in(values: Any) -> CompilationConfig | None:
    """The configuration among values, or in an engine's among them."""
    for value in values:
        found = getattr(value, "compilation_config", value)
        if isinstance(found, CompilationConfig):
            return found
    return None


def _sizes_in(values: Any) -> tuple[int, ...] | None:
    """The numbers of tokens that an engine records, by its configuration among values."""
    return next((value.recorded_tokens() for value in values if isinstance(value, Config)), None)


def _none_meant(values: Any) -> CompilationConfig:
    """The configuration of an instance that is given none; BZ7103 where a dict among the values has the words of one."""
    for value in values:
        if isinstance(value, Mapping) and "level" in value and BY_NAME.keys() >= set(value):
            raise refuse("config", value, f"a CompilationConfig: CompilationConfig(**{dict(value)!r})")
    return CompilationConfig()


# -- dimensions -------------------------------------------------------------------------------------


def dims_of(cls: type[nn.Module], given: Given | None) -> dict[str, dict[int, str]]:
    """The dimensions that vary, by argument of ``forward``, with the names of their sizes."""
    parameters = inspect.signature(cls.forward).parameters
    if given is None:
        found: dict[str, dict[int, str]] = {n: {0: TOKENS} for n in _annotated(cls) if n in parameters}
        if not found:
            raise UserError(
                "BZ7215",
                f"no argument of {cls.__qualname__}.forward is annotated as a tensor",
                why="dimension 0 of those is what varies, where nothing is said",
                hints=['annotate them, or say dynamic_arg_dims={"input_ids": 0}'],
            )
        return found
    if not isinstance(given, Mapping):
        raise refuse("dynamic_arg_dims", given, "a dict of dimensions by argument: {'input_ids': 0}")
    unknown = [name for name in given if name not in parameters]
    if unknown or not given:
        raise UserError(
            "BZ7215",
            f"{cls.__qualname__}.forward has no argument {unknown[0]!r}"
            if unknown
            else "no dimension is said to vary",
            hints=[f"arguments: {', '.join(n for n in parameters if n != 'self')}"],
        )
    return {name: _named(name, dims) for name, dims in given.items()}


def _named(name: str, dims: Any) -> dict[int, str]:
    named = isinstance(dims, Mapping)
    listed = [dims] if isinstance(dims, int) else list(dims) if isinstance(dims, Sequence) or named else []
    if (
        not listed
        or not all(type(d) is int for d in listed)
        or (named and not all(map(_is_name, dims.values())))
    ):
        raise UserError(
            "BZ7215",
            f"dynamic_arg_dims[{name!r}] does not take {dims!r}",
            hints=["a dimension, several, or {0: 'num_tokens'} with the names of their sizes"],
        )
    if named:
        return dict(dims)
    return {d: TOKENS if k == 0 else f"{TOKENS}_{k}" for k, d in enumerate(listed)}


def _is_name(word: Any) -> bool:
    return isinstance(word, str) and word.isidentifier()


def _annotated(cls: type[nn.Module]) -> list[str]:
    """The arguments that are annotated as a tensor, or as one or None."""
    try:
        hints = typing.get_type_hints(cls.forward)
    except (NameError, TypeError):  # a name that only type checkers know
        hints = dict(cls.forward.__annotations__)
    return [name for name, hint in hints.items() if name != "return" and _is_tensor(hint)]


def _is_tensor(hint: Any) -> bool:
    if isinstance(hint, str):
        return (
            hint.removesuffix(" | None").removeprefix("Optional[").rstrip("]").rpartition(".")[2] == "Tensor"
        )
    if hint is torch.Tensor:
        return True
    parts = set(typing.get_args(hint))
    return parts == {torch.Tensor, type(None)}
