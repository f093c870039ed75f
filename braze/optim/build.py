"""A kind of kernel -> the function that runs it: built once a process, taken from the disk cache where it was built before."""

from __future__ import annotations

import threading
from collections.abc import Callable

from braze import native
from braze.optim.c_kernels import step_source
from braze.optim.rules import Kind
from braze.runtime import build, cache
from braze.support import trace
from braze.target import cpu_target

_lock = threading.Lock()
_made: dict[Kind, Callable[..., None]] = {}


def cpu_step(kind: Kind) -> Callable[..., None]:
    """``step(table, steps, scratch, numbers, rows, width, wide)`` for a kind, all buffers as addresses.

    ``wide``: whether the steps are doubles. Raises Unsupported (BZ5001) where there is no C compiler.
    """
    with _lock:
        if kind not in _made:
            _made[kind] = _load(kind)
        return _made[kind]


def _load(kind: Kind) -> Callable[..., None]:
    target = cpu_target()
    with trace.stage("codegen"):
        source = step_source(kind, target)
    trace.dump(f"optimizer_{kind.algorithm}_{kind.dtype}", "c", source)
    key = cache.key(
        "optimizer",
        source=source,
        flags=build.flags(target.arch),
        target=target.arch,
        compiler=build.compiler_id(),
    )

    def make() -> bytes:
        trace.count("kernels_built")
        return build.build_c(source, target.arch)

    with trace.stage("build"):
        path = cache.DiskCache().file(key, make, "so")
    with trace.stage("load"):
        return native.Launcher(build.load(str(path)).symbol("step"), 4, 3)
