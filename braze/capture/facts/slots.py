"""What fills the argument slots of a frame: the call that would fill them so, and whose method runs."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from braze.capture.facts.resume import STATE_NAMES


class Owner(weakref.ref[torch.nn.Module]):
    """What stands for a module among variants and in the log of what was told: an address would come to be another's."""

    __slots__ = ("address",)
    __hash__, __eq__ = object.__hash__, object.__eq__

    def __init__(self, module: torch.nn.Module, forget: Callable[[Any], None]) -> None:
        super().__init__(module, forget)  # type: ignore[call-arg]  # typeshed knows __new__ alone
        self.address = id(module)


#: those of living modules; a weak reference tells of an end before the address is free
_owners: dict[int, Owner] = {}


def arguments(code: CodeType, locals: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call that fills the argument slots so."""
    position = code.co_argcount
    args = locals[:position]
    kwargs = dict(
        zip(code.co_varnames[position:], locals[position : position + code.co_kwonlyargcount], strict=False)
    )
    position += code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        args += tuple(locals[position])
        position += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(locals[position])
    return args, kwargs


def owner_of(function: FunctionType, locals: tuple[Any, ...]) -> Owner | None:
    """What stands for the module whose method runs, by which variants are counted."""
    module = module_in(function, locals)
    if module is None:
        return None
    return _owners.get(id(module)) or _owners.setdefault(id(module), Owner(module, _forget))


def _forget(gone: Owner) -> None:
    _owners.pop(gone.address, None)


def module_in(function: FunctionType, locals: Sequence[Any]) -> torch.nn.Module | None:
    """The module whose method runs."""
    names = STATE_NAMES.get(function.__code__)
    first: Any = locals[0] if locals else None
    if names is not None:  # a resumed frame: the first argument is somewhere in the state
        own = function.__code__.co_varnames[:1]
        first = first[names.index(own[0])] if own and own[0] in names else None
    return first if issubclass(type(first), torch.nn.Module) else None
