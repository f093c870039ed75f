"""A compiled ``nn.Module`` that nobody can tell from the original, but for its speed.

The compiled module is an instance of a subclass of the original's class, made for it alone, and *shares the
original's* ``__dict__``: parameters, buffers, submodules, hooks and plain attributes are the same on
both sides, whoever writes them. Only the call differs: it is the compiled entry over the call of
the original, so what is traced has the original's type.
"""

from __future__ import annotations

import copy
import types
from typing import Any

import torch
from torch import nn

from braze.capture.session import compile_callable
from braze.settings import Settings
from braze.support.errors import UserError
from braze.support.record import record


@record
class Compilation:
    """What stands behind a compiled module."""

    original: nn.Module
    settings: Settings
    entry: Any


class CompiledModule:
    """Base of the classes made by :func:`compile_module`, first in their MRO."""

    __slots__ = ()
    __compiled__: Compilation

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # registries that user classes keep of their subclasses must not see this one
        pass

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Any:
        # type(self)(config) inside the model's own code means: a new, plain model
        return type(cls.__compiled__.original)(*args, **kwargs)

    def __copy__(self) -> nn.Module:
        return compile_module(copy.copy(self.__compiled__.original), self.__compiled__.settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        copied = copy.deepcopy(self.__compiled__.original, memo)
        return compile_module(copied, self.__compiled__.settings)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return compile_module, (self.__compiled__.original, self.__compiled__.settings)


def compile_module(model: nn.Module, settings: Settings) -> nn.Module:
    """``model`` with a compiled call. Nothing is compiled before the first call."""
    cls = type(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError(
            "BZ0005",
            f"cannot compile the TorchScript module {cls.__name__}",
            why="TorchScript has compiled it already; its Python code is gone",
            hints=["pass the module that torch.jit.script or torch.jit.trace was given"],
        )
    # the call is looked up on the class, as Python does
    call: Any = types.MethodType(cls.__call__, model)
    entry = compile_callable(call, settings.bound_backend(), settings.resolve(), name=cls.__qualname__)
    members = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__compiled__": Compilation(model, settings, entry),
        # the entry holds the original already: nothing may be bound to it
        "__call__": staticmethod(entry),
    }
    made = types.new_class(cls.__name__, (CompiledModule, cls), {}, lambda body: body.update(members))
    compiled: Any = object.__new__(made)
    object.__setattr__(compiled, "__dict__", model.__dict__)
    return compiled
