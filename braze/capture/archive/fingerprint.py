"""What a capture was made of: the code that was interpreted, the files it lies in, the versions around it."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

from braze.capture.facts.objects_by_name import module_of, name_of
from braze.capture.facts.values import CONSTANTS
from braze.support.caches import remembered


def surroundings() -> dict[str, str]:
    """Versions and devices; captures of other ones are not used."""
    return {
        "braze": of_ourselves(),
        "python": sys.version,
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "platform": f"{platform.system()} {platform.machine()}",
        "devices": "cuda cpu" if torch.cuda.is_available() else "cpu",
    }


@functools.cache
def of_ourselves() -> str:
    """Of the code that makes captures: what they mean is between its lines."""
    whole = hashlib.sha256()
    for path in our_files():
        whole.update(path.name.encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()


def our_files() -> list[Path]:
    """The code that makes captures."""
    capture = Path(__file__).parents[1]
    return [path for folder in (capture, capture.parent / "graph") for path in sorted(folder.rglob("*.py"))]


def of_file(path: str) -> str | None:
    """The SHA-256 of a file, or None where there is none to read."""
    try:
        info = os.stat(path)
        return _hash_as_of(path, info.st_mtime_ns, info.st_size)
    except OSError:
        return None


@remembered(4096)
def _hash_as_of(path: str, changed: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def of_function(function: FunctionType) -> str:
    """Of a function's code, and of the defaults that are plain values."""
    defaults = (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items()))
    text = of_code(function.__code__) + "".join(_plain(v) for v in defaults)
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:32]


@remembered(4096)
def of_code(code: CodeType) -> str:
    """Of a code object and those within it; where its lines stand does not count."""
    parts = (
        code.co_code.hex(),
        code.co_exceptiontable.hex(),
        code.co_names,
        code.co_varnames,
        code.co_cellvars,
        code.co_freevars,
        (code.co_flags, code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount),
        [_plain(v) for v in code.co_consts],
    )
    return hashlib.sha256(repr(parts).encode(errors="backslashreplace")).hexdigest()[:32]


def _plain(value: Any) -> str:
    """A text that tells constants apart, and does not change with addresses or the order of a set."""
    kind = type(value)
    if kind is CodeType:
        return of_code(value)
    if kind is tuple:
        return f"({','.join(map(_plain, value))})"
    if kind is frozenset:
        return f"{{{','.join(sorted(map(_plain, value)))}}}"
    if kind in CONSTANTS:
        return f"{kind.__name__} {value!r}"
    return f"{kind.__qualname__} {name_of(value)}" if callable(value) else kind.__qualname__


def files_of(functions: Iterable[FunctionType], names: Iterable[Any]) -> dict[str, str] | str:
    """path -> SHA-256 of every file that these lie in; text says what lies in none."""
    found: dict[str, str] = {}
    for function in functions:
        path, name = function.__code__.co_filename, None
        if of_file(path) is None:  # made by exec: good if a module on disk holds it, as for a dataclass
            name = name_of(function)
            path = module_file(module_of(name)) if name is not None else ""
        digest = of_file(path)
        if digest is None:
            return f"the code of {function.__qualname__} is in no file ({function.__code__.co_filename})"
        found[os.path.abspath(path)] = digest
    for name in names:
        path = module_file(module_of(name))
        digest = of_file(path) if path.endswith(".py") else None
        if digest is not None:
            found[os.path.abspath(path)] = digest
    return found


def module_file(name: str | None) -> str:
    """The source file of a loaded module, or nothing."""
    return getattr(sys.modules.get(name or ""), "__file__", None) or ""
