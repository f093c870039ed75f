"""The cache folder keeps to a size: what was used longest ago goes first.

Once a day at most a process that writes an entry looks through the folder, in a thread of its own. Entries that were used within a day
stay, however many they are: another process may be about to load one. The limit is ``$BRAZE_CACHE_GB`` gigabytes (8; 0: none).
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from braze.support.log import logger, warn_once

log = logger("cache")

VARIABLE, GIGABYTES = "BRAZE_CACHE_GB", 8.0
#: what was used since is left alone, and how often a folder is looked through, in seconds
DAY = 24 * 3600.0
#: a sweep makes room for some days: down to this share of the limit
LEFT = 0.8
#: the file whose date is that of the last sweep
STAMP = ".swept"

_looked: set[Path] = set()


def limit() -> float:
    """How many bytes the folder may have; 0 for any number."""
    text = os.environ.get(VARIABLE, "")
    with contextlib.suppress(ValueError):
        if not text or float(text) >= 0:
            return float(text or GIGABYTES) * 1e9
    warn_once(
        ("BZ6017", text),
        f"BZ6017: {VARIABLE} takes a number of gigabytes, not {text!r}: {GIGABYTES:g} are kept",
        "cache",
    )
    return GIGABYTES * 1e9


def soon(root: Path) -> None:
    """Look through a folder that was written to, if nobody has for a day. The first time a folder is only dated."""
    if root in _looked:
        return
    _looked.add(root)
    stamp = root / STAMP
    try:
        last = stamp.stat().st_mtime if stamp.exists() else None
        if last is not None and abs(time.time() - last) < DAY:
            return
        stamp.touch(mode=0o600)
    except OSError:
        return  # who writes entries has been told of the folder
    if last is not None and (most := limit()):
        threading.Thread(target=sweep, args=(root, most), name="braze-cache", daemon=True).start()


def sweep(root: Path, most: float) -> int:
    """Remove entries, the least recently used first, where there are more than ``most`` bytes; how many went."""
    found = sorted(_entries(root))
    total = sum(size for _, size, _ in found)
    recent, removed = time.time() - DAY, 0
    if total > most:
        for used, size, path in found:
            if total <= LEFT * most or used > recent:
                break
            with contextlib.suppress(OSError):
                if os.lstat(path).st_mtime <= recent:  # nobody has taken it meanwhile
                    os.unlink(path)
                    total, removed = total - size, removed + 1
        log.info("swept %s: %d entries removed, %.1f MB left", root, removed, total / 1e6)
    return removed


def keep(path: Path) -> None:
    """Note that an entry was used: its date is no older than a day."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > DAY / 2:
            os.utime(path)


def _entries(root: Path) -> Iterator[tuple[float, int, str]]:
    """When each entry was used last, its bytes, its path: of files named as entries are, so that nothing else in a folder is touched."""
    for kind in _folders(root):
        for part in _folders(kind):
            if re.fullmatch("[0-9a-f]{2}", part.name):
                for path in _inside(part):
                    if re.fullmatch(r"[0-9a-f]{64}\.\w+|\.new-\w+", path.name):
                        with contextlib.suppress(OSError):
                            info = path.lstat()
                            yield info.st_mtime, info.st_size, str(path)


def _folders(path: Path) -> list[Path]:
    return [p for p in _inside(path) if p.is_dir() and not p.is_symlink()]


def _inside(folder: Path) -> list[Path]:
    """What a folder holds; nothing where it is another user's (``lost+found``), or removed meanwhile."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []
