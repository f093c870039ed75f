"""``compile_optimizer``: the same optimizer object, with a step of its own class.

The object stays what it was: schedulers, GradScaler and whatever else holds it go on working, its ``state`` and
``param_groups`` stay the truth, and its class becomes a subclass that differs in ``step`` alone. One such subclass is
made for each class, so a copy or a pickle of the optimizer is compiled too.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from braze import native
from braze.native.torch_state import hidden_from_dynamo
from braze.optim import hooks
from braze.optim.plan import Group, Stepper
from braze.optim.rules import ALGORITHMS, Algorithm
from braze.support.caches import remembered
from braze.support.errors import UserError

_STEPPER = "_braze_stepper"
#: whether its steps are recorded
_RECORDS = "_braze_records"
Opt = TypeVar("Opt", bound=torch.optim.Optimizer)


class CompiledOptimizer:
    """Last base of the classes made by :func:`compiled_class`: the object must keep the layout of its old class."""

    __slots__ = ()
    __compiled__: type  # the class it was made from


def compile_optimizer(optimizer: Opt, *, mode: str | None = None) -> Opt:
    """Give ``optimizer`` a compiled step; returns the same object. Nothing is built before its first step.

    ``mode``: "default", or "reduce-overhead" to record the steps of groups with ``capturable=True`` as CUDA graphs. Raises
    :class:`UserError` (BZ0002) for another mode, and (BZ0030) for an optimizer that has no compiled step.
    """
    if mode not in (None, "default", "reduce-overhead"):
        raise UserError(
            "BZ0002", f"unknown mode {mode!r} of an optimizer", hints=["known: default, reduce-overhead"]
        )
    if isinstance(optimizer, CompiledOptimizer):
        if mode is not None:
            _set_mode(optimizer, mode)
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(
            "BZ0030",
            f"compile_optimizer takes an optimizer, not {type(optimizer).__name__}",
            hints=["for a module or a function: braze.compile"],
        )
    if algorithm_of(type(optimizer)) is None:
        raise UserError(
            "BZ0030",
            f"cannot compile the step of {type(optimizer).__name__}",
            why="there are kernels for torch.optim.SGD, Adam and AdamW, and for subclasses that keep their step",
            hints=["use one of these optimizers", "or go on with this optimizer as it is"],
        )
    if not hooks.own_step_is_plain(optimizer):
        raise UserError(
            "BZ0030",
            f"cannot compile the step of this {type(optimizer).__name__}",
            why="the object has a step of its own, which replaces that of its class",
            hints=["call braze.compile_optimizer before whatever replaces step"],
        )
    cls: Any = type(optimizer)
    optimizer.__class__ = compiled_class(cls)
    hooks.release_scheduled_step(optimizer)
    _set_mode(optimizer, mode)
    return optimizer


def _set_mode(optimizer: Any, mode: str | None) -> None:
    vars(optimizer).pop(_STEPPER, None)
    vars(optimizer)[_RECORDS] = mode == "reduce-overhead"


def algorithm_of(cls: type) -> Algorithm | None:
    """The algorithm of an optimizer's class; None if there is no kernel for it or it steps in its own way."""
    for known, algorithm in ALGORITHMS.items():
        if issubclass(cls, known) and hooks.steps_alike(cls, known):
            return algorithm
    return None


@remembered(1_000)
def compiled_class(cls: Any) -> Any:
    """The subclass of ``cls`` whose step is compiled."""
    algorithm = algorithm_of(cls)
    assert algorithm is not None
    eager_step = hooks.unhooked(cls)

    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step, as the class this was made from does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        def eager(groups: list[Group]) -> None:
            held = self.param_groups
            self.param_groups = groups
            try:
                eager_step(self)
            finally:
                self.param_groups = held

        _take_step(self, algorithm, eager)
        return loss

    def reduce(self: Any, protocol: Any) -> Any:
        # the made class cannot be found by name: the original can
        return _new, (cls,), *cls.__reduce_ex__(self, protocol)[2:]

    def set_state(self: Any, state: dict[str, Any]) -> None:
        # old state, which a loaded one replaces, is not to be kept alive
        vars(self).pop(_STEPPER, None)
        cls.__setstate__(self, state)

    members = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__compiled__": cls,
        "step": hooks.hooked(step),
        "__reduce_ex__": reduce,
        "__setstate__": set_state,
    }
    return types.new_class(cls.__name__, (cls, CompiledOptimizer), {}, lambda body: body.update(members))


@hidden_from_dynamo
def _take_step(optimizer: Any, algorithm: Algorithm, eager: Callable[[list[Group]], None]) -> None:
    """Step all groups by the kernels made for them, or as PyTorch does where the stance says so."""
    if native.eager_forced():
        eager(optimizer.param_groups)
        return
    stepper = vars(optimizer).get(_STEPPER)
    if stepper is None:
        stepper = vars(optimizer)[_STEPPER] = Stepper(algorithm, records=vars(optimizer).get(_RECORDS, False))
    with torch.no_grad():
        stepper.step(optimizer, eager)


def _new(cls: type) -> Any:
    """An empty compiled optimizer, for copies and pickles."""
    made = compiled_class(cls)
    return made.__new__(made)
