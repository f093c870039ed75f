"""What PyTorch hangs on an optimizer's ``step``: its hooks and profiling, and the marks that schedulers look for.

Private names of ``torch.optim`` stand here alone; they are the same in 2.11 to 2.15.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch


def hooked(step: Callable[..., Any]) -> Callable[..., Any]:
    """``step`` with the hooks that users register, as PyTorch wraps the step of each class of optimizers."""
    wrapped: Any = torch.optim.Optimizer.profile_hook_step(step)
    wrapped.hooked = True
    return wrapped


def unhooked(cls: Any) -> Callable[..., Any]:
    """The step of a class without the hooks."""
    step: Any = undisabled(cls.step)
    while getattr(step, "hooked", False):
        step = undisabled(step.__wrapped__)
    return step


def undisabled(function: Any) -> Callable[..., Any]:
    """A function without the wrappers by which torch.compile, once used, keeps it out of its graphs: one for each class."""
    while hasattr(function, "_torchdynamo_orig_callable"):
        function = function._torchdynamo_orig_callable
    return function


def steps_alike(cls: Any, known: Any) -> bool:
    """Whether a subclass of ``known`` steps as that does."""
    begins = undisabled(cls._init_group) is undisabled(known._init_group)
    return begins and unhooked(cls) is unhooked(known)


def own_step_is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the object steps as its class does; a scheduler's wrapper counts as that."""
    found = vars(optimizer).get("step")
    return found is None or getattr(found, "_wrapped_by_lr_sched", False)


def release_scheduled_step(optimizer: torch.optim.Optimizer) -> None:
    """Let the wrapper that a scheduler has put on the object call the step of its present class.

    A scheduler wraps the step it finds, to see whether the optimizer has stepped before it.
    """
    if "step" not in vars(optimizer):
        return
    held = weakref.ref(optimizer)

    @functools.wraps(type(optimizer).step)
    def step(*args: Any, **kwargs: Any) -> Any:
        stepped: Any = held()
        stepped._opt_called = True
        return type(stepped).step(stepped, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step  # type: ignore[method-assign]
