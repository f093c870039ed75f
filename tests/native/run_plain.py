"""Build the extension for the running interpreter in a temporary folder and run the tests that need no torch.

    python tests/native/run_plain.py [part of a test's name]
    python tests/native/run_plain.py --sanitize [part of a test's name]
    python tests/native/run_plain.py --sanitize=thread [part of a test's name]

With ``--sanitize`` the extension is built with the address and undefined-behaviour sanitizers, with ``--sanitize=thread`` with that
of threads, and the library of these is loaded first. What the interpreter itself does beside its lock is left out by ``races.txt``.
For interpreters that have neither pytest, setuptools, numpy nor torch. Where there are pytest and torch, the address sanitizer sees all tests of this
folder.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TORCH_FREE = (
    "test_hook",
    "test_hook_run",
    "test_entry",
    "test_guards",
    "test_seal",
    "test_dicts",
    "test_mutations",
    "test_launch",
    "test_standin",
    "test_many_threads",
)


def takes_all() -> bool:
    """Whether the other tests of the folder can run, too."""
    return all(importlib.util.find_spec(name) is not None for name in ("pytest", "torch"))


def run_all(name_part: str) -> int:
    """Run all tests of the folder whose name holds ``name_part``."""
    import pytest

    chosen = ["-k", name_part] if name_part else []
    return int(pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(HERE), *chosen]))


def build(folder: str, *flags: str) -> Path:
    """Compile the extension with the interpreter's own compiler."""
    target = Path(folder) / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = sorted(str(path) for path in (ROOT / "braze/native/src").glob("*.c"))
    command = [
        "cc",
        "-std=gnu11",
        "-O2",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-Wall",
        "-Werror",
        *flags,
    ]
    subprocess.run([*command, f"-I{sysconfig.get_path('include')}", *sources, "-o", str(target)], check=True)
    return target


def load(path: Path) -> None:
    """Put the extension at ``path`` where braze.native looks for it."""
    spec = importlib.util.spec_from_file_location("braze.native._native", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["braze.native._native"] = module
    spec.loader.exec_module(module)


def run(name_part: str) -> int:
    """Run the tests whose name holds ``name_part``; how many failed."""
    failed = count = 0
    for module_name in TORCH_FREE:
        module = importlib.import_module(module_name)
        for name, test in sorted(vars(module).items()):
            if not name.startswith("test_") or name_part not in name:
                continue
            count += 1
            start = time.perf_counter()
            try:
                test()
            except Exception:
                failed += 1
                print(f"FAILED {module_name}.{name}")
                traceback.print_exc()
            else:
                print(f"ok     {module_name}.{name} ({time.perf_counter() - start:.2f} s)")
    print(f"{count} tests, {failed} failed, Python {sys.version.split()[0]}")
    return failed


#: which sanitizers -> flags of the compiler, the libraries that are loaded first, settings of the environment
SANITIZERS = {
    "address": (
        ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
        # it looks for the function that throws before PyTorch, which throws, has loaded the library of that
        ("libasan.so", "libstdc++.so.6"),
        # the interpreter leaves much behind; its own pools hide who owns a block
        {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONMALLOC": "malloc"},
    ),
    "thread": (
        ("-fsanitize=thread",),
        ("libtsan.so",),
        # a race ends the run, also one found by a process that a test starts
        {
            "TSAN_OPTIONS": f"halt_on_error=1 exitcode=66 suppressions={HERE / 'races.txt'}",
            "PYTHONMALLOC": "malloc",
        },
    ),
}


def with_sanitizers(which: str) -> None:
    """Start this program again with the sanitizer's libraries before all others, and Python's own pools off."""
    _, libraries, settings = SANITIZERS[which]
    if libraries[0] in os.environ.get("LD_PRELOAD", ""):
        return
    found = [subprocess.check_output(["cc", f"-print-file-name={name}"], text=True) for name in libraries]
    os.environ.update(settings, LD_PRELOAD=" ".join(name.strip() for name in found))
    os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    words = sys.argv[1:]
    flags: tuple[str, ...] = ()
    runs = run
    if words and words[0].startswith("--sanitize"):
        which = words.pop(0).partition("=")[2] or "address"
        with_sanitizers(which)
        runs = run_all if which == "address" and takes_all() else run
        flags = (*SANITIZERS[which][0], "-fno-omit-frame-pointer", "-g")
    sys.path[:0] = [str(ROOT), str(HERE)]
    with tempfile.TemporaryDirectory() as folder:
        load(build(folder, *flags))
        sys.exit(1 if runs(words[0] if words else "") else 0)
