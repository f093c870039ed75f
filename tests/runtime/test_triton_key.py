"""The key of what Triton keeps is read of its files once, and told to other processes."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("triton")

from triton.runtime import cache as kept

from braze.runtime.triton import triton_build, triton_key
from braze.runtime.triton.triton_build import Builders, build


@pytest.fixture
def reads(monkeypatch, tmp_path):
    """How often a key was read; each use of the fixture's function is another process to Triton."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / "cache"))
    found = []

    def process(key="read"):
        monkeypatch.setattr(kept, "triton_key", functools.lru_cache(lambda: found.append(key) or key))
        return found

    return process


def test_a_second_process_reads_no_files(reads):
    found = reads()
    assert triton_key.known_key() == "read" == kept.triton_key() and found == ["read"]
    reads("another")
    assert triton_key.known_key() == "read" == kept.triton_key() and found == ["read"]


def test_a_file_that_changes_makes_another_key(reads, monkeypatch):
    found = reads()
    triton_key.known_key()
    monkeypatch.setattr(triton_key, "_files", lambda folder: [("libtriton.so", 3, 4)])
    reads("changed")
    assert triton_key.known_key() == "changed" and found == ["read", "changed"]


def test_what_the_process_knows_already_stands(reads, monkeypatch):
    reads()
    kept.triton_key()
    monkeypatch.setattr(triton_key, "_files", lambda folder: pytest.fail("nothing is to be looked up"))
    assert triton_key.known_key() == "read"
    monkeypatch.setattr(kept, "triton_key", lambda: "told")
    assert triton_key.known_key() == "told"
    monkeypatch.delattr(kept, "triton_key")
    assert triton_key.known_key() == ""


def test_the_files_are_tritons(tmp_path):
    (tmp_path / "a" / "__pycache__").mkdir(parents=True)
    (tmp_path / "a" / "x.so").write_bytes(b"123")
    (tmp_path / "a" / "__pycache__" / "x.pyc").write_bytes(b"")
    ((path, size, changed),) = triton_key._files(tmp_path)
    assert path.endswith("x.so") and size == 3 and changed > 0


def test_a_worker_builds_under_the_key_that_it_is_told(tmp_path, monkeypatch):
    """And a process that knows the same key finds it there."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton_build, "IDLE", 0.05)
    monkeypatch.setattr(triton_build, "WORTH", 1)
    path = tmp_path / "k.py"
    path.write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(x, n, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    tl.store(x + i, i, mask=i < n)\n"
    )
    job = triton_build.Job(str(path), "k", ("*fp32",), (100,), (("BLOCK", 128),), 4, 2)
    folders = []
    for key in ("one", "two", "one"):
        assert build([job], Builders(("cuda", 90, 32), 1, key), seconds=100) == {}
        folders.append(len({p.parent for p in (tmp_path / "triton").rglob("*.cubin")}))
    assert folders == [1, 2, 2]
