"""Build C text with the compiler at hand, and load the result.

Units are compiled side by side by direct subprocesses (no shell) and linked to one library. The library
has no OpenMP runtime of its own: ``load`` points its team functions at the one that libtorch uses.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from braze.support import trace
from braze.support.errors import InternalError, Unsupported
from braze.support.log import warn_once

#: seconds for one unit at -O1, and for the second try at -O0
TIMEOUT = 120.0
_ISA = {
    "x86-64-avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    "x86-64-avx2": ("-march=x86-64-v3",),
}
#: what keeps results as eager's (no contraction, no fast-math), and builds fast: the kernels are vectorized and
#: unrolled as they are to be, so that -O2 makes them no faster than -O1 with two of its passes (base.h) does, and takes half as long again
_COMMON = (
    "-O1", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing",
    "-fno-tree-vectorize", "-fno-semantic-interposition", "-fno-asynchronous-unwind-tables", "-w", "-x", "c", "-pipe",
)  # fmt: skip

#: what compilers say where it is not their input that is wrong
NO_ROOM = re.compile(
    rb"(no space left on device|file too large|disk quota exceeded|too many open files|read-only file system)",
    re.I,
)


@contextlib.contextmanager
def this_machine() -> Iterator[None]:
    """What the operating system refuses while kernels are built and loaded is no fault of the kernels."""
    try:
        yield
    except OSError as error:
        raise refused(str(error)) from error


def refused(why: str) -> Unsupported:
    """The kernels of a graph could not be had this time."""
    return Unsupported(
        "BZ5004",
        "kernels could not be built or loaded on this machine",
        why=why,
        hints=[
            "see that the compiler is there, and that the temporary folder and BRAZE_CACHE_DIR have room and let libraries be loaded",
            "then call braze.reset(), or start again",
        ],
    )


def flags(target_arch: str) -> tuple[str, ...]:
    """Compiler options for a target: its instructions, and what keeps results as eager's."""
    return (*_ISA.get(target_arch, ()), *_COMMON)


@cache
def compiler() -> tuple[str, ...]:
    """The C compiler's command: $CC, else clang, gcc or cc from PATH."""
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        found = shutil.which(named[0])
        if found:
            return (found, *named[1:])
        warn_once(
            ("cc", named[0]), f"CC={named[0]!r} is not an executable; looking for another compiler", "kernels"
        )
    for name in ("clang", "gcc", "cc"):
        found = shutil.which(name)
        if found:
            return (found,)
    raise Unsupported(
        "BZ5001",
        "no C compiler found",
        why="braze writes CPU kernels in C and builds them with gcc or clang",
        hints=["install gcc or clang", "or set CC to a compiler", 'or use backend="aot_eager"'],
    )


def compiler_id() -> str:
    """What a cache key holds of the compiler: its path, size and time of change."""
    command = compiler()
    real = os.path.realpath(command[0])
    with this_machine():
        stat = os.stat(real)
    return " ".join((*command, real, str(stat.st_size), str(int(stat.st_mtime))))


#: a function of C's mathematics is declared, as all that is called has to be; or a built-in one may become its call, that is any
#: but those of which the instructions of each target in _ISA make one, or a constant
_MATHEMATICS = re.compile(
    r"^(?:float|double) \w+\(|^#include|"
    r"__builtin_(?!ia32_|shuffle|convertvector|elementwise_sqrt|prefetch|expect|"
    r"(?:inf|nan|fabs|copysign|signbit|sqrt|fma|floor|ceil|trunc|rint|nearbyint)f?\b)",
    re.M,
)


def libraries(command: tuple[str, ...], units: Sequence[str], target_arch: str) -> tuple[str, ...]:
    """What a compiler links kernels with: what it calls of its own, and the mathematics where they are called. The C library is in
    the process already; to read it takes the linker longer than all the rest of its work, and the mathematics half as long."""
    own = _own_library(command) if sys.platform == "linux" else ""
    if not own:
        return ("-lm",)
    mathematics = target_arch not in _ISA or any(map(_MATHEMATICS.search, units))
    return ("-nodefaultlibs", *(("-lm",) if mathematics else ()), "-x", "none", own)


@cache
def _own_library(command: tuple[str, ...]) -> str:
    """The file of the compiler's own functions (libgcc, or clang's), as it names it, where there is one."""
    process = _start((*command, "-print-libgcc-file-name"))
    try:
        said, _ = process.communicate(timeout=10.0)
    except subprocess.TimeoutExpired:
        _kill(process)
        return ""
    own = "" if process.returncode else said.decode(errors="replace").strip()
    return own if os.path.isfile(own) else ""


def build_c(text: str | Sequence[str], target_arch: str) -> bytes:
    """The shared library made of one or more translation units."""
    units = (text,) if isinstance(text, str) else tuple(text)
    command = (*compiler(), *flags(target_arch))
    linked = libraries(compiler(), units, target_arch)
    with tempfile.TemporaryDirectory(prefix="braze-") as folder:
        out = Path(folder) / "kernels.so"
        sources = [Path(folder) / f"unit{i}.c" for i in range(len(units))]
        for path, unit in zip(sources, units, strict=True):
            path.write_text(unit)
        keep = ("-Wl,-z,nodelete",) if sys.platform == "linux" else ()
        link: tuple[str, ...] = ("-shared", "-nostartfiles", *keep, "-o", str(out))
        if len(units) == 1:
            _run([(*command, str(sources[0]), *link, *linked)], units)
        else:
            objects = [p.with_suffix(".o") for p in sources]
            _run(
                [(*command, "-c", str(s), "-o", str(o)) for s, o in zip(sources, objects, strict=True)], units
            )
            _run([(*compiler(), *map(str, objects), *link, *linked)], units)
        trace.count("libraries_built")
        return out.read_bytes()


