"""The on-disk cache: damage, permissions, concurrency, folders that cannot be written."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from braze.runtime.libraries import cache, sweep
from braze.runtime.libraries.cache import DiskCache, key, why
from braze.support.log import forget_warnings
from tests.helpers import logged


@pytest.fixture
def disk(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "braze")


def entry(disk: DiskCache, k: cache.CacheKey) -> Path:
    return disk.path(k, "bin")


def test_second_request_does_not_build(disk: DiskCache) -> None:
    """The builder runs once for a key."""
    built: list[int] = []

    def build() -> bytes:
        built.append(1)
        return b"library"

    k = key("kernels", source="text", flags=("-O2",))
    assert [disk.get_or_build(k, build) for _ in range(3)] == [b"library"] * 3
    assert len(built) == 1


def test_every_part_of_the_key_counts(disk: DiskCache) -> None:
    """A change of any named part is another entry, and ``why`` names the part."""
    old = key("kernels", source="text", flags=("-O2",), target="avx2")
    for new in (
        key("kernels", source="other", flags=("-O2",), target="avx2"),
        key("kernels", source="text", flags=("-O1",), target="avx2"),
        key("kernels", source="text", flags=("-O2",), target="avx512"),
    ):
        assert new.digest != old.digest
    assert (
        why(old, key("kernels", source="text", flags=("-O2",), target="avx512")) == "target: avx2 -> avx512"
    )
    assert key("graphs", source="text", flags=("-O2",), target="avx2").digest != old.digest


@pytest.mark.parametrize("damage", [b"", b"braze1 0\nlibrary", b"garbage"])
def test_damaged_entry_is_rebuilt(disk: DiskCache, damage: bytes) -> None:
    """Truncated, altered or foreign contents are noticed, removed and made again."""
    k = key("kernels", source="text")
    disk.put(k, b"library")
    entry(disk, k).write_bytes(damage)
    assert disk.get(k) is None
    assert not entry(disk, k).exists()
    assert disk.get_or_build(k, lambda: b"again") == b"again"
    assert disk.get(k) == b"again"


def test_one_flipped_bit_is_noticed(disk: DiskCache) -> None:
    """The contents' hash is checked at each read."""
    k = key("kernels", source="text")
    disk.put(k, b"library" * 100)
    data = bytearray(entry(disk, k).read_bytes())
    data[-3] ^= 1
    entry(disk, k).write_bytes(bytes(data))
    assert disk.get(k) is None


def test_folders_are_private(disk: DiskCache) -> None:
    """All folders that we make have mode 0700, whatever the umask."""
    before = os.umask(0)
    try:
        k = key("kernels", source="text")
        disk.put(k, b"library")
    finally:
        os.umask(before)
    for folder in (disk.root, entry(disk, k).parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(disk, k).stat().st_mode) == 0o600


def test_library_file_is_checked_before_it_is_loaded(disk: DiskCache) -> None:
    """The .so on disk is compared with the entry; an altered or foreign-writable one is replaced."""
    k = key("kernels", source="text")
    path = disk.file(k, lambda: b"library", "so")
    assert path.read_bytes() == b"library"
    path.write_bytes(b"evil")
    assert disk.file(k, lambda: b"never", "so").read_bytes() == b"library"
    path.chmod(0o666)
    fresh = disk.file(k, lambda: b"never", "so")
    assert not fresh.stat().st_mode & 0o022


