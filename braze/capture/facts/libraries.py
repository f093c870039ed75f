"""Whose functions, classes and modules are: PyTorch's, the standard library's, a model library's, or the program's.

Told by where a thing lives, never by what it says of itself: ``__module__`` and ``__name__`` are anybody's to write. What a library
holds may be replaced like anything else, and is guarded like anything else; being a library's decides only what is looked into.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from typing import Any

#: packages whose functions may hold model code: of what is installed, these are captured, too, below a graph break
MODEL_LIBRARIES = frozenset({"transformers", "timm", "torchvision", "diffusers", "sentence_transformers"})
#: packages whose functions in Python are not compared with themselves, code by code, at each call
PACKAGES = MODEL_LIBRARIES | {"torch", "typing_extensions", "braze"}
_FOLDERS = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
_SITES = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("purelib", "platlib"))


@functools.cache
def is_library_name(name: str) -> bool:
    """Whether a module of this name is one of a library: a file of the program's may be called as one of Python's is."""
    root = name.partition(".")[0]
    if root in PACKAGES:
        return True
    if root not in sys.stdlib_module_names or root == "__main__":
        return False
    file = getattr(sys.modules.get(root), "__file__", None)
    return file is None or (file.startswith(_FOLDERS) and not file.startswith(_SITES))


def is_library_space(space: dict[str, Any], name: Any) -> bool:
    """Whether these are the globals of a library's module."""
    if not isinstance(name, str) or not is_library_name(name):
        return False
    if getattr(sys.modules.get(name), "__dict__", None) is space:
        return True
    other = getattr(space.get("__spec__"), "name", None)  # collections.abc lives under another name
    return other is not None and getattr(sys.modules.get(other), "__dict__", None) is space


def is_library_function(function: Any) -> bool:
    """Whether a function in Python is written in a library."""
    space = function.__globals__
    return is_library_space(space, space.get("__name__"))


def is_library_module(module: Any) -> bool:
    """Whether a module is a library's."""
    return isinstance(module, types.ModuleType) and is_library_space(
        vars(module), vars(module).get("__name__")
    )


def is_library_class(cls: Any) -> bool:
    """Whether a class is what a library has at the place that the class names."""
    home = sys.modules.get(cls.__module__) if isinstance(cls.__module__, str) else None
    if home is None or not is_library_module(home):
        return False
    found: Any = home
    for part in type.__getattribute__(cls, "__qualname__").split("."):
        found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
    return found is cls


def is_installed(cls: type) -> bool:
    """Whether a class is of Python's own library, or of an installed package."""
    home = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return is_library_class(cls) or "site-packages" in home


def is_written_in(function: Any, *roots: str) -> bool:
    """Whether a function in Python is written in a module of one of these packages."""
    name = function.__globals__.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] in roots and is_library_function(function)


def is_pytorchs(function: Any) -> bool:
    """Whether a function in Python is written in a module of PyTorch's."""
    return is_written_in(function, "torch")
