"""Backends by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, overload

from braze.options import near
from braze.support.collector import collector_paused
from braze.support.errors import UserError
from braze.support.record import record
from braze.support.spoken import name_of_callable

Compiler = Callable[..., Callable[..., Any]]


@record
class Backend:
    """A compiler of captured graphs; ``needs_options``: it takes ``options=Options`` too."""

    name: str
    compile: Compiler
    needs_options: bool = False


_backends: dict[str, Backend] = {}

#: modules that register a backend when imported; imported at the first look-up of a name
_OURS = {
    "braze": "braze.backends.default",
    "eager": "braze.backends.eager",
    "aot_eager": "braze.backends.aot_eager",
}


#: backends of torch.compile for which there is one of ours
_THEIRS = {"inductor": "backend='braze', the default, is what 'inductor' is for torch.compile"}


@overload
def register_backend(fn: Compiler, *, name: str | None = None, needs_options: bool = False) -> Compiler: ...
@overload
def register_backend(
    *, name: str | None = None, needs_options: bool = False
) -> Callable[[Compiler], Compiler]: ...
def register_backend(
    fn: Compiler | None = None, *, name: str | None = None, needs_options: bool = False
) -> Any:
    """Make ``backend="name"`` mean this function (by default: its own name). A decorator, too.

    >>> @register_backend
    ... def mine(gm, example_inputs):
    ...     return gm.forward
    """
    if fn is None:
        return lambda given: register_backend(given, name=name, needs_options=needs_options)
    name = name or getattr(fn, "__name__", "")
    if not callable(fn) or not isinstance(name, str) or not name:
        raise UserError(
            "BZ0012",
            f"register_backend takes a function and a name, not {fn!r} and {name!r}",
            hints=["@braze.register_backend above def name(gm, example_inputs): ..."],
        )
    known = _backends.get(name)
    ours = _OURS.get(name)
    if known is not None or (ours is not None and fn.__module__ != ours):
        raise UserError(
            "BZ0006",
            f"backend {name!r} is registered already ({_place(name)})",
            hints=['another name: @braze.register_backend(name="...")'],
        )
    _backends[name] = Backend(name, fn, needs_options)
    return fn


def list_backends() -> list[str]:
    """The names that ``backend=`` takes."""
    return sorted({*_backends, *_OURS})


def find_backend(backend: str | Compiler) -> Backend:
    """The backend of a name, or one made of a callable."""
    if not isinstance(backend, str):
        if not callable(backend):
            raise UserError(
                "BZ0001",
                f"backend= takes a name or a callable, not {type(backend).__name__}",
                hints=[_names()],
            )
        return Backend(name_of_callable(backend), backend)
    if backend not in _backends and backend in _OURS:
        with collector_paused:  # all stages are loaded, which else sets off a full collection
            importlib.import_module(_OURS[backend])
    if backend not in _backends:
        hint = _THEIRS.get(backend) or near(backend, list_backends())
        raise UserError(
            "BZ0001",
            f"unknown backend {backend!r}",
            hints=[hint, _names()] if "known:" not in hint else [hint],
        )
    return _backends[backend]


def _names() -> str:
    return f"backends: {', '.join(list_backends())}"


def _place(name: str) -> str:
    found = _backends.get(name)
    return f"{found.compile.__module__}.{found.compile.__qualname__}" if found else _OURS[name]
