"""The key under which Triton keeps what it builds: read of its own files once, not in each process.

Triton hashes its libraries for it, half a gigabyte, at a process's first kernel. Here the key is kept under the names, sizes and times of
these files, and told to Triton in the way of its own pools of processes. Only who has kernels imports Triton.
"""

from __future__ import annotations

import os
from pathlib import Path

from braze.runtime.libraries import cache
from braze.runtime.triton import triton_worker


def known_key() -> str:
    """The key, which Triton takes from here on; "" for a Triton that is not asked for it in this way."""
    try:
        import triton
        from triton.runtime import cache as kept
    except ImportError:
        return ""
    read = getattr(kept, "triton_key", None)
    if read is None:
        return ""
    if not hasattr(read, "cache_info") or read.cache_info().currsize:  # told, or read already
        return str(read())
    entry = cache.key("triton-key", version=triton.__version__, files=_files(Path(triton.__file__).parent))
    key = cache.DiskCache().get_or_build(entry, lambda: read().encode()).decode()
    triton_worker.tell_key(key)
    return key


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """All files below a folder but what Python makes of them: name, size, time of the last change."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = os.path.join(place, name)
            state = os.stat(path)
            found.append((path, state.st_size, state.st_mtime_ns))
    return sorted(found)
