"""Single functions of C text, beside the kernels of graphs."""

from __future__ import annotations

from braze.runtime.libraries import build, cache
from braze.support import trace


def address_of(kind: str, source: str, symbol: str, arch: str) -> int:
    """The address of a function of a source, compiled for ``arch`` unless the cache has it under ``kind``.

    Raises Unsupported where there is no C compiler (BZ5001), or the machine refuses (BZ5004).
    """
    with build.this_machine():
        key = cache.key(
            kind, source=source, flags=build.flags(arch), target=arch, compiler=build.compiler_id()
        )

    def make() -> bytes:
        trace.count("kernels_built")
        return build.build_c(source, arch)

    with trace.stage("build"), build.this_machine():
        path = cache.DiskCache().file(key, make, "so")
    with trace.stage("load"), build.this_machine():
        return build.load(str(path)).symbol(symbol)
