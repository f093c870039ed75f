"""How to do without Dynamo's import.

Making a ``FakeTensorMode`` and running the first operator in it imports ``torch._dynamo`` (about a second) for
a setting and for ``disable``. Here a stand-in takes the module's place until somebody uses it for anything
else; then it loads the real one, so a later ``torch.compile`` works as ever. For a version of PyTorch that was
not tested, nothing is replaced and the slow import happens.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch.utils import _config_module

from braze.support.log import warn_once

TESTED = {(2, 11), (2, 12), (2, 13), (2, 14), (2, 15)}
#: the same, as one says it
RANGE = "2.11 to 2.15"

DYNAMO = "torch._dynamo"

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

#: PyTorch's search through the source of its settings
_FIND = "get_assignments_with_compile_ignored_comments"

_loading = threading.RLock()


def tested() -> bool:
    """Whether the tests run on this version."""
    return VERSION in TESTED


class LazyDynamo(ModuleType):
    """Stands for ``torch._dynamo`` until an attribute of it is wanted.

    ``disable`` is answered here, since PyTorch's meta functions ask for it on their first call; what it gave
    out is taken back when the real module comes.
    """

    def __init__(self) -> None:
        super().__init__(DYNAMO)
        folder = os.path.join(os.path.dirname(torch.__file__), "_dynamo")
        self.__dict__.update(__file__=os.path.join(folder, "__init__.py"), __package__=DYNAMO, _given=[])
        self.__dict__["disable"] = self._disable

    def _disable(self, fn: Any = None, recursive: bool = True, **kwargs: Any) -> Any:
        if fn is None or not recursive or "__dynamo_disable" in getattr(fn, "__dict__", ()):
            return self._real().disable(fn, recursive, **kwargs)
        self._given.append(fn)
        return fn

    def _real(self) -> Any:
        with _loading:
            if sys.modules.get(DYNAMO) is self:
                del sys.modules[DYNAMO]
                torch.__dict__.pop("_dynamo", None)
                for fn in self._given:
                    fn.__dict__.pop("__dynamo_disable", None)
                self.__dict__.pop("disable", None)
            return importlib.import_module(DYNAMO)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        value = getattr(self._real(), name)
        if name == "__path__":  # somebody imports a part of it, which has come with the whole by now
            sys.meta_path.insert(0, LoadedParts())
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("__spec__", "__loader__", "config"):
            self.__dict__[name] = value
        else:
            setattr(self._real(), name, value)


class LoadedParts(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers one import of a part of Dynamo with the part that is loaded, where Python would load it a second time."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if target is not None or not name.startswith(f"{DYNAMO}.") or name not in sys.modules:
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        return ModuleSpec(name, self, loader_state=sys.modules[name].__spec__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def warn_of_untested_version() -> None:
    """Say once that this PyTorch is not one that the tests run on."""
    if not tested():
        warn_once(
            ("torch version", VERSION),
            f"braze is tested with PyTorch {RANGE}, not {torch.__version__}: start-up is slower here, and what braze takes "
            "for granted is tried first (`braze env` lists it); compare results with eager before you rely on them",
        )


class IgnoredKeys:
    """The settings of a module that do not count when PyTorch hashes it: it finds them by its source's comments, which takes long."""

    def __init__(self, find: Callable[[ModuleType], set[str]], module: ModuleType) -> None:
        self._found = functools.cache(functools.partial(find, module))

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())


def load_settings(name: str) -> None:
    """Import a module of PyTorch's settings, whose source is not read through before somebody hashes them."""
    find = getattr(_config_module, _FIND, None)
    if find is None:
        importlib.import_module(name)
        return
    setattr(_config_module, _FIND, functools.partial(IgnoredKeys, find))
    try:
        importlib.import_module(name)
    finally:
        setattr(_config_module, _FIND, find)


def postpone_dynamo() -> bool:
    """Put the stand-in in place; whether it now stands there."""
    if not tested():
        warn_of_untested_version()
        return False
    with _loading:
        there = sys.modules.get(DYNAMO)
        if there is not None:
            return isinstance(there, LazyDynamo)
        stand_in = LazyDynamo()
        sys.modules[DYNAMO] = stand_in
        # the settings are a module of their own that needs nothing of the package
        stand_in.__dict__["__path__"] = [os.path.dirname(stand_in.__dict__["__file__"])]
        try:
            load_settings(f"{DYNAMO}.config")
        finally:
            del stand_in.__dict__["__path__"]
        load_settings("torch._functorch.config")  # the first fake tensor mode asks for both
        return True


def is_dynamos(function: Any) -> bool:
    """Whether a function is of the module in which Dynamo keeps its tables: once it has compiled, it refers to every module that is made."""
    there = sys.modules.get(f"{DYNAMO}.utils")
    return there is not None and getattr(function, "__globals__", None) is vars(there)


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """For one import: the two names of Dynamo that the validator of size guards (off unless asked for) takes."""
    errors, utils = ModuleType(f"{DYNAMO}.exc"), ModuleType(f"{DYNAMO}.utils")
    errors.__dict__["TorchDynamoException"] = type("TorchDynamoException", (RuntimeError,), {})
    utils.__dict__["dynamo_timed"] = lambda *args, **kwargs: contextlib.nullcontext()
    sys.modules.update({module.__name__: module for module in (errors, utils)})
    try:
        yield
    finally:
        for module in (errors, utils):
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