def test_library_link_is_not_followed(disk: DiskCache, tmp_path: Path) -> None:
    """A symbolic link in the place of a library is replaced by a file."""
    k = key("kernels", source="text")
    path = disk.file(k, lambda: b"library", "so")
    target = tmp_path / "elsewhere"
    target.write_bytes(b"library")
    path.unlink()
    path.symlink_to(target)
    assert not disk.file(k, lambda: b"never", "so").is_symlink()


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_unwritable_folder_works_and_says_so_once(
    disk: DiskCache, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only or full folder: the build's result is used, one warning tells what to do."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    forget_warnings()
    real = cache.tempfile.mkstemp
    monkeypatch.setattr(
        cache.tempfile,
        "mkstemp",
        lambda dir, **kw: refuse() if disk.root in Path(dir).parents else real(dir=dir, **kw),
    )
    with logged() as messages:
        paths = [disk.file(key("kernels", source=f"text{k}"), lambda: b"library", "so") for k in range(3)]
    assert all(p.read_bytes() == b"library" for p in paths)
    said = [m for m in messages if "BZ6010" in m]
    assert len(said) == 1
    assert "BRAZE_CACHE_DIR" in said[0]


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    """BRAZE_CACHE_DIR names a file: everything still works."""
    (tmp_path / "file").write_text("")
    disk = DiskCache(tmp_path / "file")
    assert disk.get_or_build(key("kernels", source="text"), lambda: b"library") == b"library"


def test_concurrent_writers_leave_a_whole_entry(disk: DiskCache) -> None:
    """Many threads write one key while others read it: a reader sees nothing or all of it."""
    k = key("kernels", source="text")
    body = b"x" * 200_000
    seen: list[bytes | None] = []

    def work() -> None:
        for _ in range(20):
            disk.put(k, body)
            seen.append(disk.get(k))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert set(seen) == {body}
    assert [p.name for p in entry(disk, k).parent.iterdir()] == [entry(disk, k).name]


def test_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """BRAZE_CACHE_DIR wins over XDG_CACHE_HOME, which wins over ~/.cache."""
    monkeypatch.setattr(cache.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("BRAZE_CACHE_DIR", raising=False)
    assert cache.folder() == Path("/x/braze")
    monkeypatch.setenv("BRAZE_CACHE_DIR", "/chosen")
    assert cache.folder() == Path("/chosen")


DAY = sweep.DAY


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / "braze"))
    monkeypatch.setattr(sweep, "_looked", set())
    return tmp_path / "braze"


def aged(disk: DiskCache, name: str, days: float) -> Path:
    """An entry of 1,000 bytes and its header that was used so long ago."""
    k = key("kernels", source=name)
    disk.put(k, bytes(1000))
    then = time.time() - days * DAY
    os.utime(entry(disk, k), (then, then))
    return entry(disk, k)


def test_a_folder_keeps_to_its_limit(own_folder: Path) -> None:
    """The least recently used entries go; what was used within a day, and what is not named as an entry, stays."""
    disk = DiskCache()
    old, older, used = (aged(disk, name, days) for name, days in (("old", 4), ("older", 9), ("used", 30)))
    left = own_folder / "kernels" / "00" / "notes.txt"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(bytes(5000))
    os.utime(left, (0, 0))
    assert disk.get(key("kernels", source="used")) == bytes(1000)
    assert sweep.sweep(own_folder, 4000) == 0
    assert sweep.sweep(own_folder, 3000) == 1
    assert old.exists() and used.exists() and left.exists() and not older.exists()
    assert sweep.sweep(own_folder, 1) == 1
    assert used.exists() and left.exists() and not old.exists()


def test_a_folder_that_cannot_be_read_or_is_used_meanwhile_does_not_stop_a_sweep(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what a mounted disk brings along, and of entries that other processes take while this one has listed them."""
    gone, taken = aged(DiskCache(), "gone", 9), aged(DiskCache(), "taken", 7)
    strange = own_folder / "lost+found"
    strange.mkdir()
    read, remove = Path.iterdir, os.unlink

    def iterdir(path: Path) -> Iterator[Path]:
        if path == strange:
            raise PermissionError(13, "not yours", str(path))
        return read(path)

    def unlink(path: str) -> None:
        remove(path)
        sweep.keep(taken)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    monkeypatch.setattr(os, "unlink", unlink)
    assert sweep.sweep(own_folder, 1) == 1
    assert taken.exists() and not gone.exists()


def test_a_folder_is_looked_through_once_a_day(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process that writes; at first it is only dated. What is chosen for one cache is not looked through."""
    monkeypatch.setenv("BRAZE_CACHE_GB", "0.000003")
    gone = aged(DiskCache(), "gone", 5)
    for age, stays in ((0, True), (2, False)):
        stamp = own_folder / sweep.STAMP
        os.utime(stamp, (time.time() - age * DAY,) * 2)
        monkeypatch.setattr(sweep, "_looked", set())
        for n in range(2):
            DiskCache(own_folder).put(key("kernels", source=f"chosen {n}"), bytes(1000))
        assert gone.exists()
        DiskCache().put(key("kernels", source="one more"), bytes(1000))
        for thread in threading.enumerate():
            if thread.name == "braze-cache":
                thread.join()
        assert gone.exists() is stays


def test_a_limit_that_is_no_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep.limit() == 8e9
    for text, found, told in (
        ("0", 0, False),
        ("0.5", 5e8, False),
        ("much", 8e9, True),
        ("-1", 8e9, True),
        ("nan", 8e9, True),
    ):
        monkeypatch.setenv("BRAZE_CACHE_GB", text)
        forget_warnings()
        with logged() as said:
            assert sweep.limit() == found
        assert [message[:6] for message in said] == ["BZ6017"] * told
