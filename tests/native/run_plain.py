"""Build the extension for the running interpreter in a temporary folder and run the tests that need no torch.

    python tests/native/run_plain.py [part of a test's name]
    python tests/native/run_plain.py --sanitize [part of a test's name]

With ``--sanitize`` the extension is built with the address and undefined-behaviour sanitizers, whose library is loaded first.
For interpreters that have neither pytest, setuptools nor torch.
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
)


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


SANITIZE = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g",
)


def with_sanitizers() -> None:
    """Start this program again with the sanitizer's library before all others, and Python's own pools off."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        return
    library = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    os.environ.update(
        LD_PRELOAD=library.stdout.strip(),
        ASAN_OPTIONS="detect_leaks=0",  # the interpreter leaves much behind
        UBSAN_OPTIONS="print_stacktrace=1",
        PYTHONMALLOC="malloc",
    )
    os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    words = sys.argv[1:]
    sanitize = "--sanitize" in words
    if sanitize:
        words.remove("--sanitize")
        with_sanitizers()
    sys.path[:0] = [str(ROOT), str(HERE)]
    with tempfile.TemporaryDirectory() as folder:
        load(build(folder, *(SANITIZE if sanitize else ())))
        sys.exit(1 if run(words[0] if words else "") else 0)
