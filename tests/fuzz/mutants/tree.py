"""Copies of the working tree, in which bugs are seeded and places are watched. The working tree itself is never touched."""

from __future__ import annotations

import compileall
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.failures import ROOT
from tests.fuzz.mutants import purity
from tests.fuzz.mutants.operators import Mutant

#: what tests read besides braze/ and tests/
TAKEN = ("braze", "tests", "docs", "benchmarks", "constraints", "pyproject.toml", "setup.py", "README.md", "AGENTS.md",
         "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "LICENSE", ".gitignore", ".ci")  # fmt: skip
_SITE = "from tests.fuzz.mutants import hits\n\nhits.install()\n"
_HEADER = (
    "; import sys as _sys; _mutant_at, _mutant_if, _mutant_by = "
    "getattr(_sys, 'braze_mutants', (lambda n: False, lambda n, v: v, lambda n, v, m: v))"
)


def copied(to: Path, root: Path = ROOT, compiled: bool = False) -> Path:
    """A copy of what is under test, with the compiled core in it; ``compiled``: with the bytecode that is there."""
    left_out = (
        shutil.ignore_patterns("results") if compiled else shutil.ignore_patterns("__pycache__", "results")
    )
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for name in TAKEN:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=left_out)
        elif source.exists():
            shutil.copy2(source, to / name)
    if (results := root / "benchmarks" / "results").is_dir():
        shutil.copytree(results, to / "benchmarks" / "results")
    return to


def pristine(to: Path) -> Path:
    """A copy without a bug whose bytecode is there, so that no copy of it compiles it once more."""
    copied(to)
    compileall.compile_dir(to / "braze", quiet=1, workers=0)
    return to


def write(path: Path, text: bytes) -> None:
    """Replace a module's text, and forget what was compiled from the old one."""
    path.write_bytes(text)
    for old in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        old.unlink()


def probed(tree: Path, mutants: Sequence[Mutant]) -> None:
    """Have each place where a bug is to be seeded say that it runs, and where it would make a difference. No line moves."""
    by_file: dict[str, list[tuple[int, Mutant]]] = {}
    for number, mutant in enumerate(mutants):
        by_file.setdefault(mutant.file, []).append((number, mutant))
    for file, found in by_file.items():
        source = (tree / file).read_bytes()
        for number, mutant in sorted(found, key=lambda f: f[1].node, reverse=True):
            start, end = mutant.node
            source = source[:start] + probe(number, mutant, source) + source[end:]
        marker = b"from __future__ import annotations"
        assert source.count(marker) == 1, file
        write(tree / file, source.replace(marker, marker + _HEADER.encode()))
    site = tree / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE)


def probe(number: int, mutant: Mutant, source: bytes) -> bytes:
    """The text of a place that says when it runs, and, where that can be seen, when its bug would make a difference."""
    start, end = mutant.node
    text = source[start:end]
    if mutant.statement:
        return f"_mutant_at({number}); ".encode() + text
    if mutant.operator == "branch dropped":
        return b"_mutant_if(%d, (%s))" % (number, text)
    if (mutated := purity.expression(mutant)) is not None:
        return b"_mutant_by(%d, (%s), lambda: (%s))" % (number, text, mutated.encode())
    return b"(_mutant_at(%d) or (%s))" % (number, text)


def environment(tree: Path, cache: Path, **more: str) -> dict[str, str]:
    """Of a process in the tree: on the CPU, one thread, kernels that were built before are found by their text."""
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ, "PYTHONPATH": path, "BRAZE_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
        "CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0", **more,
    }  # fmt: skip


def fresh_cache(cache: Path, pool: Path) -> Path:
    """An empty kernel cache that shares, over the pool, what is kept by the text it was built from."""
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True, mode=0o700)
    for kind in ("kernels", "triton", "lib"):
        (pool / kind).mkdir(parents=True, exist_ok=True, mode=0o700)
        (cache / kind).symlink_to(pool / kind)
    return cache
