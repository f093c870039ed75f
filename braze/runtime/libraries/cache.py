"""Files that outlive the process: built libraries and whole compiled graphs, by content key.

The folder is ``$BRAZE_CACHE_DIR``, else the platform's user cache folder with ``braze`` appended, made with
mode 0700. An entry is a file ``<kind>/<2 hex>/<key>.<suffix>``: a header line with the SHA-256 of what
follows, then the bytes. Writes go to a temporary file that is renamed. An entry that does not match its
hash is removed and made again. Where the folder cannot be written, everything works without it. A folder that
nobody has chosen for one cache is kept to a size (``sweep.py``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from braze.runtime.libraries import sweep
from braze.support import trace
from braze.support.log import logger, warn_once
from braze.support.record import record

log = logger("cache")
_MAGIC = b"braze1 "
_lock = threading.Lock()


@record
class CacheKey:
    """Named parts, so that a miss can say which one changed."""

    kind: str
    parts: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([self.kind, self.parts]).encode()).hexdigest()


def key(kind: str, **parts: object) -> CacheKey:
    """A key of a kind; long parts are hashed."""
    return CacheKey(kind, tuple((name, _short(value)) for name, value in sorted(parts.items())))


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 64 else hashlib.sha256(text.encode()).hexdigest()


def why(old: CacheKey, new: CacheKey) -> str:
    """Which parts differ between two keys."""
    before, after = dict(old.parts), dict(new.parts)
    changed = [n for n in sorted({*before, *after}) if before.get(n) != after.get(n)]
    return ", ".join(f"{n}: {before.get(n, '-')} -> {after.get(n, '-')}" for n in changed) or "nothing"


def folder() -> Path:
    """The cache folder, by environment and platform."""
    chosen = os.environ.get("BRAZE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "braze"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "braze"


class DiskCache:
    """Entries under one folder. Every method works, without effect, where the folder is unusable."""

    def __init__(self, root: Path | None = None) -> None:
        self.root, self.is_swept = root or folder(), root is None

    def path(self, key: CacheKey, suffix: str) -> Path:
        digest = key.digest
        return self.root / key.kind / digest[:2] / f"{digest}.{suffix}"

    def get(self, key: CacheKey, suffix: str = "bin") -> bytes | None:
        """The bytes of an entry, or None; a damaged entry is removed."""
        path = self.path(key, suffix)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unusable("read", error)
            return None
        head, _, body = data.partition(b"\n")
        if head == _MAGIC + hashlib.sha256(body).hexdigest().encode():
            trace.count("cache_hits")
            sweep.keep(path)
            return body
        log.warning("BZ6011: damaged cache entry %s: rebuilt", path)
        trace.count("cache_damaged")
        self._remove(path)
        return None

    def put(self, key: CacheKey, data: bytes, suffix: str = "bin") -> None:
        """Write an entry, whole or not at all."""
        head = _MAGIC + hashlib.sha256(data).hexdigest().encode() + b"\n"
        path = self.path(key, suffix)
        try:
            self._make_folder(path.parent)
            _write_atomically(path, head + data)
        except OSError as error:
            self._unusable("write to", error)
            return
        if self.is_swept:
            sweep.soon(self.root)

    def get_or_build(self, key: CacheKey, build: Callable[[], bytes]) -> bytes:
        """The entry's bytes; ``build`` makes them where there are none."""
        found = self.get(key)
        if found is not None:
            log.info("hit %s %s", key.kind, key.digest[:12])
            return found
        log.info("miss %s %s %s", key.kind, key.digest[:12], dict(key.parts))
        trace.count("cache_misses")
        made = build()
        self.put(key, made)
        return made

    def file(self, key: CacheKey, build: Callable[[], bytes], suffix: str) -> Path:
        """A file with exactly the entry's bytes, for the dynamic loader; checked against its own hash.

        Where the cache is unusable it is a file in a private temporary folder.
        """
        data = self.get_or_build(key, build)
        digest = hashlib.sha256(data).hexdigest()
        path = self.root / "lib" / digest[:2] / f"{digest}.{suffix}"
        try:
            if self._is_ours(path) and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
                sweep.keep(path)
                return path
            self._make_folder(path.parent)
            _write_atomically(path, data)
            return path
        except OSError as error:
            self._unusable("write to", error)
            path = Path(_private_folder()) / f"{digest}.{suffix}"
            _write_atomically(path, data)
            return path

    def _is_ours(self, path: Path) -> bool:
        """Whether a regular file of this user that others cannot write."""
        try:
            info = path.lstat()
        except FileNotFoundError:
            return False
        own = not hasattr(os, "getuid") or info.st_uid == os.getuid()
        return stat.S_ISREG(info.st_mode) and own and not info.st_mode & 0o022

    def _make_folder(self, path: Path) -> None:
        missing = [p for p in (path, *path.parents) if not p.exists()]
        for p in reversed(missing):
            p.mkdir(mode=0o700, exist_ok=True)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._unusable("write to", error)

    def _unusable(self, verb: str, error: OSError) -> None:
        warn_once(
            ("BZ6010", str(self.root)),
            f"BZ6010: cannot {verb} the cache folder {self.root} ({error.strerror}): kernels are built again "
            "in every process. Set BRAZE_CACHE_DIR to a folder you can write.",
            "cache",
        )


def source_file(source: str) -> Path:
    """The file of some kernels' text, where Triton reads it."""
    return DiskCache().file(key("triton", source=source), source.encode, "py")


def _write_atomically(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


_private: list[tempfile.TemporaryDirectory[str]] = []


def _private_folder() -> str:
    with _lock:
        if not _private:
            _private.append(tempfile.TemporaryDirectory(prefix="braze-"))
        return _private[0].name