#: what compilers say that have no memory left
OUT_OF_MEMORY = re.compile(
    rb"(virtual memory exhausted|cannot allocate memory|out of memory|signal killed)", re.I
)


def _run(commands: Sequence[tuple[str, ...]], units: Sequence[str]) -> None:
    """Run commands side by side; a unit that takes too long is tried again at -O0."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        running.extend(map(_start, commands))
        _wait(running, commands, units)
    except BaseException:
        _stop(running)  # they would build on for nobody
        raise


def _wait(
    running: list[subprocess.Popen[bytes]], commands: Sequence[tuple[str, ...]], units: Sequence[str]
) -> None:
    deadline = time.monotonic() + TIMEOUT
    for i, (command, process) in enumerate(zip(commands, tuple(running), strict=True)):
        try:
            message, _ = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            _kill(process)
            warn_once(
                ("slow build", command[-1]), f"compiling took over {TIMEOUT:.0f} s; trying -O0", "kernels"
            )
            process = running[i] = _start(tuple("-O0" if w == "-O1" else w for w in command))
            try:
                message, _ = process.communicate(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                _kill(process)
                message = b"timed out"
        if process.returncode:
            if process.returncode == -signal.SIGKILL or OUT_OF_MEMORY.search(message):
                raise MemoryError(f"the C compiler {command[0]} ran out of memory")
            if (found := NO_ROOM.search(message)) is not None:
                raise refused(f"the C compiler {command[0]} says: {found[0].decode()}")
            _fail(command, message.decode(errors="replace"), units[i] if i < len(units) else "")


def _start(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _stop(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        if process.poll() is None:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a compiler and what it started (it is the leader of its own group)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _fail(command: tuple[str, ...], message: str, unit: str) -> None:
    """Report a compiler's refusal with its first errors and where the source lies."""
    if re.search(r"(unrecognized|unsupported|unknown|bad value).*(-m|option|argument|-f)", message):
        raise Unsupported(
            "BZ5002",
            f"the C compiler {command[0]} does not know the options braze needs",
            why=message[:500],
            hints=["use gcc 11 or newer, or clang 14 or newer (set CC)"],
        )
    if not _works():
        raise Unsupported(
            "BZ5001",
            f"the C compiler {command[0]} cannot build even an empty file",
            why=message[:500],
            hints=["install gcc or clang", "or set CC to a compiler that works"],
        )
    path = trace.dump("failed_unit", "c", unit)
    if path is None:
        kept = (
            Path(tempfile.gettempdir()) / f"braze-failed-{hashlib.sha256(unit.encode()).hexdigest()[:12]}.c"
        )
        kept.write_text(unit)
        path = kept
    first = "\n".join(message.splitlines()[:12])
    raise InternalError("BZ5003", f"generated C did not compile; the source is {path}", why=first)


@cache
def _works() -> bool:
    """Whether the compiler makes a library at all."""
    with tempfile.TemporaryDirectory(prefix="braze-") as folder:
        source = Path(folder) / "empty.c"
        source.write_text("int braze_empty;\n")
        command = (*compiler(), "-shared", "-fPIC", "-nostartfiles", str(source), "-o", f"{folder}/empty.so")
        process = _start(command)
        process.communicate()
        return process.returncode == 0


class Library:
    """A loaded library; it stays loaded as long as the process lives."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._handle = ctypes.CDLL(path, mode=os.RTLD_NOW | getattr(os, "RTLD_LOCAL", 0))

    def symbol(self, name: str) -> int:
        """A function's (or variable's) address."""
        address = ctypes.cast(getattr(self._handle, name), ctypes.c_void_p).value
        assert address is not None
        return address

    def has(self, name: str) -> bool:
        """Whether the library defines ``name``."""
        return hasattr(self._handle, name)


def load(path: str) -> Library:
    """Load a library and give it libtorch's thread team."""
    library = Library(path)
    team = openmp()
    if team is not None and library.has("bz_team"):
        for variable, address in zip(("bz_team", "bz_thread", "bz_threads"), team, strict=True):
            ctypes.c_void_p.in_dll(library._handle, variable).value = address
    return library


@cache
def openmp() -> tuple[int, int, int] | None:
    """Addresses of (GOMP_parallel, omp_get_thread_num, omp_get_max_threads) in libtorch's own runtime."""
    for path in _openmp_candidates():
        try:
            # RTLD_NOLOAD: only the runtime that is there already, never a second one
            handle = ctypes.CDLL(path, mode=os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0))
            names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_max_threads")
            found = [ctypes.cast(getattr(handle, n), ctypes.c_void_p).value for n in names]
        except (OSError, AttributeError):
            continue
        if all(found):
            return found[0] or 0, found[1] or 0, found[2] or 0
    warn_once(
        "no OpenMP", "libtorch's OpenMP runtime was not found: CPU kernels run on one thread", "kernels"
    )
    return None


def _openmp_candidates() -> list[str]:
    """Loaded OpenMP runtimes, those beside libtorch first."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(
        p for p in (line.split(maxsplit=5)[-1] for line in lines) if re.search(r"/lib(g|i|)omp", p)
    )
    torch_libs = {os.path.dirname(line.split(maxsplit=5)[-1]) for line in lines if "libtorch_cpu" in line}
    return sorted(paths, key=lambda p: (os.path.dirname(p) not in torch_libs, "libgomp" not in p, p))
