"""A compiled ``nn.Module`` that nobody can tell from the original, but for its speed.

The compiled module is an instance of a subclass of the original's class, made for it alone, and *shares the
original's* ``__dict__``: parameters, buffers, submodules, hooks and plain attributes are the same on
both sides, whoever writes them. Only the call differs: it is the compiled entry over the call of
the original, so what is traced has the original's type.
"""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from braze import native
from braze.capture.dispatch.session import compile_callable
from braze.graph.private.torch_compat import share_state
from braze.settings import Settings
from braze.support.errors import UserError
from braze.support.record import record


@record
class Compilation:
    """What stands behind a compiled module."""

    original: nn.Module
    settings: Settings
    entry: Any


class _OfInstance:
    """An attribute computed from the instance. No property: those torch.jit.script would compile."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute = compute

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            raise AttributeError
        return self.compute(instance)

    def __set__(self, instance: Any, value: Any) -> None:
        raise AttributeError("read-only")


class CompiledModule:
    """Base of the classes made by :func:`compile_module`, first in their MRO."""

    __compiled__: Compilation

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # registries that user classes keep of their subclasses must not see this one
        pass

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Any:
        # type(self)(config) inside the model's own code means: a new, plain model
        return type(cls.__compiled__.original)(*args, **kwargs)

    def _class_of_original(self) -> type:
        return type(self.__compiled__.original)

    def _change_class(self, cls: type) -> None:
        """Follow who gives modules another class (parametrizations, FSDP): it is made of the original's, and both get it."""
        compilation = self.__compiled__
        compilation.original.__class__ = cls
        made = _compiled_class(compilation.original, compilation.settings)
        object.__dict__["__class__"].__set__(self, made)
        made.__compiled__.entry.plain = _plain_call(weakref.ref(self), compilation.original)

    #: the class that the model says it has
    __class__ = property(_class_of_original, _change_class)  # type: ignore[assignment]

    #: what torch.compile compiles when it is given this, and how it knows that this is no copy
    _torchdynamo_orig_callable = _OfInstance(lambda self: self.__compiled__.original)
    _torchdynamo_wrapper_id = _OfInstance(id)

    def __copy__(self) -> nn.Module:
        return compile_module(copy.copy(self.__compiled__.original), self.__compiled__.settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        copied = copy.deepcopy(self.__compiled__.original, memo)
        return compile_module(copied, self.__compiled__.settings)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return compile_module, (self.__compiled__.original, self.__compiled__.settings)


def compile_module(model: nn.Module, settings: Settings) -> nn.Module:
    """``model`` with a compiled call. Nothing is compiled before the first call."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError(
            "BZ0005",
            f"cannot compile the TorchScript module {type(model).__name__}",
            why="TorchScript has compiled it already; its Python code is gone",
            hints=["pass the module that torch.jit.script or torch.jit.trace was given"],
        )
    made = _compiled_class(model, settings)
    compiled: Any = object.__new__(made)
    object.__setattr__(compiled, "__dict__", model.__dict__)
    share_state(model, compiled)
    made.__compiled__.entry.plain = _plain_call(weakref.ref(compiled), model)
    return compiled


def _compiled_class(model: nn.Module, settings: Settings) -> Any:
    """A subclass of the model's class whose one instance's call is compiled."""
    cls = type(model)
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
        "__call__": native.CallOfClass(entry, cls.__call__),
    }
    return types.new_class(cls.__name__, (CompiledModule, cls), {}, lambda body: body.update(members))


def _plain_call(compiled: Callable[[], Any], model: Any) -> Callable[..., Any]:
    """The call of a compiled module for other tracers, which know it by its own identity and may have replaced the class's."""

    def call(*args: Any, **kwargs: Any) -> Any:
        module = compiled()
        return type(model).__call__(model if module is None else module, *args, **kwargs)

    return call
