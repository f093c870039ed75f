"""A kind of kernel -> the function that runs it: built once a process, taken from the disk cache where it was built before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from braze import native
from braze.optim.c_clip import clip_source
from braze.optim.c_kernels import advance_source, step_source
from braze.optim.rules import Kind
from braze.optim.triton_clip import clip_source as triton_clip_source
from braze.optim.triton_kernels import step_source as triton_source
from braze.runtime.libraries import cache, functions
from braze.runtime.triton import triton_load
from braze.support.log import show_code
from braze.target import cpu_target

_lock = threading.Lock()
_made: dict[object, Any] = {}


def cpu_step(kind: Kind) -> Callable[..., None]:
    """``step(table, steps, scratch, numbers, rows, width, wide)`` for a kind, all buffers as addresses.

    ``wide``: whether the steps are doubles. Raises Unsupported (BZ5001) where there is no C compiler.
    """

    def make() -> Callable[..., None]:
        name = f"{kind.algorithm}_{kind.dtype}"
        return native.Launcher(_symbol(name, step_source(kind, cpu_target()), "step"), 4, 3)

    return _once(kind, make)


def cpu_clip(function: str, dtype: str) -> Callable[..., None]:
    """``run(table, numbers, rows, width)`` of one of the functions of c_clip."""

    def make() -> Callable[..., None]:
        source = clip_source(function, dtype, cpu_target())
        return native.Launcher(_symbol(f"{function}_{dtype}", source, "run"), 2, 2)

    return _once((function, dtype), make)


def cpu_advance() -> Callable[..., None]:
    """``advance(steps, scratch, numbers, rows, wide)``: counts a step for each row; see c_kernels.ADVANCE."""

    def make() -> Callable[..., None]:
        return native.Launcher(_symbol("advance", advance_source(), "advance"), 3, 2)

    return _once("advance", make)


def gpu_module(kind: Kind) -> ModuleType:
    """The module of Triton kernels for a kind."""

    name = f"optimizer_{kind.algorithm}_{kind.dtype}"
    return _once(("gpu", kind), lambda: _triton_module(name, triton_source(kind)))  # type: ignore[no-any-return]


def gpu_clip_module(dtype: str) -> ModuleType:
    """The module of Triton kernels that clip gradients of a type."""

    name = f"clip_{dtype}"
    return _once(("gpu clip", dtype), lambda: _triton_module(name, triton_clip_source(dtype)))  # type: ignore[no-any-return]


def _once(key: object, make: Callable[[], Any]) -> Any:
    with _lock:
        if key not in _made:
            _made[key] = make()
        return _made[key]


def _triton_module(name: str, source: str) -> ModuleType:
    show_code(name, "py", source)
    return triton_load.load_module(cache.source_file(source))


def _symbol(name: str, source: str, symbol: str) -> int:
    """The address of a function of a source, compiled unless the cache has it."""
    show_code(f"optimizer_{name}", "c", source)
    return functions.address_of("optimizer", source, symbol, cpu_target().arch)
