"""What user code may call to talk to the capture: break here, am I being captured, leave this alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

from braze.native import torch_state
from braze.support.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])

#: attribute of a function that is never captured nor inlined
DISABLED = "_braze_disable"
#: its value on functions of braze itself
OWN = "braze's own"
#: attribute of a function that is one node of the graph, its code not looked into
ALLOWED = "_braze_allow_in_graph"
#: code of the wrappers beneath which nothing is captured
WITH_CALLEES: set[CodeType] = set()


def graph_break() -> None:
    """End the graph here; without capture this does nothing."""


def is_compiling() -> bool:
    """True while the code is being captured, False in eager."""
    return False


def mark_step_begin() -> None:
    """A step of the program begins: for programs that say so to ``torch.compile``'s recordings. Braze's need not be told."""


def allow_in_graph(fn: F) -> F:
    """Put calls of ``fn`` into the graph as they are, its Python code not interpreted: no guard sees what it reads.

    ``fn`` takes and returns tensors and constants, and has no effect but on them.
    """
    _check_function("allow_in_graph", fn)
    setattr(fn, ALLOWED, True)
    return fn


def _check_function(name: str, fn: Any) -> None:
    if not callable(fn):
        raise UserError(
            "BZ0012",
            f"braze.{name} takes a function, not {type(fn).__name__}",
            hints=[f"@braze.{name} above def f(...)"],
        )


def opaque(fn: F) -> F:
    """Mark a function of braze's own: neither braze nor Dynamo looks into it, or into what it calls."""
    function = cast(FunctionType, fn)
    WITH_CALLEES.add(function.__code__)
    setattr(fn, DISABLED, OWN)
    torch_state.hidden_from_dynamo(function)
    return fn


def disable(fn: F | None = None, *, recursive: bool = True, reason: str = "") -> Any:
    """Never capture ``fn``; with ``recursive`` nothing that it calls either. Works as a decorator too."""
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    _check_function("disable", fn)

    if recursive:

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        WITH_CALLEES.add(cast(FunctionType, wrapper).__code__)
    else:

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

    setattr(wrapper, DISABLED, reason or True)
    return wrapper
